"""Tests that talk to a real service: skipped with the command that installs it, or failed in CI."""

import os
import re
import shutil
from pathlib import Path

import pytest

JETNET = os.environ.get("JETNET_PYTHON", str(Path(__file__).parents[2] / ".venv-jetnet" / "bin" / "python"))
SHOWERS = os.environ.get(
    "SHOWERS_PYTHON", str(Path(__file__).parents[2] / ".venv-showers" / "bin" / "python")
)
PROGRAMS = {
    "federation": ("xrootd",),
    "slurm": ("slurmctld", "slurmd", "sbatch", "tmux"),
    "browser": ("chromium",),
    "compiler": ("cc",),
    "bindfs": ("bindfs", "fusermount3"),
    "jetnet": (JETNET,),
    "corsika": (SHOWERS,),
}
INSTALLABLE = re.compile(r"(apt-get|pip) install|could not import")


def missing_service(item):
    """Return what a marked test needs and this machine lacks, in the words of the marker's description."""
    described = dict(line.partition(": ")[::2] for line in item.config.getini("markers"))
    for name, programs in PROGRAMS.items():
        lacking = [program for program in programs if shutil.which(program) is None]
        if lacking and item.get_closest_marker(name):
            return f"{described[name]}; not found: {', '.join(lacking)}"
    return ""


def pytest_runtest_setup(item):
    reason = missing_service(item)
    if reason and os.environ.get("CI"):
        pytest.fail(f"{reason}. In CI every service is installed by .ci/run.", pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """In CI let what was skipped for want of something that can be installed fail: a GPU cannot."""
    report = (yield).get_result()
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1]
        if INSTALLABLE.search(reason) and "GPU" not in reason:
            report.outcome, report.longrepr = "failed", f"{reason}. In CI nothing is left out for this."
