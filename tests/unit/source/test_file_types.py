import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.source.local import fault
from root_files import make_sensors, write_root

PAGE = b"<!DOCTYPE html>" + b" " * 5000


@pytest.fixture
def files(tmp_path):
    """One good file of each type, by name."""
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = range(100)
    with h5py.File(tmp_path / "block.hdf5", "w", userblock_size=1024) as file:
        file["x"] = range(100)
    write_root(tmp_path / "a.root", *make_sensors(3))
    (tmp_path / "a.csv").write_text("x,y")
    return tmp_path


def test_good_files_have_no_fault(files):
    assert [fault(file, file.name) for file in sorted(files.iterdir())] == [""] * 5


@pytest.mark.parametrize("name", ["a.parquet", "a.h5", "block.hdf5", "a.root", "a.csv"])
def test_a_web_page_is_no_data(files, name):
    (files / name).write_bytes(PAGE)
    assert fault(files / name, name).startswith(("is no whole", "is no HDF5", "is a web page"))


@pytest.mark.parametrize("name", ["a.parquet", "a.root"])
def test_a_file_that_ends_early_is_not_whole(files, name):
    content = (files / name).read_bytes()
    (files / name).write_bytes(content[: len(content) - 5])
    assert fault(files / name, name)


def test_an_empty_file_is_none_of_a_known_type(files):
    for name in ("a.parquet", "a.h5", "a.root"):
        (files / name).write_bytes(b"")
        assert fault(files / name, name)
