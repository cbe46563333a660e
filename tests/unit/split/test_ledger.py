from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crpipe.campaign.raw_files import QUARANTINED, STAGED, RawFile
from crpipe.core.errors import LedgerError
from crpipe.core.paths import DESTINATIONS
from crpipe.events.histograms import Histogram
from crpipe.split.ledger import (
    EDGES,
    check_unique,
    check_written,
    describe_histograms,
    histogram,
    is_balanced,
    make_ledger,
    staged_sums,
)
from crpipe.split.scatter import FileReport
from plain_reader import HITS

TABLE = Path("staged/0000000-0000999.parquet")
FILE = RawFile(0, "a.npz", "file:///a.npz", 10, STAGED, "", "0a", "crc32c", "copy-compare")
NAMES = ("listed", *DESTINATIONS)
ENTRIES = [
    {"role": "train", "events": 4, "items": 8},
    {"role": "test", "events": 1, "items": 1},
    {"role": "validation", "events": 2, "items": 3},
    {"role": "outliers", "events": 1, "items": 50},
    {"role": "validation_outliers", "events": 1, "items": 40},
    {"role": "test_outliers", "events": 2, "items": 90},
]


def report(
    file=FILE, events=(4, 2, 1, 1, 1, 2, 1), items=(8, 3, 1, 50, 40, 90, 4), rejected=((7, "run is -1", 4),)
):
    return FileReport(file, "", np.array(events), np.array(items), list(rejected))


def ledger_of(*reports, aside=(), totals=None):
    totals = totals or {each.file.number: (12, 196) for each in reports}
    return make_ledger(list(reports), list(aside), totals, HITS)


def test_sums_of_a_range():
    gone = replace(FILE, number=2, path="c.npz", state=QUARANTINED, reason="short")
    bad = FileReport(replace(FILE, number=1, path="b.npz"), bad="b.npz: truncated")
    ledger = ledger_of(report(), bad, aside=[gone], totals={0: (12, 196)})
    assert list(ledger["events"].items()) == list(zip(NAMES, (12, 4, 2, 1, 1, 1, 2, 1), strict=True))
    assert list(ledger["items"].items()) == list(zip(NAMES, (196, 8, 3, 1, 50, 40, 90, 4), strict=True))
    assert ledger["rejected"] == [{"file": "a.npz", "row": 7, "reason": "run is -1", "items": 4}]
    assert [(row["path"], row["state"], row["items"]) for row in ledger["files"]] == [
        ("a.npz", STAGED, 196),
        ("b.npz", QUARANTINED, 0),
        ("c.npz", QUARANTINED, 0),
    ]
    assert ledger["quarantined"] == 2
    assert ledger["balanced"] is True
    check_written(ledger, ENTRIES, HITS)


@pytest.mark.parametrize("kind", ["events", "items"])
def test_a_ledger_that_does_not_balance_is_found(kind):
    ledger = ledger_of(report())
    ledger[kind]["listed"] += 1
    assert not is_balanced(ledger)
    with pytest.raises(LedgerError, match="sums differ from what was listed"):
        check_written(ledger | {"balanced": is_balanced(ledger)}, ENTRIES, HITS)


def test_a_file_whose_own_totals_differ_is_refused():
    with pytest.raises(
        LedgerError, match=r"a\.npz: .* 12 events with 197 hits, but 12 events with 196 hits were"
    ):
        ledger_of(report(), totals={0: (12, 197)})


@pytest.mark.parametrize(
    ("place", "kind"), [(0, "events"), (2, "items"), (3, "items"), (4, "events"), (5, "items")]
)
def test_shards_that_hold_something_else_are_refused(place, kind):
    entries = [dict(entry) for entry in ENTRIES]
    entries[place][kind] += 1
    with pytest.raises(LedgerError, match=f"{entries[place]['role']}: .* hits were sent, the shards hold"):
        check_written(ledger_of(report()), entries, HITS)


def test_a_histogram_that_misses_an_event_is_found():
    binnings, parts = {"x": (0.0, 2.0, 2)}, [{"x": Histogram(0.0, 2.0, np.array([1, 1]), 1, 1)}]
    found = describe_histograms(ledger_of(report()), binnings, parts)
    assert found == {
        "histograms": {"x": {"low": 0.0, "high": 2.0, "bins": 2, "counts": [1, 1], "under": 1, "over": 1}}
    }
    assert describe_histograms(ledger_of(report()), {}, [{}]) == {}
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
    row = {"state": "staged", "size": 5, "verified": "server-checksum"}
    assert staged_sums([row, row | {"verified": "source-checksum"}])["server_only"] == 1
    assert "server_only" not in staged_sums([row | {"verified": "source-checksum"}])
