"""Raw files before a split: what a few of them hold, and the threshold that follows from them."""

from collections import Counter

import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.split.preview import read_sample, recommended_threshold
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
    files.append(write_parquet(tmp_path / "large.parquet", [1, 2, 90, 0, 1], 9))
    sample, _ = read_sample(CHOICE, files, limit=50)
    assert (sample.largest, sample.below, sample.recommended) == (5, 13 / 14, 100)


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


def test_the_recommended_threshold_sets_one_event_in_a_thousand_aside(tmp_path):
    file = write_events(tmp_path / "a.npz", make_hits(COUNTS))
    sample, _ = read_sample(ReaderChoice("plain_reader:Plain"), [file])
    assert (sample.recommended, sample.largest) == (40, 9000)
    assert recommended_threshold(dict(Counter(COUNTS))) == (40, 0.001)
