"""workflow/scripts/nightly: every target runs, whatever became of the one before."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "workflow" / "scripts" / "nightly"
RULES = "good:\n\t@echo works\nbad:\n\t@echo broken >&2; exit 3\n"


def nightly(folder, *targets):
    (folder / "Makefile").write_text(RULES)
    variables = {"PATH": "/usr/bin:/bin", "NIGHTLY_FOLDER": str(folder)}
    return subprocess.run([SCRIPT, *targets], env=variables, capture_output=True, text=True, check=False)


def test_it_goes_on_after_a_failure_and_says_what_failed(tmp_path):
    done = nightly(tmp_path, "good", "bad", "missing", "good")
    assert done.returncode == 1
    table = [line.split()[:2] for line in done.stdout.splitlines()[-4:]]
    assert table == [["good", "passed"], ["bad", "FAILED"], ["missing", "FAILED"], ["good", "passed"]]
    assert "broken" in (tmp_path / "logs" / "nightly" / "bad.log").read_text()


def test_when_all_is_well_it_ends_well(tmp_path):
    done = nightly(tmp_path, "good")
    assert done.returncode == 0
    assert (tmp_path / "logs" / "nightly" / "good.log").read_text() == "works\n"
