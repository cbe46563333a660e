"""A file of another format is named by its first bytes, with what reads it, or what to do with it."""

import bz2
import gzip
import io
import lzma
import sqlite3
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.events.file_formats import format_of
from crpipe.split.inspect import inspect_file
from named import PARQUET, READERS
from pulse_files import write_geometry
from raw_files import write_hdf5, write_parquet
from root_files import make_sensors, write_root

MULTIPLICITY = [0, 3, 1]
ROOT = "crpipe.workloads.xec.reading.root:RootFiles"
KAGGLE = "crpipe.workloads.direction.reading.kaggle:SimulatedFiles"


def _zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")


def _tar(path):
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("a"), io.BytesIO())


def _sqlite(path):
    with sqlite3.connect(path) as database:
        database.execute("create table a (b)")


def _npy(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def _arrow(path):
    pyarrow.feather.write_feather(pa.table({"a": [1]}), path)


def _stream(path):
    table = pa.table({"a": [1]})
    with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


def holding(content):
    return lambda path: path.write_bytes(content)


FILES = {  # how it is written, its name, and what to do with it
    "gzip": (holding(gzip.compress(b"[i3]")), "packed with gzip", "gunzip"),
    "bzip2": (holding(bz2.compress(b"a")), "packed with bzip2", "bunzip2"),
    "xz": (holding(lzma.compress(b"a")), "packed with xz", "unxz"),
    "zstd": (holding(bytes(pa.compress(b"a", "zstd", asbytes=True))), "packed with zstd", "zstd -d"),
    "lz4": (holding(bytes(pa.compress(b"a", "lz4", asbytes=True))), "packed with lz4", "lz4 -d"),
    "tar": (_tar, "a tar archive", "tar -x"),
    "zip": (_zip, "a zip archive (as .npz is)", "docs/workload.md"),
    "npy": (_npy, "a NumPy file", "docs/workload.md"),
    "SQLite": (_sqlite, "an SQLite database", "docs/workload.md"),
    "Arrow": (_arrow, "an Arrow IPC (Feather) file", "docs/workload.md"),
    "Arrow stream": (_stream, "an Arrow IPC stream", "docs/workload.md"),
    "FITS": (holding(b"SIMPLE  =                    T" + b" " * 2850), "a FITS file", "docs/workload.md"),
    "i3": (holding(b"[i3]\x01\0\0\0"), "an IceCube i3 file", "docs/workload.md"),
    "HTML": (holding(b"\n<!DOCTYPE html><html>"), "a web page", "downloaded again"),
    "Git LFS": (
        holding(b"version https://git-lfs.github.com/spec/v1\n"),
        "a Git LFS pointer",
        "git lfs pull",
    ),
    "CSV": (holding("a,b\n1,µ\n".encode() * 999), "a text file", "docs/workload.md"),
    "empty": (holding(b""), "an empty file (0 bytes)", "again"),
    "zeros": (holding(bytes(10_000)), "a file of zeros", "again"),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, READERS["bundles"]) for kind in FILES), ("zip", READERS["bundles_hdf5"]), ("zip", ROOT)],
)
def test_a_file_of_another_format_is_named(tmp_path, kind, name):
    write, words, remedy = FILES[kind]
    path = tmp_path / "a.parquet"
    write(path)
    with pytest.raises(FormatError) as caught:
        ReaderChoice(name).open().totals(path)
    assert f"{path}: this is {words}" in str(caught.value)
    assert remedy in str(caught.value)
    assert "truncated" not in str(caught.value)


def gammas(path):
    npho, time = make_sensors(1)
    return write_root(path, npho, time)


@pytest.mark.parametrize(
    ("write", "configured", "expected"),
    [
        (
            lambda path: write_hdf5(path, MULTIPLICITY),
            "bundles",
            "an HDF5 file.*muons.reading.hdf5:BundlesHdf5$",
        ),
        (
            lambda path: write_parquet(path, MULTIPLICITY),
            "bundles_hdf5",
            f"a Parquet file.*{PARQUET}:Bundles$",
        ),
        (gammas, "bundles", "a ROOT file.* write a reader for it"),
        (lambda path: write_hdf5(path, MULTIPLICITY), ROOT, "an HDF5 file.*xec.reading.hdf5:LiquidOFiles$"),
        (lambda path: write_hdf5(path, MULTIPLICITY), KAGGLE, "an HDF5 file, .* write a reader for it"),
    ],
)
def test_the_reader_that_fits_is_named(tmp_path, write, configured, expected):
    """Readers beside the configured one declare what they read; those that can read the file come first."""
    path = write(tmp_path / "a")
    tables = {"geometry": write_geometry(tmp_path / "geometry.csv")}
    reader = ReaderChoice(READERS.get(configured, configured), {}, tables).open()
    for call in (reader.totals, lambda path: list(reader.rows(path))):
        with pytest.raises(FormatError, match=expected):
            call(path)


def test_a_user_block_hides_no_hdf5(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    path.write_bytes(b"some notes".ljust(2048) + path.read_bytes())
    assert format_of(path).name == "HDF5"


def test_bytes_that_say_nothing_are_damage(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(256)) * 20)
    with pytest.raises(FormatError, match="cannot be read whole"):
        ReaderChoice(READERS["bundles"]).open().totals(tmp_path / "a")


def test_inspect_names_the_format(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    with pytest.raises(FormatError, match="this is an HDF5 file, and no reader is configured"):
        inspect_file(path, 3, None)
