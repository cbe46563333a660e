"""Every step once, from the listing to the report, in one process: nothing is lost on the way."""

import itertools
import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from checked import FIRST, SECOND
from crpipe.core.errors import FormatError, SourceError

LINKS = (FIRST, SECOND, "outliers")


@pytest.fixture
def campaign(sound, tmp_path):
    return sound.copy(tmp_path / "campaign")


def ledgers(campaign):
    return [json.loads(campaign.paths.ledger(name).read_text()) for name in (FIRST, SECOND)]


def test_every_listed_event_is_in_one_shard(sound):
    for name, ledger in zip((FIRST, SECOND), ledgers(sound), strict=True):
        where = dict(ledger["events"])
        listed, rejected = where.pop("listed"), where.pop("rejected")
        assert listed == sum(file["events"] for file in ledger["files"]) == sum(where.values()) + rejected
        shards = Counter()
        for manifest in (sound.paths.shard_manifest(name), sound.paths.outlier_manifest(name)):
            for shard in json.loads(manifest.read_text())["shards"]:
                rows = pq.read_metadata(manifest.parent / f"{shard['name']}.events.parquet").num_rows
                assert rows == shard["events"]
                shards[shard["role"]] += rows
        assert shards == Counter({role: count for role, count in where.items() if count})


def test_every_training_event_is_trained_on_once_in_each_epoch(sound):
    receipts = [json.loads(sound.paths.receipt(link).read_text()) for link in LINKS]
    trained = [receipt["events"] for receipt in receipts]
    first, second = (ledger["events"]["train"] for ledger in ledgers(sound))
    outliers = sum(ledger["events"]["outliers"] for ledger in ledgers(sound))
    assert trained == [first, first + second, first + second + outliers]
    assert outliers > 0
    for parent, child in itertools.pairwise(receipts):
        assert child["parent"] == parent["sha256"]


def test_the_evaluation_has_a_row_for_each_event_that_it_counts(sound):
    folder = sound.paths.evaluation(FIRST)
    numbers = json.loads((folder / "metrics.json").read_text())
    assert numbers["checkpoint"] == json.loads(sound.paths.receipt(FIRST).read_text())["sha256"]
    assert len(pq.read_table(folder / "predictions.parquet")) == numbers["events"] > 0


def test_a_step_that_is_done_is_not_done_again(campaign):
    before = campaign.contents()
    for link in LINKS:
        campaign.crpipe("train", link)
    campaign.crpipe("consolidate")
    assert campaign.contents() == before


def test_a_plan_names_the_changed_key_that_the_workflow_would_refuse(campaign):
    assert "made with" not in campaign.crpipe("plan", "--offline")
    with pytest.raises(SourceError, match=r"would fail:\ntrain.ema_decay: made with .*, now 0.5; restore it"):
        campaign.crpipe("plan", "--offline", "--set", "train.ema_decay=0.5")


def test_an_event_of_the_command_line_is_named_as_it_was_typed(campaign, tmp_path):
    (tmp_path / "out").mkdir()
    words = ("generate", "--checkpoint", FIRST, "--out", str(tmp_path / "out" / "g.parquet"), "--event")
    with pytest.raises(FormatError, match=r"^--event: no column depth_m"):
        campaign.crpipe(*words, "energy_gev=1e6")
    campaign.crpipe(*words, "energy_gev=1e6,zenith_rad=0.3,mass_number=1,depth_m=1500", "--multiplicity", "3")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["g.parquet"]  # and no file of the events


def test_the_result_is_reported(campaign, tmp_path):
    for verb in (["status"], ["summary"], ["figures"], ["check"]):
        assert campaign.crpipe(*verb).strip()
    campaign.crpipe("report", "--out", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert FIRST in page
    events = sum(ledger["events"]["listed"] for ledger in ledgers(campaign))
    assert f"{events}" in page
    assert "2 of 2 ranges" in campaign.crpipe("status")
