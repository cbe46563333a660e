"""workflow/scripts/audit.py: a service without advisories is never a good result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "workflow" / "scripts" / "audit.py"
# Answers as pip-audit 2.10.1 does; where its service knows nothing it ends with 0, too.
PROGRAM = """#!{python}
import json, sys
known, answers = {known!r}, {answers!r}
service = sys.argv[sys.argv.index("--vulnerability-service") + 1]
rows = []
for line in open(sys.argv[-1]):
    name, _, version = line.partition("#")[0].strip().partition("==")
    if not version:
        continue
    if service not in known:
        rows.append({{"name": name, "skip_reason": "Dependency not found on PyPI and could not be audited"}})
    else:
        rows.append({{"name": name, "version": version, **answers.get(name, {{"vulns": []}})}})
print(json.dumps({{"dependencies": rows, "fixes": []}}))
"""
BAD = {"vulns": [{"id": "CVE-2018-18074", "fix_versions": ["2.20.0"], "aliases": []}]}
SKIPPED = {"skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.fixture
def audit(tmp_path):
    def run(known, answers, *, broken=False):
        program = tmp_path / "pip-audit"
        text = PROGRAM.format(python=sys.executable, known=known, answers=answers)
        program.write_text("#!/bin/sh\nexit 1\n" if broken else text)
        program.chmod(0o755)
        pins = tmp_path / "constraints.txt"
        pins.write_text("# Every version\naiohttp==3.14.5\nJinja2==3.1.6\n")
        command = [sys.executable, SCRIPT, program, pins]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(("known", "broken"), [((), False), (("pypi",), True)])
def test_without_advisories_it_says_so_and_fails(audit, known, broken):
    done = audit(known, {"requests": BAD}, broken=broken)
    assert done.returncode == 2
    assert "no advisories can be reached" in done.stdout
    assert "Nothing was audited" in done.stdout


@pytest.mark.parametrize("service", ["pypi", "osv"])
def test_pins_without_advisories_are_good(audit, service):
    done = audit((service,), {"requests": BAD})
    assert done.returncode == 0
    assert f"2 pins, asked {service}: no known vulnerability" in done.stdout


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (BAD, "aiohttp 3.14.5: CVE-2018-18074, fixed in 2.20.0"),
        (SKIPPED, f"aiohttp: {SKIPPED['skip_reason']}"),
    ],
)
def test_a_vulnerable_pin_and_one_that_was_not_looked_up_are_named(audit, row, line):
    done = audit(("pypi",), {"requests": BAD, "aiohttp": row})
    assert done.returncode == 1
    assert line in done.stdout.splitlines()


def test_the_pins_are_read_as_they_are():
    """The file that the repository has: every line is a comment or one pin."""
    lines = (SCRIPT.parents[2] / "constraints.txt").read_text().splitlines()
    assert all(line.startswith("#") or line.count("==") == 1 for line in lines)
    assert json.dumps(lines).count("==") > 150
