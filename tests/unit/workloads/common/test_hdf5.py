"""HDF5 files lead nowhere else, and declare no more than they hold; any other file is a FormatError."""

import fcntl
import os
import shutil

import h5py
import numpy as np
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import DiskError, FormatError
from crpipe.events.batch import concatenate
from liquido_files import make_liquido, write_liquido
from named import READERS
from raw_files import write_hdf5

READ = {
    "primaries": ReaderChoice(READERS["bundles_hdf5"]).open(),
    "TruthData": ReaderChoice("crpipe.workloads.xec.reading.hdf5:LiquidOFiles").open(),
}
NAMES = [*READ, "muons", "counts", "HitData"]


def reader_of(name):
    return READ["TruthData" if name in ("TruthData", "HitData") else "primaries"]


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def path(tmp_path, name):
    path = tmp_path / "a.h5"
    if reader_of(name) is READ["primaries"]:
        return write_hdf5(path, [0, 3, 2])
    return write_liquido(path, *make_liquido([3, 0, 2]))


def refused(path, name, said):
    for call in (lambda reader: list(reader.rows(path)), lambda reader: reader.totals(path)):
        with pytest.raises(FormatError, match=said) as caught:
            call(reader_of(name))
        assert str(path) in str(caught.value)


def moved(path, name):
    """Return a second file with the dataset, which ``path`` has no more."""
    other = path.with_name("secret.h5")
    with h5py.File(path, "r+") as file, h5py.File(other, "w") as there:
        there[name] = file[name][()]
        del file[name]
    return other


@pytest.mark.parametrize("to", ["a file", "a pipe", "a file through a group"])
def test_a_link_to_another_file_is_not_followed(path, name, to):
    """Nor waited for, if nobody writes into the pipe."""
    other = moved(path, name)
    if to == "a pipe":
        other.unlink()
        os.mkfifo(other)
    with h5py.File(path, "r+") as file:
        if to == "a file through a group":
            file["away"] = h5py.ExternalLink(str(other), "/")
            file[name] = h5py.SoftLink(f"/away/{name}")
        else:
            file[name] = h5py.ExternalLink(str(other), name)
    refused(path, name, "is a link to '.*secret.h5'.*; a raw file holds its own values")


def test_a_soft_link_inside_of_the_file_is_followed(path, name):
    expected = concatenate(list(reader_of(name).rows(path)))
    with h5py.File(path, "r+") as file:
        group = file.create_group("data")
        file.move(name, f"data/{name}")
        group["again"] = h5py.SoftLink(f"./{name}")
        file[name] = h5py.SoftLink("data/again")
    found = concatenate(list(reader_of(name).rows(path)))
    assert np.array_equal(found.items, expected.items)
    assert np.array_equal(found.multiplicity, expected.multiplicity)


def test_links_in_a_circle_are_refused(path, name):
    with h5py.File(path, "r+") as file:
        del file[name]
        file["one"], file[name] = h5py.SoftLink(name), h5py.SoftLink("one")
    refused(path, name, "its links lead to each other")


@pytest.mark.parametrize("virtual", [False, True])
def test_values_of_another_file_are_not_read(path, name, virtual):
    other = moved(path, name)
    with h5py.File(other) as there, h5py.File(path, "r+") as file:
        shape, kind = there[name].shape, there[name].dtype
        if virtual:
            layout = h5py.VirtualLayout(shape, kind)
            layout[...] = h5py.VirtualSource(there[name])
            file.create_virtual_dataset(name, layout)
        else:
            size = int(np.prod(shape)) * kind.itemsize
            path.with_name("secret").write_bytes(bytes(size))
            file.create_dataset(name, shape, kind, external=[(str(path.with_name("secret")), 0, size)])
    kind = "a virtual dataset" if virtual else "the values of another file"
    refused(path, name, f"is {kind}.*h5repack --merge -l CONTI IN OUT")


def test_a_file_that_is_being_written(tmp_path):
    """A writer holds a lock; one that was killed, or writes with SWMR, leaves a mark."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.flush()
        shutil.copyfile(path, tmp_path / "killed.h5")
    refused(tmp_path / "killed.h5", "muons", "marked as open for writing: .* h5clear -s FILE")
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(DiskError, match="another program has it open for writing; run the same"):
            reader_of("muons").totals(path)


@pytest.mark.parametrize("rows", [2**40, 2**62])
def test_rows_that_were_never_written_are_refused(path, name, rows):
    with h5py.File(path, "r+") as file:
        values = file[name][()]
        del file[name]
        table = file.create_dataset(name, values.shape, values.dtype, maxshape=(None, *values.shape[1:]))
        table[...] = values
        table.resize(rows, axis=0)
    refused(path, name, "are declared, but not all were written")


def test_counts_that_overflow_are_refused(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", [0, 3, 2])
    for value, kind in ((2**62, "i8"), (2**63, "u8"), (2**64 - 1, "u8"), (2**32, "i8")):
        with h5py.File(path, "r+") as file:
            del file["counts"]
            file["counts"] = np.array([value, value, 5], kind)
        refused(path, "counts", rf"row 0: counts: expected 0 to 5 .*found {value}; have the file")
    with h5py.File(path, "r+") as file:  # four times 2^62 is 0 in 64 bits
        for each, count in (("counts", 4), ("primaries", 4), ("muons", 0)):
            values = file[each][:1]
            del file[each]
            file[each] = np.repeat(values.astype("i8") * 0 + 2**62 if each == "counts" else values, count, 0)
    refused(path, "counts", "row 0: counts: expected 0 to 0")


@pytest.mark.parametrize("value", [h5py.Empty("f4"), np.float32(1), np.zeros((0, 3), "f4"), b"text"])
def test_a_dataset_of_another_kind_is_refused(path, name, value):
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = value
    refused(path, name, f"{name}: expected|counts holds|HitData: expected|rows")
