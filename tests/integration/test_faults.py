"""Each verb with one file operation that fails once: no traceback, nothing lost, and again to the same bytes.

A sample of FAULTS=60 cases, chosen by FAULT_SEED, or else by the commit; FAULTS=0 tries every operation with
every errno (`make test-faults`). FAULT_TABLE=FILE writes how many operations each verb has.
"""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

import faults
from crpipe.core.causes import MEANINGS
from fault_campaign import LEFT_OUT, STEPS
from runs import REPOSITORY, environment

pytestmark = [pytest.mark.compiler, pytest.mark.timeout(20 * 3600)]

CASES = int(os.environ.get("FAULTS", "60"))
WORKERS = 2 if "FAULTS" in os.environ else 1  # each prepares a campaign, which takes longer than 60 cases
FIRED = 0.9  # the others: operations whose order changes between runs


def seed():
    given = os.environ.get("FAULT_SEED")
    if given:
        return int(given)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return int(head.stdout[:8] or "1", 16)


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """Run the cases in processes of their own; give the rows of all of them."""
    folder, number = tmp_path_factory.mktemp("faults"), seed()
    sys.stderr.write(f"\nfaults: FAULT_SEED={number} FAULTS={CASES}\n")
    variables = environment(
        {
            "LD_PRELOAD": str(faults.build(folder)),
            "PYTHONPATH": str(Path(faults.__file__).parent),
            "MPLCONFIGDIR": str(folder),
        }
    )
    started = []
    for share in range(WORKERS):
        words = [folder / str(share), number, CASES, share, WORKERS]
        with (folder / f"{share}.jsonl").open("w") as output:
            command = [sys.executable, faults.__file__, *map(str, words)]
            started.append(subprocess.Popen(command, env=variables, stdout=output))
    codes = [process.wait() for process in started]
    assert codes == [0] * WORKERS
    return [
        json.loads(line)
        for share in range(WORKERS)
        for line in (folder / f"{share}.jsonl").read_text().splitlines()
    ]


def test_each_errno_is_in_the_table_of_the_product():
    used = set().union(*faults.FAULTS.values())
    assert [name for name in used if getattr(faults.errno, name) not in MEANINGS] == []


def test_one_fault_leaves_no_traceback_and_loses_nothing(rows):
    cases = [row["case"] for row in rows if "case" in row]
    fired = sum(case["fired"] for case in cases)
    wrong = [case for case in cases if case["wrong"]]
    for case in wrong:
        sys.stderr.write(json.dumps(case) + "\n")
    assert fired >= FIRED * len(cases) > 0
    assert not CASES or len(cases) == CASES
    kinds = Counter((case["verb"], case["operation"].split()[0], case["errno"]) for case in wrong)
    assert kinds == {}


def test_each_verb_ends_well_without_a_fault(rows):
    steps = [row for row in rows if "step" in row]
    assert [row["step"] for row in steps if row["code"]] == []
    assert {row["step"] for row in steps} >= faults.ONLY
    assert faults.ONLY or {row["step"] for row in steps} == {name for name, _ in STEPS} - {"-"}
    if os.environ.get("FAULT_TABLE"):
        Path(os.environ["FAULT_TABLE"]).write_text(table(steps[: len(steps) // WORKERS]))


def table(steps):
    """Render how many operations of each kind a verb has."""
    counts = defaultdict(Counter)
    for row in steps:
        for operation, count in row["counts"].items():
            counts[row["step"]][operation.split(" ", 1)[0]] += count
    kinds = sorted(faults.FAULTS)
    errnos = sum(count * len(faults.FAULTS[kind]) for each in counts.values() for kind, count in each.items())
    operations = sum(map(Counter.total, counts.values()))
    lines = [
        "# File operations of each verb",
        "",
        "Written by `make test-faults`: what each verb does below the folder of a tiny campaign, by what it",
        "calls in the C library. Each of these operations is a place where a disk or a file server can fail.",
        f"{datetime.now(UTC):%Y-%m-%d}: {operations:,} operations, {errnos:,} cases with an errno that each",
        "can give.",
        "",
        f"| verb | {' | '.join(kinds)} | all |",
        f"|---|{'---|' * (len(kinds) + 1)}",
    ]
    for name, found in counts.items():
        lines.append(f"| {name} | {' | '.join(str(found[kind] or '') for kind in kinds)} | {found.total()} |")
    lines += ["", "Left out:", "", *(f"- `{name}`: {why}" for name, why in LEFT_OUT.items())]
    errno_lines = [f"- {kind}: {', '.join(sorted(faults.FAULTS[kind]))}" for kind in kinds]
    return "\n".join([*lines, "", "What each operation fails with:", "", *errno_lines]) + "\n"
