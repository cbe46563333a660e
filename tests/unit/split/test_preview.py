import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.split.preview import read_sample
from named import READERS
from raw_files import write_hdf5, write_parquet

CHOICE = ReaderChoice(READERS["bundles"])


def test_the_first_file_is_read_and_the_others_are_counted(tmp_path):
    files = [write_parquet(tmp_path / f"{seed}.parquet", [2, 0, 5, 1, 0, 9], seed) for seed in range(3)]
    found = read_sample(CHOICE, files)
    assert (found.files, found.events, found.items) == (3, 18, 51)
    assert found.bytes == sum(file.stat().st_size for file in files)
    assert found.multiplicities.tolist() == [2, 0, 5, 1, 0, 9]
    assert found.groups == 2  # five rows of one group, then one of another
    assert found.columns["primary_major_id"] == "uint64"


def test_without_time_one_block_and_one_file_are_read(tmp_path):
    files = [write_parquet(tmp_path / f"{seed}.parquet", [2] * 4, seed) for seed in range(2)]
    found = read_sample(CHOICE, files, seconds=-1.0)
    assert (found.files, len(found.multiplicities)) == (1, 4)


def test_files_of_other_kinds_show_what_the_reader_gives(tmp_path):
    file = write_hdf5(tmp_path / "a.h5", [2, 0, 5])
    found = read_sample(ReaderChoice(READERS["bundles_hdf5"]), [file])
    assert found.columns["muons.x_m"] == "float32"


def test_a_truncated_file_is_named(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", [2] * 9)
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(FormatError, match="a.parquet: cannot be read whole"):
        read_sample(CHOICE, [file])
