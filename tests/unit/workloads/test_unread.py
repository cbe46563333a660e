"""What a file holds beside what its reader reads is refused or noted, never left out without a word."""

import shutil
import sys

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError, MissingExtra
from crpipe.workloads.direction.reading.prometheus import geometry_of
from crpipe.workloads.xec.reading.root import open_tree
from liquido_files import make_liquido, write_liquido
from named import READERS
from prometheus_files import write_nested
from raw_files import make_events, nested, write_hdf5, write_parquet
from root_files import make_sensors, make_truth, write_root

ROOT = "crpipe.workloads.xec.reading.root:RootFiles"
LIQUIDO = "crpipe.workloads.xec.reading.hdf5:LiquidOFiles"
PHOTONS = "crpipe.workloads.direction.reading.prometheus:PrometheusPhotons"
MULTIPLICITY = [0, 3, 1, 5]


def notes(name, path, options=None, tables=None):
    """Read a file whole, and count it; give what its reader noted."""
    reader = ReaderChoice(READERS.get(name, name), options or {}, tables or {}).open()
    events = sum(map(len, reader.rows(path)))
    assert reader.totals(path)[0] == events
    return reader.notes


def refused(name, path, *words, kind=FormatError, tables=None):
    for call in ("totals", "rows"):
        reader = ReaderChoice(READERS.get(name, name), {}, tables or {}).open()
        with pytest.raises(kind) as caught:
            list(getattr(reader, call)(path))
        assert all(word in str(caught.value) for word in (str(path), *words)), str(caught.value)


@pytest.fixture
def geometry(tmp_path):
    """The table of sensors of two files with photons."""
    for number in (1, 2):
        write_nested(tmp_path / f"{number}.parquet", [3, 0, 2], seed=number)
    geometry_of([tmp_path / "1.parquet", tmp_path / "2.parquet"], tmp_path / "geometry.csv")
    return {"geometry": tmp_path / "geometry.csv"}


def joined(path, *files):
    path.write_bytes(b"".join(each.read_bytes() for each in files))
    return path


@pytest.mark.parametrize("options", [{}, {"write_page_index": True}, {"use_dictionary": False}])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 900), (900, 4), (900, 901)])
def test_two_parquet_files_joined_by_cat(tmp_path, sizes, options):
    parts = []
    for number, size in enumerate(sizes):
        events = make_events([2] * size, seed=number)
        pq.write_table(nested(*events), tmp_path / f"{number}", row_group_size=300, **options)
        parts.append(tmp_path / f"{number}")
        notes("bundles", parts[-1])  # each by itself is read
    refused("bundles", joined(tmp_path / "a.parquet", *parts), "have it copied or made again")


def test_the_same_parquet_file_twice(tmp_path):
    one = write_parquet(tmp_path / "1", MULTIPLICITY)
    refused("bundles", joined(tmp_path / "a.parquet", one, one), "would be left unread")


@pytest.mark.parametrize("size", [100, 1 << 17])
def test_bytes_before_a_parquet_file(tmp_path, size):
    one = write_parquet(tmp_path / "1", MULTIPLICITY)
    (tmp_path / "a.parquet").write_bytes(b"x" * size + one.read_bytes())
    refused("bundles", tmp_path / "a.parquet")


def test_a_row_group_that_the_footer_does_not_name(tmp_path):
    """A footer of fewer row groups than were written, as an interrupted repair leaves it."""
    path = write_parquet(tmp_path / "a.parquet", [2] * 400, row_group=200)
    whole = path.read_bytes()
    end = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    other = write_parquet(tmp_path / "b.parquet", [2] * 200, row_group=200).read_bytes()
    length = int.from_bytes(other[-8:-4], "little")
    assert end < len(whole)
    path.write_bytes(whole[: -8 - int.from_bytes(whole[-8:-4], "little")] + other[-8 - length :])
    refused("bundles", path, "belong to none of the row groups")


@pytest.mark.parametrize("padding", [16, 5000])
def test_zeros_between_row_groups_are_padding(tmp_path, padding):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY)
    whole = path.read_bytes()
    place = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[:place] + b"\0" * padding + whole[place:])
    assert notes("bundles", path) == []


def test_what_the_footer_says_of_a_column_is_repeated_after_it(tmp_path):
    """So pyarrow wrote its files before version 18: here the copy is that of the last column."""
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY)
    whole = path.read_bytes()
    place = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    copy = whole[place + 100 : place + 300]
    path.write_bytes(whole[:place] + copy + whole[place:])
    assert notes("bundles", path) == []
    path.write_bytes(whole[:place] + copy[::-1] + whole[place:])
    refused("bundles", path, "belong to none of the row groups")


def test_the_summary_of_a_folder_of_parquet_files(tmp_path):
    collector = []
    table = nested(*make_events(MULTIPLICITY))
    pq.write_to_dataset(table, tmp_path / "folder", metadata_collector=collector)
    pq.write_metadata(table.schema, tmp_path / "_metadata", metadata_collector=collector)
    refused("bundles", tmp_path / "_metadata", "its rows are in another file")


def test_columns_of_other_workloads_that_are_not_read(tmp_path, geometry):
    path = tmp_path / "1.parquet"
    table = pq.read_table(path).append_column("weight", pa.array([1.0] * 3))
    pq.write_table(table, path)
    noted = notes(PHOTONS, path, tables=geometry)
    assert len(noted) == 1
    assert noted[0].startswith("columns that are not read: ")
    assert noted[0].endswith("weight")


def test_two_hdf5_files_joined_by_cat(tmp_path):
    parts = [write_hdf5(tmp_path / f"{number}.h5", MULTIPLICITY, seed=number) for number in (0, 1)]
    refused("bundles_hdf5", joined(tmp_path / "a.h5", *parts), "another HDF5 file was joined to it")
    refused(LIQUIDO, joined(tmp_path / "b.h5", *parts), "another HDF5 file was joined to it")


@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
@pytest.mark.parametrize("block", [0, 512, 4096])
def test_what_surrounds_an_hdf5_file(tmp_path, libver, block):
    plain = write_hdf5(tmp_path / "1.h5", MULTIPLICITY)
    path = tmp_path / "a.h5"
    with h5py.File(plain) as file, h5py.File(path, "w", libver=libver, userblock_size=block) as target:
        for name in file:
            target[name] = file[name][:]
    expected = [f"a user block of {block} bytes is not read"] if block else []
    assert notes("bundles_hdf5", path) == expected
    with path.open("ab") as file:
        file.write(b"\0" * 1000)
    assert notes("bundles_hdf5", path) == expected  # padding
    with path.open("ab") as file:
        file.write(b"more")
    refused("bundles_hdf5", path, "1004 more follow", "something was joined to it")


def test_further_datasets_of_an_hdf5_file(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    with h5py.File(path, "r+") as file:
        file["weights"] = np.ones(4)
        file["run/settings"] = np.ones(2)
        file["münchen".encode("latin-1")] = np.ones(2)
    assert notes("bundles_hdf5", path) == ["datasets that are not read: m\ufffdnchen, run/settings, weights"]


def test_further_groups_of_events_in_an_hdf5_file(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    with h5py.File(path, "r+") as file:
        for name in ("primaries", "muons", "counts"):
            file.require_group("second").create_dataset(name, data=file[name][:])
    reader = ReaderChoice(READERS["bundles_hdf5"]).open()
    with pytest.raises(FormatError, match="it also holds second/"):
        reader.totals(path)
    liquido = write_liquido(tmp_path / "b.h5", *make_liquido([3, 2]))
    with h5py.File(liquido, "r+") as file:
        file["again/HitData"] = file["HitData"][:]
    with pytest.raises(FormatError, match="it also holds again/HitData"):
        ReaderChoice(LIQUIDO).open().totals(liquido)


@pytest.mark.parametrize(("code", "name"), [(32001, "blosc"), (32026, "blosc2"), (32000 + 999, "unknown")])
def test_a_filter_that_is_not_installed_is_named(tmp_path, monkeypatch, code, name):
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    with h5py.File(path, "r+") as file:
        values = file["muons"][:]
        del file["muons"]
        stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        stored.set_chunk(values.shape)
        stored.set_filter(code, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple(values.shape)
        made = h5py.h5d.create(file.id, b"muons", h5py.h5t.NATIVE_FLOAT, space, stored)
        made.write_direct_chunk((0, 0), values.astype(np.float32).tobytes(), 0)
    words = (f"compressed with {name} (HDF5 filter {code})", "pip install hdf5plugin")
    refused("bundles_hdf5", path, *words, kind=MissingExtra)


def gammas(path, events=5, **changes):
    npho, time = make_sensors(events)
    return write_root(path, npho, time, **{**make_truth(events), **changes})


def extended(path, tree, events, seed=0):
    """Write one more tree into a file."""
    npho, time = make_sensors(events, seed)
    columns = {"npho": npho, "relative_time": time, **make_truth(events)}
    columns |= {"run": np.full(events, 2, np.int32), "event": np.arange(events, dtype=np.int32)}
    with uproot.update(path) as file:
        made = file.mktree(tree, {name: (each.dtype, each.shape[1:]) for name, each in columns.items()})
        made.extend(columns)


def test_two_root_files_joined_by_cat(tmp_path):
    parts = [gammas(tmp_path / f"{number}.root") for number in (1, 2)]
    refused(ROOT, joined(tmp_path / "a.root", *parts), "another file was joined to it", "hadd")


def test_a_second_cycle_of_a_tree_with_other_events(tmp_path):
    path = gammas(tmp_path / "a.root")
    extended(path, "tree", 3)
    refused(ROOT, path, "tree;1 holds other events", 'reader.tree: "tree;2"')


def test_an_rntuple_of_the_name_of_the_tree(tmp_path):
    """Uproot writes one by itself today, also into a file that has a tree of this name."""
    path = gammas(tmp_path / "a.root")
    with uproot.update(path) as file:
        file.mkrntuple("tree", {"run": np.ones(3, np.int32)})
    refused(ROOT, path, "tree;2 holds other events", 'reader.tree: "tree;1"')


@pytest.mark.parametrize(("cycle", "events"), [("tree;1", 5), ("tree;2", 3)])
def test_a_cycle_can_be_named(tmp_path, cycle, events):
    path = gammas(tmp_path / "a.root")
    extended(path, "tree", 3)
    reader = ReaderChoice(ROOT, {"tree": cycle}).open()
    assert sum(map(len, reader.rows(path))) == reader.totals(path)[0] == events
    other = {"tree;1": "tree;2", "tree;2": "tree;1"}[cycle]
    assert reader.notes == [f"trees that are not read: {other}"]


def test_an_earlier_state_of_a_tree_is_no_other_tree(tmp_path):
    """Uproot writes a tree's header again after each extend; an older key of it is put back."""
    path = tmp_path / "a.root"
    npho, time = make_sensors(6)
    columns = {"npho": npho, "relative_time": time, **make_truth(6)}
    columns |= {"run": np.full(6, 1, np.int32), "event": np.arange(6, dtype=np.int32)}
    with uproot.recreate(path) as file:
        tree = file.mktree("tree", {name: (each.dtype, each.shape[1:]) for name, each in columns.items()})
        tree.extend({name: each[:4] for name, each in columns.items()})
    shutil.copy(path, tmp_path / "before.root")
    reader = ReaderChoice(ROOT).open()
    assert reader.totals(path)[0] == 4
    with open_tree(path, "tree") as newest, uproot.open(tmp_path / "before.root") as before:
        assert newest.continues(before["tree"])
    other = gammas(tmp_path / "b.root", 3)
    with open_tree(path, "tree") as newest, uproot.open(other) as another:
        assert not newest.continues(another["tree"])


def test_further_trees_are_noted(tmp_path):
    path = gammas(tmp_path / "a.root")
    extended(path, "calibration", 2)
    extended(path, "folder/tree", 2)
    assert notes(ROOT, path) == ["trees that are not read: calibration, folder/tree"]


@pytest.mark.parametrize("name", ["tree", "events"])  # the one that was asked for, and the only one
def test_an_rntuple_is_named(tmp_path, name):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        ntuple = file.mkrntuple(name, {"event": np.arange(3, dtype=np.int32)})
        assert ntuple is not None
    refused(ROOT, path, f"{name} is an RNTuple, and this reader reads a TTree", "Snapshot")


def test_a_tree_of_another_name(tmp_path):
    refused(ROOT, gammas(tmp_path / "a.root", tree="trees"), "did you mean trees?", "reader.tree")


def test_events_without_photons_as_python_writes_them(tmp_path, geometry):
    """Its lists have no type where all of them are empty."""
    rows = pq.read_table(write_nested(tmp_path / "3.parquet", [0, 0])).to_pylist()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "3.parquet")
    assert "null" in str(pq.read_schema(tmp_path / "3.parquet").field("photons").type.field("t").type)
    reader = ReaderChoice(PHOTONS, {}, geometry).open()
    (events,) = reader.rows(tmp_path / "3.parquet")
    assert events.multiplicity.tolist() == [0, 0]
    assert reader.totals(tmp_path / "3.parquet") == (2, 0)


@pytest.mark.parametrize("rows", [0, 2])
def test_columns_without_a_type(tmp_path, geometry, rows):
    """As pandas writes a table without rows; with rows they hold nothing but nulls."""
    leaves = {
        "photons": ["string_id", "sensor_id", "t", "sensor_pos_x", "sensor_pos_y", "sensor_pos_z"],
        "mc_truth": [
            f"{state}_state_{name}"
            for state in ("initial", "final")
            for name in ("azimuth", "zenith", "energy")
        ],
    }
    kinds = {name: pa.struct([(leaf, pa.null()) for leaf in each]) for name, each in leaves.items()}
    table = pa.table({name: pa.array([{}] * rows, kind) for name, kind in kinds.items()})
    pq.write_table(table, tmp_path / "4.parquet")
    reader = ReaderChoice(PHOTONS, {}, geometry).open()
    if rows:
        with pytest.raises(FormatError, match="row 0: photons.*found a null"):
            list(reader.rows(tmp_path / "4.parquet"))
    else:
        assert list(reader.rows(tmp_path / "4.parquet")) == []
        assert reader.totals(tmp_path / "4.parquet") == (0, 0)
