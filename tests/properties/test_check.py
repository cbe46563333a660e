"""Damage any file of a sound campaign: crpipe check names it, or nothing that it proves changed."""

import json
import os
import random
import shutil

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checked import FIRST
from damage import cut, edit, edit_rows, flip, swap

# Where a listing found a file and when that was written, of which nothing but the listing knows.
UNPROVEN = {"uri", "mtime"}
NOT_READ = ("journal.jsonl", "lease", "metrics.jsonl", "init_from.json")
EXAMPLES = settings(
    max_examples=int(os.environ.get("CRPIPE_DAMAGES", "30")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def campaign(sound, tmp_path_factory):
    """A finished campaign without its evaluation; each example restores what it damaged."""
    campaign = sound.copy(tmp_path_factory.mktemp("damaged") / "campaign")
    shutil.rmtree(campaign.paths.evaluation(FIRST).parent)
    return campaign


def judged(campaign):
    """List the files that a check reads."""
    return sorted(
        path
        for path in campaign.folder.rglob("*")
        if path.is_file() and path.name not in NOT_READ and "tensorboard" not in path.parts
    )


def repeat_a_row(path, chance):
    """Repeat a row of a list of files, of shards, or of events."""
    if path.suffix == ".json":
        tree = json.loads(path.read_text())
        lists = [name for name, value in tree.items() if isinstance(value, list) and value]
        if lists:
            name = chance.choice(lists)
            edit(path, lambda tree: tree[name].insert(0, tree[name][-1]))
    elif path.suffix == ".parquet" and {"manifests", "multiplicity", "staged"} & {*path.parts}:
        edit_rows(path, lambda rows: rows.insert(0, rows[-1]))


def damage(path, others, kind, chance):
    if kind == "flip":
        flip(path, chance.randrange(path.stat().st_size))
    elif kind == "cut":
        cut(path)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "delete":
        path.unlink()
    elif kind == "swap":
        swap(path, chance.choice([other for other in others if other.suffix == path.suffix]))
    else:
        repeat_a_row(path, chance)


def proven(path):
    """Read what a check proves of a file; None where it cannot be read."""
    try:
        if path.suffix == ".json":
            return stripped(json.loads(path.read_text()))
        if path.suffix == ".parquet" and path.stem.count(".") == 0:  # not a shard
            return [stripped(row) for row in pq.read_table(path).to_pylist()]
        return path.read_bytes()
    except Exception:  # noqa: BLE001 - of any kind: it is damaged
        return None


def stripped(value):
    if isinstance(value, dict):
        return {name: stripped(each) for name, each in value.items() if name not in UNPROVEN}
    return [stripped(each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
@EXAMPLES
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["flip", "cut", "empty", "delete", "swap", "repeat"]))
def test_any_damage_is_named_or_changes_nothing_that_is_proved(campaign, seed, kind):
    chance = random.Random(seed)
    files = judged(campaign)
    before = {path: (path.read_bytes(), proven(path)) for path in files}
    path = chance.choice(files)
    damage(path, files, kind, chance)
    changed = [file for file in files if not file.exists() or file.read_bytes() != before[file][0]]
    try:
        report = campaign.check()
        named = bool(report.findings)
        same = [file for file in changed if file.exists() and proven(file) == before[file][1]]
        assert named or same == changed, f"{kind}: {changed}"
    finally:
        for file in changed:
            file.write_bytes(before[file][0])
    assert not campaign.check().errors
