"""Held-out groups through the whole product, on disk: judged with all their events, never trained on."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from crpipe.core.paths import DESTINATIONS, LARGE_ROLES, TRAINED_ROLES
from runs import RANGES, REPOSITORY, Campaign
from watched import NAMES

pytestmark = pytest.mark.timeout(900)

THRESHOLD = 40


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A campaign through all of its targets, with a test part, under a workload that names what it reads."""
    begun = Campaign.begin(tmp_path_factory.mktemp("watched") / "campaign")
    seen = begun.folder / "seen.txt"
    paths = (REPOSITORY / "tests" / "support", REPOSITORY / "src")
    variables = {"WATCHED": str(seen), "PYTHONPATH": ":".join(map(str, paths))}
    campaign = Campaign(begun.folder, variables)
    campaign.change(
        train={"workload": "watched:Watched", "passes_per_link": 1, "schedule": {"warmup_steps": 1}},
        split={"outlier_above": THRESHOLD, "validation_fraction": 0.2, "test_fraction": 0.2},
        simulator={"showers_per_file": 20},
        evaluate={"events": 10_000},
    )
    campaign.snakemake("outliers_consolidated")
    trained = campaign.crpipe("train", RANGES[0])  # by hand: the workflow's first job probes foreign classes
    assert trained.returncode == 0, trained.stderr
    campaign.snakemake("all")
    return campaign


def tables(campaign):
    return [pq.read_table(campaign.results / "multiplicity" / f"{name}.parquet") for name in RANGES]


def groups(table, roles):
    mine = table.filter(pc.is_in(table["destination"], pa.array(list(roles)))) if roles else table
    return set(zip(*(mine[name].to_pylist() for name in NAMES), strict=True))


def test_no_row_of_a_held_out_group_is_ever_read_by_training(watched):
    rows = [tuple(map(int, line.split())) for line in (watched.folder / "seen.txt").read_text().splitlines()]
    trained = {row[:2] for row in rows}
    held_roles = [role for role in DESTINATIONS[:-1] if role not in TRAINED_ROLES]
    kept = set().union(*(groups(table, TRAINED_ROLES) for table in tables(watched)))
    held = set().union(*(groups(table, held_roles) for table in tables(watched)))
    assert held
    assert not held & kept
    assert trained == kept  # every training group was read, and no other
    sizes = [size for *_, size in rows]
    counted = [json.loads((watched.results / "ledgers" / f"{name}.json").read_text()) for name in RANGES]
    for role, found in zip(
        TRAINED_ROLES,
        (sum(size <= THRESHOLD for size in sizes), sum(size > THRESHOLD for size in sizes)),
        strict=True,
    ):
        assert found == sum(ledger["events"][role] for ledger in counted) > 0, role


def test_evaluations_hold_the_large_events_of_held_out_groups(watched):
    found = pq.read_table(watched.run / "evaluation" / "outliers" / "predictions.parquet")
    numbers = json.loads((watched.run / "evaluation" / "outliers" / "metrics.json").read_text())
    expected, sizes = [], []
    for name, table in zip(RANGES, tables(watched), strict=True):
        mine = table.filter(pc.is_in(table["destination"], pa.array(["test", "test_outliers"])))
        places = zip(mine["source_file"].to_pylist(), mine["source_row"].to_pylist(), strict=True)
        expected += [(name, *place) for place in places]
        sizes += mine["multiplicity"].to_pylist()
    assert min(sizes) <= THRESHOLD < max(sizes)
    columns = (found[name].to_pylist() for name in ("range", "source_file", "source_row"))
    assert sorted(zip(*columns, strict=True)) == sorted(expected)
    assert (numbers["part"], numbers["events"]) == ("test", len(expected))


def test_ledgers_and_consolidation_keep_the_parts_apart(watched):
    merged = pq.read_table(watched.results / "outliers" / "consolidated" / "index.parquet")
    ledgers = [json.loads((watched.results / "ledgers" / f"{name}.json").read_text()) for name in RANGES]
    for role in LARGE_ROLES:
        events = pc.sum(pc.equal(merged["destination"], role)).as_py()
        assert events == sum(ledger["events"][role] for ledger in ledgers) > 0
    for ledger in ledgers:
        for kind in ("events", "items"):
            assert ledger[kind]["listed"] == sum(ledger[kind][name] for name in DESTINATIONS)
    for verb in ("check", "summary", "status", "plan"):
        done = watched.crpipe(verb)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "validation_outliers" in watched.crpipe("status").stdout
