"""Ask for the known vulnerabilities of all pinned versions; end with 0 only when every pin was looked up.

pip-audit calls a pin that its service does not know "skipped" and ends with 0. A mirror of PyPI without
advisories, or no network, would then look like a good result: so each service is first asked for a version
that is known to be vulnerable.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
CANARY = "requests==2.19.0"  # CVE-2018-18074, and others since


def ask(program: Path, service: str, requirements: Path) -> list[dict[str, Any]]:
    """Return pip-audit's rows for a file of pins; none where the service does not answer."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    done = subprocess.run(  # noqa: S603 - the program that the Makefile installed
        [program, "--vulnerability-service", service, *options, "--requirement", requirements],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        rows: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return []
    return rows


def knows(rows: list[dict[str, Any]]) -> bool:
    """Return whether a service that was asked for the canary has advisories."""
    return any(row.get("vulns") for row in rows)


def judge(rows: list[dict[str, Any]], pins: int) -> list[str]:
    """List what is wrong: vulnerable pins with the versions that are fixed, and pins not looked up."""
    problems = []
    for row in rows:
        for each in row.get("vulns", []):
            fixed = ", ".join(each["fix_versions"]) or "no version"
            problems.append(f"{row['name']} {row['version']}: {each['id']}, fixed in {fixed}")
        if "skip_reason" in row:
            problems.append(f"{row['name']}: {row['skip_reason']}")
    if len(rows) != pins:
        problems.append(f"{len(rows)} of {pins} pins were looked up")
    return problems


def audit(program: Path, constraints: Path) -> int:
    """Print the result for all pins; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary.txt"
        canary.write_text(CANARY)
        service = next((name for name in SERVICES if knows(ask(program, name, canary))), None)
    if service is None:
        say(f"no advisories can be reached: none of {', '.join(SERVICES)} knows that {CANARY} is vulnerable")
        say("(no network, or a mirror of PyPI without advisories). Nothing was audited.")
        return 2
    pins = sum("==" in line.partition("#")[0] for line in constraints.read_text().splitlines())
    problems = judge(ask(program, service, constraints), pins)
    for problem in problems:
        say(problem)
    found = f"{len(problems)} problems" if problems else "no known vulnerability"
    say(f"{constraints.name}: {pins} pins, asked {service}: {found}")
    return 1 if problems else 0


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="pip-audit")
    parser.add_argument("constraints", type=Path)
    words = parser.parse_args()
    sys.exit(audit(words.program, words.constraints))
