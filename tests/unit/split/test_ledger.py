from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crpipe.campaign.ledger import RejectedEvent
from crpipe.campaign.raw_files import QUARANTINED, STAGED, RawFile
from crpipe.core.errors import LedgerError
from crpipe.core.paths import DESTINATIONS
from crpipe.events.histograms import Histogram
from crpipe.events.shard_records import ShardEntry
from crpipe.split.ledger import (
    EDGES,
    check_unique,
    check_written,
    describe_histograms,
    histogram,
    make_ledger,
    staged_sums,
)
from crpipe.split.scatter import FileReport
from plain_reader import HITS

TABLE = Path("staged/0000000-0000999.parquet")
FILE = RawFile(0, "a.npz", "file:///a.npz", 10, STAGED, "", "0a", "crc32c", "copy-compare")
NAMES = ("listed", *DESTINATIONS)
ENTRIES = [
    ShardEntry(name=f"{role}-00000", role=role, events=events, items=items, files={})
    for role, events, items in (
        ("train", 4, 8),
        ("test", 1, 1),
        ("validation", 2, 3),
        ("outliers", 1, 50),
        ("validation_outliers", 1, 40),
        ("test_outliers", 2, 90),
    )
]


def report(
    file=FILE, events=(4, 2, 1, 1, 1, 2, 1), items=(8, 3, 1, 50, 40, 90, 4), rejected=((7, "run is -1", 4),)
):
    return FileReport(file, "", np.array(events), np.array(items), list(rejected))


def ledger_of(*reports, aside=(), totals=None):
    totals = totals or {each.file.number: (12, 196) for each in reports}
    return make_ledger(list(reports), list(aside), totals, HITS, data="", threshold=100, empty=0)


def test_sums_of_a_range():
    gone = replace(FILE, number=2, path="c.npz", state=QUARANTINED, reason="short")
    bad = FileReport(replace(FILE, number=1, path="b.npz"), bad="b.npz: truncated")
    ledger = ledger_of(report(), bad, aside=[gone], totals={0: (12, 196)})
    assert ledger.events.as_json() == dict(zip(NAMES, (12, 4, 2, 1, 1, 1, 2, 1), strict=True))
    assert ledger.items.as_json() == dict(zip(NAMES, (196, 8, 3, 1, 50, 40, 90, 4), strict=True))
    assert ledger.rejected == (RejectedEvent(file="a.npz", row=7, reason="run is -1", items=4),)
    assert [(row.path, row.state, row.items) for row in ledger.files] == [
        ("a.npz", STAGED, 196),
        ("b.npz", QUARANTINED, 0),
        ("c.npz", QUARANTINED, 0),
    ]
    assert ledger.quarantined == 2
    assert ledger.balanced is True
    check_written(ledger, ENTRIES, HITS)


@pytest.mark.parametrize("kind", ["events", "items"])
def test_a_ledger_that_does_not_balance_is_found(kind):
    whole = ledger_of(report())
    counts = getattr(whole, kind)
    ledger = replace(whole, **{kind: replace(counts, listed=counts.listed + 1)})
    assert not ledger.is_balanced()
    with pytest.raises(LedgerError, match="sums differ from what was listed"):
        check_written(replace(ledger, balanced=ledger.is_balanced()), ENTRIES, HITS)


def test_a_file_whose_own_totals_differ_is_refused():
    with pytest.raises(
        LedgerError, match=r"a\.npz: .* 12 events with 197 hits, but 12 events with 196 hits were"
    ):
        ledger_of(report(), totals={0: (12, 197)})


@pytest.mark.parametrize(
    ("place", "kind"), [(0, "events"), (2, "items"), (3, "items"), (4, "events"), (5, "items")]
)
def test_shards_that_hold_something_else_are_refused(place, kind):
    entries = list(ENTRIES)
    entries[place] = replace(ENTRIES[place], **{kind: getattr(ENTRIES[place], kind) + 1})
    with pytest.raises(LedgerError, match=f"{entries[place].role}: .* hits were sent, the shards hold"):
        check_written(ledger_of(report()), entries, HITS)


def test_a_histogram_that_misses_an_event_is_found():
    binnings, parts = {"x": (0.0, 2.0, 2)}, [{"x": Histogram(0.0, 2.0, np.array([1, 1]), 1, 1)}]
    found = describe_histograms(ledger_of(report()), binnings, parts)
    assert found == {"x": {"low": 0.0, "high": 2.0, "bins": 2, "counts": [1, 1], "under": 1, "over": 1}}
    assert describe_histograms(ledger_of(report()), {}, [{}]) is None
    with pytest.raises(LedgerError, match="the histogram of x holds 8 events, 4 are trained on"):
        describe_histograms(ledger_of(report()), binnings, parts * 2)


@pytest.mark.parametrize("path", ["a.npz", "./a.npz", "a//../a.npz"])
def test_a_file_that_appears_twice_is_refused(path):
    other = replace(FILE, number=1, path=path, uri="file:///b.npz")
    if ".." in path:
        other = replace(other, path="b.npz", uri=FILE.uri)
    with pytest.raises(LedgerError, match=rf"{TABLE}: .*a\.npz appears 2 times"):
        check_unique([FILE, other], TABLE)


def test_different_files_may_have_equal_bytes_and_no_uri():
    files = [replace(FILE, number=number, path=f"{number}.npz", uri="") for number in range(3)]
    check_unique(files, TABLE)


def test_bins_of_the_histogram():
    assert EDGES[:4].tolist() == [0, 1, 2, 3]
    counts = histogram(np.array([0, 0, 1, 2, 10**8, 2**32 - 1], np.uint32))
    assert counts[:3].tolist() == [2, 1, 1]
    assert counts[-1] == 2
    assert counts.sum() == 6
    for value in (*EDGES[:-1].tolist(), 4095, 4096, 4097):
        (found,) = np.flatnonzero(histogram(np.array([value], np.uint32)))
        assert EDGES[found] <= value < EDGES[found + 1]


def test_files_that_only_their_server_vouches_for_are_counted():
    (row,) = ledger_of(report(replace(FILE, verified="server-checksum"))).files
    other = replace(row, verified="source-checksum")
    assert staged_sums([row, other]).as_json()["server_only"] == 1
    assert "server_only" not in staged_sums([other]).as_json()
