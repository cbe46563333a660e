"""Damaged and malformed files of every kind give a named error with its exit code, or the right result.

``FUZZ_CASES`` (200) is the number of cases, ``FUZZ_SEED`` (1) chooses them. What is found is kept below
``found/TARGET/``, as files that replay without the mutator.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fuzz.child import change, prepared
from fuzz.targets import TARGETS
from runs import REPOSITORY

CASES = int(os.environ.get("FUZZ_CASES", "200"))
SEED = os.environ.get("FUZZ_SEED", "1")
FOUND = Path(__file__).with_name("found")
PROCESSES = 2
KINDS = {"refused", "same", "changed"}


def shares(total):
    """Divide the cases among the targets, by their weights; each has at least one."""
    weights = sum(target.weight for target in TARGETS.values())
    return {name: max(1, round(total * target.weight / weights)) for name, target in TARGETS.items()}


def start(tasks):
    folders = (REPOSITORY / "src", REPOSITORY / "tests", REPOSITORY / "tests" / "support")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fuzz.child", SEED, *tasks]
    return subprocess.Popen(
        command, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def collect(process):
    """Pair the lines before and after each case; one that ended its process has no second line."""
    said, trouble = process.communicate(timeout=60 + CASES)
    rows = [json.loads(line) for line in said.splitlines()]
    cases = []
    for row in rows:
        if "case" in row:
            cases.append({**row, "kind": "failed", "text": f"ended the process: {trouble[-500:]}"})
        else:
            cases[-1] |= row
    assert process.returncode == 0 or any(case["kind"] == "failed" for case in cases), trouble
    return cases


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * CASES)
def test_any_outcome_is_a_named_error_or_the_right_result():
    counts = shares(CASES)
    names = sorted(counts, key=counts.get)
    tasks = [f"{name}:0:{counts[name]}" for name in names]
    with ThreadPoolExecutor(PROCESSES) as pool:
        running = pool.map(lambda first: collect(start(tasks[first::PROCESSES])), range(PROCESSES))
        cases = [case for found in running for case in found]
    assert Counter(case["target"] for case in cases) == counts
    table = Counter((case["target"], case["kind"]) for case in cases)
    for name in sorted(counts):
        told = ", ".join(f"{kind} {table[name, kind]}" for kind in sorted({*KINDS, "failed"}))
        sys.stdout.write(f"{name}: {told}\n")
    failed = [case for case in cases if case["kind"] not in KINDS]
    for case in failed:
        keep(case)
    assert failed == []
    # A mutator that changes nothing, or a reader that refuses everything, would find nothing.
    assert sum(case["kind"] == "refused" for case in cases) > len(cases) / 3
    assert sum(case["kind"] in ("same", "changed") for case in cases) > len(cases) / 20


def keep(case):
    """Write the file of a finding beside this one."""
    target = TARGETS[case["target"]]
    with tempfile.TemporaryDirectory() as place:
        prepared(target, Path(place))
        victim, content = change(target, SEED, case["case"], Path(place))
    # git ignores folders called results and runs
    path = FOUND / target.name / f"{SEED}-{case['case']}" / victim.replace("/", "@")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.slow
def test_what_was_found_is_found_no_more():
    found = sorted(str(path) for path in FOUND.glob("*/*"))
    cases = collect(start(found))
    assert len(cases) == len(found)
    assert [case for case in cases if case["kind"] not in KINDS] == []
