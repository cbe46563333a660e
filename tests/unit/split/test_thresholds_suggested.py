"""Thresholds suggested from raw files, before anything is split."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import DataError, FormatError
from crpipe.core.text import NullProgress
from crpipe.split.preview import suggest_from_files
from named import READERS
from plain_reader import make_hits, write_events
from raw_files import write_parquet

COUNTS = [0] * 500 + [3] * 400 + [40] * 99 + [9000]


def suggested(files, choice=None):
    return suggest_from_files(files, choice, 64, NullProgress()).splitlines()


def test_the_recommended_threshold_sets_one_event_in_a_thousand_aside(tmp_path):
    file = write_events(tmp_path / "a.npz", make_hits(COUNTS))
    lines = suggested([file], ReaderChoice("plain_reader:Plain"))
    assert lines[0] == "1000 events in 1 files, 50% without hits"
    assert [line.split() for line in lines[1:8]] == [
        *(["share", "of", "events", "hits"], ["50.00%", "0"], ["90.00%", "3"], ["99.00%", "40"]),
        *(["99.90%", "40"], ["99.99%", "9000"], ["all", "9000"]),
    ]
    assert lines[-3:] == [
        "recommended: at most 0.1% of the events are set aside (here 0.100%); to paste:",
        "split:",
        "  threshold: 40",
    ]
    assert "batches of 64 events (load.batch_events)" in lines


def test_several_files_and_directories_are_added_up(tmp_path):
    for seed in range(2):
        write_parquet(tmp_path / f"{seed}.parquet", [1, 2, 3], seed)
    choice = ReaderChoice(READERS["bundles"])
    (tmp_path / ".hidden").touch()
    assert suggested([tmp_path], choice)[0] == "6 events in 2 files, 0% without muons"
    files = [tmp_path / "0.parquet"] * 2
    assert suggested(files, choice)[0] == "6 events in 2 files, 0% without muons"


@pytest.mark.parametrize(
    ("columns", "events"),
    [
        ({"hits": [[1.0, 2.0], [], None]}, 3),
        ({"head": [[1.0]], "hits": [[[1.0, 2.0]]]}, 1),
    ],
)
def test_plain_parquet_needs_no_reader(tmp_path, columns, events):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert suggested([tmp_path / "a.parquet"])[0].startswith(f"{events} events in 1 files")


def test_what_cannot_be_counted_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(FormatError, match="expected one column with a list of items, found none of a"):
        suggested([path])
    path.write_text("x")
    with pytest.raises(FormatError, match="cannot be read as Parquet"):
        suggested([path])
    pq.write_table(pa.table({"a": pa.array([], pa.list_(pa.int8()))}), path)
    with pytest.raises(DataError, match="no events"):
        suggested([path])
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no files in this directory"):
        suggested([tmp_path / "none"])


def test_files_that_are_joined_are_not_counted_by_half(tmp_path):
    parts = [write_parquet(tmp_path / f"{name}.parquet", [1, 2]) for name in "ab"]
    both = tmp_path / "both.parquet"
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.raises(FormatError, match="would be left unread"):
        suggest_from_files([both], None, 10, NullProgress())
