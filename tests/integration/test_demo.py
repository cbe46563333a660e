"""`make demo SOURCE=pelican` as a user types it: the demo's four ranges, with the small data of tiny.yaml."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from crpipe.config.loading import read_tree
from runs import BIN, REPOSITORY, TINY, environment

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]
DEMO = REPOSITORY / "config" / "demo.yaml"


@pytest.fixture
def clone(tmp_path):
    """A working directory with a small demo."""
    for name in ("Snakefile", "workflow", "profiles", "Makefile"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "config").mkdir()
    shutil.copy(REPOSITORY / "config" / "config.yaml", tmp_path / "config")
    small = read_tree([TINY])[0] | {"ranges": read_tree([DEMO])[0]["ranges"], "run": "demo"}
    (tmp_path / "config" / "demo.yaml").write_text(yaml.safe_dump({**small, "results": "results/demo"}))
    return tmp_path


@pytest.fixture
def federation():
    """A folder that the origin, which is another user, may enter; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="crpipe-demo-"))
    folder.chmod(0o755)
    yield folder / "federation"
    shutil.rmtree(folder)


def make(clone, federation):
    words = ["make", "-o", ".venv/.installed", f"BIN={BIN}", f"FEDERATION={federation}", "SOURCE=pelican"]
    return subprocess.run(
        [*words, "demo"],
        cwd=clone,
        env=environment({"XDG_RUNTIME_DIR": str(clone)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_the_demo_runs_from_a_federation_that_is_up_only_meanwhile(clone, federation):
    done = make(clone, federation)
    assert done.returncode == 0, done.stdout
    logs = [path.read_text() for path in (clone / "results/demo-pelican/logs/stage").glob("*.log")]
    assert len(logs) == 4
    assert all(re.search(r"verified: 2 by source-checksum", log) for log in logs)
    for name in ("report.html", "snakemake-report.html"):
        assert (clone / "runs/demo-pelican" / name).stat().st_size > 0
    assert "4 of 4" in done.stdout
    assert not list((federation / "run").glob("*.pid"))
    again = make(clone, federation)
    assert again.returncode == 0, again.stdout
    assert "Nothing to be done" in again.stdout
    # The plain demo has directories of its own: neither refuses what the other made.
    plain = [BIN / "snakemake", "--configfile", "config/demo.yaml", "--dry-run", "--quiet", "all"]
    subprocess.run(plain, cwd=clone, env=environment({}), check=True)


def test_a_demo_that_fails_leaves_no_server_behind(clone, federation):
    settings = clone / "config" / "demo.yaml"
    settings.write_text(settings.read_text() + "sorce: 1\n")
    done = make(clone, federation)
    assert done.returncode != 0
    assert "sorce" in done.stdout
    assert f"{federation}: stopped" in done.stdout
    assert (federation / "topology.json").exists()
    assert not list((federation / "run").glob("*.pid"))


def test_without_xrootd_the_command_that_installs_it_is_told(clone, federation, tmp_path):
    done = subprocess.run(
        [str(REPOSITORY / "workflow" / "scripts" / "demo-pelican"), str(BIN), str(federation)],
        cwd=clone,
        env={**environment({}), "PATH": str(tools(tmp_path / "bin"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "apt-get install --no-install-recommends xrootd-server" in done.stdout


def tools(folder):
    """What a shell script needs, and no XRootD."""
    folder.mkdir()
    for name in ("env", "bash", "mkdir"):
        (folder / name).symlink_to(shutil.which(name))
    return folder
