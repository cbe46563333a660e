import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SERVICES = ("federation", "slurm", "browser")
PLUGINS = ("-p", "services", "-p", "pytest_timeout")
ALONE = {
    "PYTHONPATH": str(TESTS / "support"),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}  # importing the others takes a second
MARKED = "@pytest.mark.{name}\ndef test_{name}():\n    pass\n"


@pytest.mark.parametrize(("ci", "outcome"), [("", "3 skipped"), ("true", "3 errors")])
def test_a_missing_service_skips_here_and_fails_in_ci_with_its_command(tmp_path, ci, outcome):
    path = tmp_path / "test_marked.py"
    path.write_text("import pytest\n\n" + "\n".join(MARKED.format(name=name) for name in SERVICES))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", TESTS.parent / "pyproject.toml", *PLUGINS, path],
        cwd=tmp_path,
        env={**os.environ, **ALONE, "PATH": "/nowhere", "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout
    assert done.stdout.count("apt-get install") >= len(SERVICES)
