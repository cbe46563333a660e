import fcntl
import os

import pytest

from runs import Campaign


def made_once(factory, name, target):
    """Run a campaign once for all processes of pytest; return a copy for this one."""
    base = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    shared = Campaign(base / name / "campaign")
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / name / "made").exists():
            Campaign.begin(shared.folder).snakemake(target)
            (base / name / "made").touch()
    return shared.copy(factory.mktemp(name) / "campaign")


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A campaign that ran to its end without any disturbance; copy it before changing anything."""
    return made_once(tmp_path_factory, "finished", "all")


@pytest.fixture(scope="session")
def split(tmp_path_factory):
    """A campaign whose ranges are split, and on which nothing was trained."""
    return made_once(tmp_path_factory, "split", "outliers_consolidated")


@pytest.fixture
def begun(tmp_path):
    """A campaign in which nothing was done yet."""
    return Campaign.begin(tmp_path / "campaign")
