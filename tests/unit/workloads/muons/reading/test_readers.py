"""Readers take the layout they are named for and nothing else, and say what they found instead."""

from itertools import permutations

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import named
from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.events.batch import concatenate
from crpipe.workloads.muons.layout import BUNDLES, MUON, PRIMARY
from crpipe.workloads.muons.reading import parquet
from raw_files import lists, make_events, nested, write_hdf5, write_parquet

READERS = {name: ReaderChoice(spelled).open() for name, spelled in named.READERS.items()}
MULTIPLICITY = [0, 3, 1, 0, 40, 2, 0, 0, 5]
NAMES = [field.name for field in PRIMARY]
MUON_NAMES = [field.name for field in MUON]
IDS = list(BUNDLES.group)
LAYOUTS = {
    "bundles": {},
    "bundles_depth_time": {"primary": [*NAMES, "time"]},
    "bundles_time_depth": {"primary": [*NAMES[:3], "time", "depth_m"]},
    "bundles_ids": {"primary": [*IDS, *NAMES]},
    "bundles_ids_muons": {"primary": [*IDS, *NAMES], "muon": [*IDS, *MUON_NAMES]},
    "bundles_converted": {
        "primary": [*IDS, *NAMES[:3], "time", "depth_m"],
        "muon": [*IDS, *MUON_NAMES, "time"],
    },
}


def assert_all_read(reader, path):
    columns, multiplicity, items = make_events(MULTIPLICITY)
    events = concatenate(list(reader.rows(path)))
    assert np.array_equal(events.multiplicity, multiplicity)
    assert np.array_equal(events.items, items)
    assert {name: column.dtype.name for name, column in events.columns.items()} == {
        field.name: field.dtype for field in BUNDLES.events
    }
    assert all(np.array_equal(events.columns[name], column) for name, column in columns.items())
    assert reader.totals(path) == (len(multiplicity), len(items))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("row_group", [1000, 2])
def test_parquet_layouts(tmp_path, name, row_group):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY, row_group=row_group, **LAYOUTS[name])
    assert_all_read(READERS[name], path)


@pytest.mark.parametrize("zeros_for_none", [False, True])
def test_hdf5(tmp_path, zeros_for_none):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY, zeros_for_none=zeros_for_none)
    assert_all_read(READERS["bundles_hdf5"], path)


def test_row_groups_too_large_to_decode_at_once_give_the_same(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY)
    monkeypatch.setattr(parquet, "_DECODE_BYTES", 1)
    monkeypatch.setattr(parquet, "_BLOCK_BYTES", 300)
    assert_all_read(READERS["bundles"], path)
    assert len(list(READERS["bundles"].rows(path))) > 2


def test_totals_without_statistics(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(nested(*make_events(MULTIPLICITY)), path, write_statistics=False)
    assert READERS["bundles"].totals(path) == (len(MULTIPLICITY), sum(MULTIPLICITY))


def test_other_kinds_of_lists_are_lists_too(tmp_path):
    columns, multiplicity, items = make_events(MULTIPLICITY)
    table = nested(columns, multiplicity, items)
    tracks = pa.FixedSizeListArray.from_arrays(pa.array(items.reshape(-1)), 3)
    starts = pa.array(np.concatenate([[0], np.cumsum(multiplicity)]))
    muons = pa.LargeListArray.from_arrays(starts.cast(pa.int64()), tracks)
    table = table.set_column(table.schema.get_field_index("muons"), "muons", muons)
    pq.write_table(table, tmp_path / "a.parquet")
    assert_all_read(READERS["bundles"], tmp_path / "a.parquet")


@pytest.mark.parametrize("row_group", [1000, 3])
def test_a_muon_of_zeros_in_a_converted_file_is_none(tmp_path, row_group):
    columns, counts, items = make_events(MULTIPLICITY)
    empty = counts == 0
    items = np.insert(items, np.cumsum(counts, dtype=np.int64)[empty], 0, axis=0)
    table = nested(columns, np.where(empty, 1, counts), items, **LAYOUTS["bundles_converted"])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=row_group)
    assert_all_read(READERS["bundles_converted"], tmp_path / "a.parquet")
    again = READERS["bundles_ids_muons"]  # it has no such rule, and refuses the file
    with pytest.raises(FormatError, match="row 0: primary: expected 6 values"):
        list(again.rows(tmp_path / "a.parquet"))


def test_the_converted_file_has_the_rows_of_the_hdf5_file(tmp_path):
    write_hdf5(tmp_path / "a.h5", MULTIPLICITY, zeros_for_none=True)
    with h5py.File(tmp_path / "a.h5") as file:
        primaries, muons, counts = (file[name][:] for name in ("primaries", "muons", "counts"))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = {"primary": lists(primaries), "muons": pa.ListArray.from_arrays(pa.array(starts), lists(muons))}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    assert_all_read(READERS["bundles_converted"], tmp_path / "a.parquet")


OTHERS = [  # what the file is, what was configured, what the message names
    ("bundles", "bundles_converted", ["Bundles"]),
    ("bundles_depth_time", "bundles", ["BundlesDepthTime", "BundlesTimeDepth"]),
    ("bundles_ids", "bundles", ["BundlesIds", "BundlesIdsMuons"]),  # no id columns: the footer has the width
    ("bundles_converted", "bundles", ["BundlesConverted"]),
    ("bundles_converted", "bundles_ids_muons", ["BundlesConverted"]),
    ("bundles_ids_muons", "bundles_ids", ["BundlesIdsMuons"]),
    ("bundles_ids", "bundles_ids_muons", ["BundlesIds"]),
]


@pytest.mark.parametrize(("file", "configured", "named_readers"), OTHERS)
def test_another_width_names_the_reader_to_set(tmp_path, file, configured, named_readers):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY, **LAYOUTS[file])
    with pytest.raises(FormatError) as caught:
        list(READERS[configured].rows(path))
    expected = " or ".join(f"{named.PARQUET}:{name}" for name in named_readers)
    assert str(caught.value).endswith(f"such files are read with source.reader: {expected}")


def test_a_width_that_nothing_reads_names_no_reader(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY, primary=[*NAMES, "a", "b", "c", "d"])
    with pytest.raises(FormatError, match="found 8 values; choose the reader of its layout"):
        list(READERS["bundles"].rows(path))


def width(name):
    return len(LAYOUTS[name].get("primary", NAMES)), len(LAYOUTS[name].get("muon", MUON_NAMES))


@pytest.mark.parametrize(
    ("name", "other"), [pair for pair in permutations(LAYOUTS, 2) if width(pair[0]) != width(pair[1])]
)
def test_a_layout_of_another_width_is_refused(tmp_path, name, other):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY, **LAYOUTS[name])
    with pytest.raises(FormatError, match=r"a\.parquet: (row 0: primary: expected|row 1: muons|no column)"):
        list(READERS[other].rows(path))


def replaced(column, values):
    table = nested(*make_events(MULTIPLICITY))
    return table.set_column(table.schema.get_field_index(column), column, values)


def ragged():
    inner = [[[1.0, 2.0, 3.0]] * count for count in MULTIPLICITY]
    inner[4][7] = [1.0, 2.0]
    return pa.array(inner, pa.list_(pa.list_(pa.float32())))


def with_null(row):
    values = [[1.0, 2.0, 3.0, 4.0] for _ in MULTIPLICITY]
    values[row] = None
    return pa.array(values, pa.list_(pa.float32()))


DAMAGES = {
    "ragged": ("muons", ragged, r"row 4: muons: expected 3 values .*found 2 values"),
    "null row": ("primary", lambda: with_null(5), r"row 5: primary: expected 4 values, found null"),
    "null id": (
        "primary_minor_id",
        lambda: pa.array([1, 2, None, *range(6)], pa.uint64()),
        r"row 2: primary_minor_id: .*null",
    ),
    "ids as floats": (
        "primary_major_id",
        lambda: pa.array(np.ones(9)),
        r"column primary_major_id: expected uint64, found double",
    ),
    "decimals": (
        "primary",
        lambda: pa.array([[1] * 4] * 9, pa.list_(pa.decimal128(5, 2))),
        r"column primary: expected list<float32>, found list<element: decimal128",
    ),
    "flat": (
        "muons",
        lambda: lists(np.ones((9, 3), np.float32)),
        r"column muons: expected list<list<float32>>",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_not_in_the_schema(tmp_path, name):
    column, values, message = DAMAGES[name]
    path = tmp_path / "a.parquet"
    pq.write_table(replaced(column, values()), path)
    with pytest.raises(FormatError, match=rf"a\.parquet: {message}"):
        list(READERS["bundles"].rows(path))


def test_a_missing_column_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(nested(*make_events(MULTIPLICITY)).drop(["primary_major_id"]), path)
    with pytest.raises(FormatError, match="no column primary_major_id; the file has "):
        list(READERS["bundles"].rows(path))


@pytest.mark.parametrize("name", ["primary_minor_id", "primary", "muons"])
def test_two_columns_of_one_name_are_refused(tmp_path, name):
    table = nested(*make_events(MULTIPLICITY))
    pq.write_table(table.append_column(name, table[name]), tmp_path / "a.parquet")
    for call in (READERS["bundles"].totals, lambda path: list(READERS["bundles"].rows(path))):
        with pytest.raises(
            FormatError, match=rf"a\.parquet: 2 columns are called {name}; have the file made"
        ):
            call(tmp_path / "a.parquet")


def test_muons_of_another_primary_are_damage(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    with h5py.File(path, "r+") as file:
        counts = file["counts"][:]
        file["counts"][:] = counts[::-1]
    with pytest.raises(FormatError, match=r"a\.h5: row \d: primary_minor_id: expected .* in its muons"):
        list(READERS["bundles_hdf5"].rows(path))


@pytest.mark.parametrize(
    ("dataset", "values", "message"),
    [
        ("primaries", np.zeros((9, 6), np.float32), r"primaries: expected .*float32 \[9, 6\]"),
        ("muons", np.zeros((51, 6), np.int64), r"muons: expected .*found int64"),
        ("counts", np.zeros(8, np.int32), "counts holds 8 rows, primaries 9"),
        ("counts", np.full(9, -1, np.int32), "row 0: counts: expected 0 to 51 .* found -1"),
        ("counts", np.ones(9, np.int32), "counts sum to 9, muons holds 51 rows"),
    ],
)
def test_hdf5_of_another_shape(tmp_path, dataset, values, message):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    with h5py.File(path, "r+") as file:
        del file[dataset]
        file[dataset] = values
    with pytest.raises(FormatError, match=message):
        READERS["bundles_hdf5"].totals(path)


def test_a_truncated_file(tmp_path):
    for write, reader in ((write_parquet, "bundles"), (write_hdf5, "bundles_hdf5")):
        path = write(tmp_path / "a", MULTIPLICITY)
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(FormatError, match="cannot be read whole"):
            list(READERS[reader].rows(path))
