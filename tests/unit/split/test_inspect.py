"""What a person is told about a file."""

import pytest

from crpipe.core.errors import FormatError
from crpipe.core.progress import Silent
from crpipe.split.inspect import inspect_file
from crpipe.split.split import split_range
from crpipe.workloads.muons.layout import PRIMARY, PRIMARY_IDS
from raw_files import NAME, campaign, raw_folder, write_hdf5, write_parquet, write_staged

MULTIPLICITY = [0, 3, 25, 1]
SUMMARY = "multiplicity: 4 events, 29 muons, 1 events without; quantiles 50% 1, 90% 25, 99% 25; largest 25"
NAMES = [field.name for field in PRIMARY]


@pytest.mark.parametrize("primary", [NAMES, [*NAMES, "time"], [*(f.name for f in PRIMARY_IDS), *NAMES]])
def test_raw_parquet_of_any_width(tmp_path, primary):
    text = inspect_file(write_parquet(tmp_path / "a.parquet", MULTIPLICITY, primary=primary), 2)
    assert "raw Parquet, 4 rows" in text
    assert SUMMARY in text
    assert "muons: list<element: list<element: float>>" in text
    shown = [line for line in text.splitlines() if "muons 3 [[" in line]
    assert len(shown) == 1
    assert shown[0].split("primary [")[1].split("]")[0].count(",") == len(primary) - 1


def test_hdf5(tmp_path):
    text = inspect_file(write_hdf5(tmp_path / "a.h5", MULTIPLICITY), 2)
    assert SUMMARY in text
    assert "primaries: float32 [4, 7]" in text
    assert text.count("\n  primary [") == 2


def test_both_halves_of_a_shard(tmp_path):
    config = campaign(tmp_path, "split.validation_fraction=0")
    write_parquet(raw_folder(config) / "a.parquet", MULTIPLICITY)
    write_staged(config)
    split_range(config, config.all_ranges()[0], Silent())
    folder = config.paths().shards(NAME)
    assert "events of a shard, 3 rows" in inspect_file(folder / "train-00000.events.parquet", 1)
    assert "muons of a shard, 4 rows" in inspect_file(folder / "train-00000.muons.parquet", 1)
    assert "no events" in inspect_file(write_parquet(tmp_path / "empty.parquet", []), 1)


def test_something_else(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(FormatError, match=r"notes\.txt: neither Parquet nor HDF5"):
        inspect_file(path, 1)
    path.write_text("PAR1 and then nothing")
    with pytest.raises(FormatError, match=r"notes\.txt: cannot be read whole"):
        inspect_file(path, 1)
    with pytest.raises(FormatError, match="cannot be read whole"):
        inspect_file(tmp_path / "none", 1)
