"""Raw files before a split: what a few of them hold, and the thresholds that follow from them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import DataError, FormatError
from crpipe.core.text import NullProgress
from crpipe.split.preview import read_sample, suggest_from_files
from named import READERS
from plain_reader import make_hits, write_events
from raw_files import write_hdf5, write_parquet

CHOICE = ReaderChoice(READERS["bundles"])
COUNTS = [0] * 500 + [3] * 400 + [40] * 99 + [9000]


def test_the_first_file_is_read_and_the_others_are_counted(tmp_path):
    files = [write_parquet(tmp_path / f"{seed}.parquet", [2, 0, 5, 1, 0, 9], seed) for seed in range(3)]
    sample, illegal = read_sample(CHOICE, files, limit=5)
    assert (sample.name, sample.reader, illegal) == (str(files[0]), READERS["bundles"], "")
    assert (sample.files, sample.events, sample.items) == (3, 18, 51)
    assert sample.bytes == sum(file.stat().st_size for file in files)
    assert (sample.rows, sample.largest, sample.below) == (6, 5, 5 / 6)
    assert sample.groups == 2  # five rows of one group, then one of another
    assert sample.columns["primary_major_id"] == "uint64"
    everything, _ = read_sample(CHOICE, files)
    assert (everything.largest, everything.below) == (9, 1.0)


def test_the_first_events_of_the_other_files_are_looked_at_too(tmp_path):
    files = [write_parquet(tmp_path / f"{seed}.parquet", [2, 5, 1], seed) for seed in range(3)]
    single, _ = read_sample(CHOICE, files[:1])
    several, _ = read_sample(CHOICE, files)
    names = [each.name for each in several.values]
    assert names == [each.name for each in single.values]
    energy = names.index("energy_gev")
    assert several.values[energy].largest > single.values[energy].largest
    assert several.rows == 3


def test_without_time_one_block_and_one_file_are_read(tmp_path):
    files = [write_parquet(tmp_path / f"{seed}.parquet", [2] * 4, seed) for seed in range(2)]
    sample, _ = read_sample(CHOICE, files, seconds=-1.0)
    assert (sample.files, sample.rows) == (1, 4)


def test_the_first_illegal_value_is_named_and_the_others_are_counted(tmp_path):
    hits = make_hits([1] * 10)
    hits.columns["run"][[7, 9]] = -1  # in two blocks of the reader
    file = write_events(tmp_path / "a.npz", hits)
    _, illegal = read_sample(ReaderChoice("plain_reader:Plain"), [file])
    assert illegal.startswith("row 7: run is -1")
    assert illegal.endswith("(2 of the 10 events that were read are illegal)")


def test_files_of_other_kinds_show_what_the_reader_gives(tmp_path):
    file = write_hdf5(tmp_path / "a.h5", [2, 0, 5])
    sample, _ = read_sample(ReaderChoice(READERS["bundles_hdf5"]), [file])
    assert sample.columns["muons.x_m"] == "float32"


def test_a_truncated_file_is_named(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", [2] * 9)
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(FormatError, match="a.parquet: cannot be read whole"):
        read_sample(CHOICE, [file])


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
    lines = suggested([tmp_path], choice)
    assert lines[0] == "6 events in 2 files, 0% without muons"
    table = lines[lines.index("") + 1 :]
    assert [line.split()[:3] for line in table[1:3]] == [["2", "33.333%", "50.0%"], ["3", "0.000%", "0.0%"]]
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
