"""What steps write is read and written again to the same bytes; what is damaged is named with its key."""

import json

import pytest

from campaign_files import linked
from crpipe.campaign.ledger import Ledger, LedgerSums
from crpipe.campaign.records import (
    BestReceipt,
    ChosenThreshold,
    DeletedCheckpoint,
    DeletedCheckpoints,
    EvaluationRecord,
    LoadedWeights,
    MultiplicityHistogram,
    Receipt,
    SideTable,
    SideTables,
    SplitKey,
)
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, write_json
from crpipe.core.records import Forks, NumberedFiles
from crpipe.events.shard_records import ShardManifest


@pytest.fixture
def written(tmp_path):
    """The JSON files of a campaign, each with its class; None: any mapping."""
    files = linked(tmp_path)
    paths, name = files.paths, files.name(0)
    link, best = files.campaign.chain.names[:2]
    return {
        paths.campaign(): None,
        paths.layout(): None,
        paths.run_config(): None,
        paths.ledger(name): Ledger,
        paths.receipt(link): Receipt,
        paths.best_receipt(best): BestReceipt,
        paths.shard_manifest(name): ShardManifest,
        paths.histogram(name): MultiplicityHistogram,
    }


SIDE = SideTable(
    uri="file:///a.csv", path="tables/geometry.csv", size=3, sha256="0a", verified="copy-compare"
)
BEST_OF = {"range": "0", "key": "k", "checkpoint": "best-k.pt", "sha256": "0a", "step": 3}
RECEIPT = Receipt(
    **dict.fromkeys(("range", "checkpoint", "sha256", "key", "parent", "fingerprint"), "x"),
    **dict.fromkeys(("round", "step", "events", "items", "skipped"), 1),
    ranges=("0",),
)
RECORDS = (
    SIDE,
    RECEIPT,
    SideTables(rows={"geometry": SIDE}),
    BestReceipt(**BEST_OF, metric="fit/loss", value=1),
    DeletedCheckpoints(rows={"0": DeletedCheckpoint(receipt=RECEIPT, bytes=7, time=1.5)}),
    ChosenThreshold(quantile=0.9, ranges=("0", "1"), threshold=7, events=100),
    SplitKey(data="d", threshold=7, staged="s"),
    LoadedWeights(checkpoint="a.pt", sha256="0a", loaded={"a": "b"}, missing=("c",), unexpected=()),
    EvaluationRecord(checkpoint="0a", step=1, part="test", events=2, groups=1, metrics=(), values={"a": 0.5}),
    NumberedFiles(files=2, last=1, source="/data/*"),
    Forks(checkpoints={"other": "/runs/a.pt"}),
)


def test_what_steps_write_is_written_again_to_the_same_bytes(written):
    for path, kind in written.items():
        if kind is not None:
            before = path.read_bytes()
            kind.read(path).write(path)
            assert path.read_bytes() == before


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_the_json_of_its_fields_in_the_order_of_their_names(tmp_path, record):
    path = tmp_path / "record.json"
    record.write(path)
    assert path.read_text() == json.dumps(json.loads(path.read_text()), indent=1, sort_keys=True) + "\n"
    assert type(record).read(path) == record


def test_a_time_that_a_source_does_not_give_is_written_as_none():
    tree = SIDE.as_json()
    assert tree["mtime"] is None
    assert SideTable.from_json(tree) == SIDE
    del tree["mtime"]
    assert SideTable.from_json(tree) == SIDE


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_file_that_is_missing_is_none_or_an_error(tmp_path, record):
    kind, path = type(record), tmp_path / "record.json"
    assert kind.read_if_any(path) is None
    with pytest.raises(DataError, match=rf"^{path}: missing; run the step that makes it$"):
        kind.read(path)


def test_a_file_of_another_form_is_named_with_what_is_wrong_and_what_makes_it_again(written):
    for path, kind in written.items():
        path.write_text("[1]")
        for read in (read_json, kind.read) if kind else (read_json,):
            with pytest.raises(DataError, match=rf"{path}: damaged \(it is no mapping\); delete it \(rm "):
                read(path)


WRONG = {
    (Receipt, "step"): ("7", "step is '7'"),
    (Receipt, "ranges"): ([1], "ranges is 1"),
    (Receipt, "key"): (None, "key is None"),
    (BestReceipt, "value"): (float("inf"), "value is inf"),
    (BestReceipt, "metric"): (7, "metric is 7"),
    (Ledger, "files"): ([{"path": "a"}], "algorithm is missing"),
    (Ledger, "events"): ({"listed": 1}, "outliers is missing"),
    (Ledger, "quarantined"): (-1, "quarantined is -1"),
    (Ledger, "threshold"): (10**30, "threshold is 1000000"),
    (Ledger, "balanced"): ("yes", "balanced is 'yes'"),
    (Ledger, "staged"): ({"files": 1}, "bytes is missing"),
    (Ledger, "rejected"): ({}, "rejected is no list"),
    (ShardManifest, "data"): (1, "data is 1"),
    (ShardManifest, "shards"): ([{}], "events is missing"),
    (MultiplicityHistogram, "edges"): ([0.5], "edges is 0.5"),
    (MultiplicityHistogram, "events"): ([True], "events is True"),
}


@pytest.mark.parametrize("place", WRONG, ids=lambda place: f"{place[0].__name__}-{place[1]}")
def test_each_wrong_value_is_found(written, place):
    kind, name = place
    value, said = WRONG[place]
    path = next(path for path, each in written.items() if each is kind)
    good = read_json(path)
    write_json(path, good | {name: value})
    for read in (kind.read, read_json):
        with pytest.raises(DataError, match=rf"damaged \({said}.*; delete it \(rm .* and run `crpipe "):
            read(path)
    write_json(path, {key: each for key, each in good.items() if key != name})
    for read in (kind.read, read_json):
        with pytest.raises(DataError, match=rf"damaged \({name} is missing\); delete it"):
            read(path)


def test_fields_of_a_later_version_are_kept(written):
    for path, kind in written.items():
        if kind is not None:
            later = read_json(path) | {"unknown": [1], "later": {"a": None}}
            kind.from_json(later).write(path)
            assert read_json(path) == later


def test_a_ledger_of_an_earlier_crpipe_is_named_as_such(written):
    path = next(path for path, kind in written.items() if kind is Ledger)
    tree = read_json(path)
    for name in ("validation_outliers", "test_outliers"):
        del tree["events"][name]
    write_json(path, tree)
    for read in (Ledger.read, LedgerSums.read, read_json):
        with pytest.raises(DataError, match="made by an earlier crpipe, which trained on large held-out"):
            read(path)


def test_a_file_that_no_campaign_has_may_hold_anything(tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    assert read_json(tmp_path / "x.json") == [1]
