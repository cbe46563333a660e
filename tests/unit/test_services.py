import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SERVICES = ("federation", "slurm", "browser")
ALONE = {
    "PYTHONPATH": str(TESTS / "support"),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}  # importing the others takes a second
MARKED = "@pytest.mark.{name}\ndef test_{name}():\n    pass\n"


LONG = """
import time, pytest, long_tests
long_tests.LIMIT_S = 0.05
def test_short(): pass
def test_long(): time.sleep(0.1)
@pytest.mark.slow
def test_marked(): time.sleep(0.1)
"""


def run(folder, plugins, *words, **variables):
    """Run the tests of a folder with some plugins alone; return what pytest prints."""
    settings = ("-c", TESTS.parent / "pyproject.toml", "-p", "pytest_timeout")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *plugins, *words, folder],
        cwd=folder,
        env={**os.environ, **ALONE, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize(("ci", "outcome"), [("", "3 skipped"), ("true", "3 errors")])
def test_a_missing_service_skips_here_and_fails_in_ci_with_its_command(tmp_path, ci, outcome):
    path = tmp_path / "test_marked.py"
    path.write_text("import pytest\n\n" + "\n".join(MARKED.format(name=name) for name in SERVICES))
    printed = run(tmp_path, ("-p", "services"), PATH="/nowhere", CI=ci)
    assert outcome in printed
    assert printed.count("apt-get install") >= len(SERVICES)


@pytest.mark.parametrize(("ci", "outcome"), [("", "2 skipped"), ("true", "1 failed, 1 skipped")])
def test_in_ci_a_test_that_skips_itself_for_something_that_can_be_installed_fails(tmp_path, ci, outcome):
    reasons = "needs a GPU and pip install crpipe[gpu]", "apt-get install rsync"
    tests = [f"def test_{number}():\n    pytest.skip({reason!r})\n" for number, reason in enumerate(reasons)]
    (tmp_path / "test_skips.py").write_text("import pytest\n\n" + "\n".join(tests))
    printed = run(tmp_path, ("-p", "services"), CI=ci)
    assert outcome in printed
    assert "apt-get install rsync" in printed


def test_ci_lists_what_is_too_long_for_a_run_without_the_slow_tests(tmp_path):
    (tmp_path / "test_some.py").write_text(LONG)
    plugins, fast = ("-p", "long_tests"), ("-m", "not slow")
    printed = run(tmp_path, plugins, *fast, CI="true")
    listed = [line for line in printed.splitlines() if "call  " in line]
    assert len(listed) == 1
    assert listed[0].endswith("test_some.py::test_long")
    assert "2 passed, 1 deselected" in printed
    assert "mark them slow" not in run(tmp_path, plugins, *fast, CI="")
    assert "mark them slow" not in run(tmp_path, plugins, CI="true")
