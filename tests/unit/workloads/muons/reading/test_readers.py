"""Readers take the layout they are named for and nothing else, and say what they found instead.

Types that Python writes by itself are read where no value is lost, and said once; others are refused.
"""

import re
from itertools import pairwise, permutations
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import named
from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.events.batch import concatenate
from crpipe.events.validity import find_invalid_events
from crpipe.split.inspect import facts_of
from crpipe.workloads.muons.layout import BUNDLES, MUON, PRIMARY
from crpipe.workloads.muons.reading import parquet
from raw_files import lists, make_events, nested, write_hdf5, write_parquet

READERS = {name: ReaderChoice(spelled).open() for name, spelled in named.READERS.items()}
MULTIPLICITY = [0, 3, 1, 0, 40, 2, 0, 0, 5]
FLOATS = pa.list_(pa.float64())
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


def refused(path, name="bundles"):
    """Read a file, and give the message of its refusal."""
    with pytest.raises(FormatError) as caught:
        list(READERS[name].rows(path))
    return str(caught.value)


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


def test_totals_where_empty_events_are_no_nulls(tmp_path, monkeypatch):
    """So polars counted before version 2: three of them would be one muon more."""
    path, plain = tmp_path / "a.parquet", parquet.muon_column
    pl.from_arrow(nested(*make_events([0, 3, 0, 1, 0]))).write_parquet(path)

    def without_nulls(file, group):
        leaf = plain(file, group)
        statistics = SimpleNamespace(has_null_count=True, null_count=0)
        return SimpleNamespace(
            num_values=leaf.num_values, physical_type=leaf.physical_type, statistics=statistics
        )

    monkeypatch.setattr(parquet, "muon_column", without_nulls)
    assert READERS["bundles"].totals(path) == (5, 4)


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
    # This reader has no such rule, and refuses the file.
    assert "row 0: primary: expected 6 values" in refused(tmp_path / "a.parquet", "bundles_ids_muons")


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
    expected = " or ".join(f"{named.PARQUET}:{name}" for name in named_readers)
    assert refused(path, configured).endswith(f"such files are read with source.reader: {expected}")


def test_a_width_that_nothing_reads_names_no_reader(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY, primary=[*NAMES, "a", "b", "c", "d"])
    assert "found 8 values; choose the reader of its layout" in refused(path)


def width(name):
    return len(LAYOUTS[name].get("primary", NAMES)), len(LAYOUTS[name].get("muon", MUON_NAMES))


@pytest.mark.parametrize(
    ("name", "other"), [pair for pair in permutations(LAYOUTS, 2) if width(pair[0]) != width(pair[1])]
)
def test_a_layout_of_another_width_is_refused(tmp_path, name, other):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY, **LAYOUTS[name])
    known = r"a\.parquet: (row 0: primary: expected|row 1: muons|no column)"
    assert re.search(known, refused(path, other))


def changed(path, **columns):
    """Write the usual rows with some columns of another type."""
    table = nested(*make_events(MULTIPLICITY))
    for name, values in columns.items():
        made = values(table[name]) if callable(values) else values
        table = table.set_column(table.schema.get_field_index(name), name, made)
    pq.write_table(table, path)
    return path


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
        r"column primary_major_id: expected uint64, found double; .*astype\('uint64'\)",
    ),
    "decimals": (
        "primary",
        lambda: pa.array([[1] * 4] * 9, pa.list_(pa.decimal128(5, 2))),
        r"column primary: expected list<float32>, found list<element: decimal128",
    ),
    "nulls for lists": (
        "muons",
        lambda: pa.array([None] * 9, pa.null()),
        "row 0: muons: expected a list, found null",
    ),
    "negative id": (
        "primary_major_id",
        lambda: pa.array([1] * 7 + [-1, 2], pa.int64()),
        r"row 7: primary_major_id: expected a whole number .*found -1",
    ),
    "flat": (
        "muons",
        lambda: lists(np.ones((9, 3), np.float32)),
        r"column muons: expected list<list<float32>>.*; write lists of numbers, as docs/own-data.md shows",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_not_in_the_schema(tmp_path, name):
    column, values, message = DAMAGES[name]
    path = changed(tmp_path / "a.parquet", **{column: values()})
    assert re.search(rf"a\.parquet: {message}", refused(path))


def test_a_type_that_pyarrow_does_not_know_is_no_truncation(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame({"primary_major_id": pl.Series([1, 2], dtype=pl.Int128)}).write_parquet(path)
    message = r"pyarrow does not read it \(.*64 bits.*\): a column has a type that it does not know"
    assert re.search(message, refused(path))
    with pytest.raises(FormatError, match=message):
        facts_of(path, 5, None)


def test_totals_name_the_row_of_a_muon_of_another_width(tmp_path):
    path = changed(tmp_path / "a.parquet", muons=ragged())
    with pytest.raises(FormatError, match=r"row 4: muons: expected 3 values .*found 2 values"):
        READERS["bundles"].totals(path)


def test_a_negative_number_of_rows_is_damage(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", MULTIPLICITY)
    data = path.read_bytes()
    rows = bytes([2 * len(MULTIPLICITY)])  # as a footer spells it; one more is below 0
    for at in (match.start() for match in re.finditer(re.escape(rows), data)):
        path.write_bytes(data[:at] + bytes([rows[0] + 1]) + data[at + 1 :])
        try:
            found = pq.read_metadata(path).row_group(0).num_rows
        except OSError:
            continue
        if found < 0:
            break
    assert "the footer says -10 rows" in refused(path)


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
    known = r"a\.h5: row \d: primary_minor_id: expected .* in its muons"
    assert re.search(known, refused(path, "bundles_hdf5"))


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


def read(path, name="bundles"):
    opened = ReaderChoice(named.READERS[name]).open()  # with notes of its own
    events = concatenate(list(opened.rows(path)))
    assert opened.totals(path) == (len(events), len(events.items))
    return events, opened.notes


WHOLE = [pa.int64(), pa.int32(), pa.uint16(), pa.uint64(), pa.dictionary(pa.int32(), pa.int64())]


@pytest.mark.parametrize("kind", WHOLE)
def test_ids_of_any_type_of_integers_are_ids(tmp_path, kind):
    numbers = pa.array(range(9), pa.int64())
    coded = pa.types.is_dictionary(kind)
    numbers = numbers.dictionary_encode() if coded else numbers.cast(kind)
    path = changed(tmp_path / "a.parquet", primary_minor_id=numbers)
    events, notes = read(path)
    assert events.columns["primary_minor_id"].tolist() == [*range(9)]
    assert events.columns["primary_minor_id"].dtype == np.uint64
    assert (len(notes) == 1) == (kind != pa.uint64())
    assert not notes or notes[0].startswith("column primary_minor_id: ")


@pytest.mark.parametrize("big", [2**63 - 1, 2**53 + 1])
def test_large_ids_stay_exact(tmp_path, big):
    path = changed(tmp_path / "a.parquet", primary_major_id=pa.array([big] * 9, pa.int64()))
    assert read(path)[0].columns["primary_major_id"].tolist() == [big] * 9


def test_ids_in_a_list_of_doubles_are_not_rounded(tmp_path):
    """float32 has no 2^24 + 1: a list of doubles keeps it, and its values are rounded all the same."""
    major = 2**24 + 1
    rows = {
        "primary": pa.array([[float(major), 7.0, 1e5, 0.5, 1.0, 1500.0]] * 2, FLOATS),
        "muons": pa.array([[], [[float(major), 7.0, 1.1, 2.0, 3.0]]], pa.list_(FLOATS)),
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    events, notes = read(tmp_path / "a.parquet", "bundles_ids_muons")
    assert events.columns["primary_major_id"].tolist() == [major] * 2
    assert events.items.tolist() == [[np.float32(1.1), 2.0, 3.0]]
    assert len(notes) == 2


@pytest.mark.parametrize("outer", [pa.list_, pa.list_view, pa.large_list_view])
@pytest.mark.parametrize("part", [slice(None), slice(1, 3), slice(4, None)])
def test_views_of_lists_are_whole_lists(outer, part):
    rows = [[[1.0, 2.0], [3.0]], [], [[4.0]], None, [[], [5.0, 6.0]]]
    array = pa.array(rows, outer(pa.list_view(pa.float32())))[part]
    lists = parquet._lists_of(array, 2)
    lists.validate(full=True)
    assert lists.type == pa.list_(pa.list_(pa.float32()))
    assert lists.to_pylist() == rows[part]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float16(), pa.int64(), pa.uint8()])
@pytest.mark.parametrize("wrap", [pa.list_, pa.large_list, lambda leaf: pa.list_(leaf, 3), pa.list_view])
def test_lists_of_other_numbers_are_float32(tmp_path, kind, wrap):
    values = [1, 2, 3] if pa.types.is_integer(kind) else [1.0, 2.0, 3.0]
    muons = pa.array([[values] * count for count in MULTIPLICITY], pa.list_(wrap(kind)))
    events, notes = read(changed(tmp_path / "a.parquet", muons=muons))
    assert events.multiplicity.tolist() == MULTIPLICITY
    assert events.items.dtype == np.float32
    assert (events.items == [1, 2, 3]).all()
    assert notes == [f"column muons: values of type {kind} are read as float32"]


def test_a_double_beyond_float32_is_an_invalid_event(tmp_path):
    primary = pa.array([[1e300, 0.5, 1.0, 1500.0]] * 9, FLOATS)
    events, _ = read(changed(tmp_path / "a.parquet", primary=primary))
    assert "energy_gev is inf" in find_invalid_events(events, READERS["bundles"].layout)[0]


def test_the_rows_of_pandas(tmp_path):
    columns, multiplicity, items = make_events(MULTIPLICITY)
    starts = np.cumsum([0, *multiplicity])
    names = ("energy_gev", "zenith_rad", "mass_number", "depth_m")
    frame = pd.DataFrame(
        {
            "primary_major_id": columns["primary_major_id"].astype(np.int64),
            "primary_minor_id": columns["primary_minor_id"].astype(np.int64),
            "primary": np.stack([columns[name] for name in names], axis=1).astype(float).tolist(),
            "muons": [items[a:b].astype(float).tolist() for a, b in pairwise(starts)],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    events, _ = read(tmp_path / "a.parquet")
    assert np.array_equal(events.items, items)
    assert all(np.array_equal(events.columns[name], values) for name, values in columns.items())


EMPTY = [
    pa.list_(pa.null()),
    pa.large_list(pa.null()),
    pa.list_(pa.list_(pa.null())),
    pa.list_(pa.list_(pa.float64())),
    pa.list_(pa.list_(pa.float32(), 3)),
]


@pytest.mark.parametrize("kind", EMPTY)
def test_rows_without_muons_are_empty_events(tmp_path, kind):
    events, _ = read(changed(tmp_path / "a.parquet", muons=pa.array([[]] * 9, kind)))
    assert events.multiplicity.tolist() == [0] * 9
    assert events.items.shape == (0, 3)


@pytest.mark.parametrize("groups", [0, 1])
def test_a_file_without_rows_is_one_without_events(tmp_path, groups):
    """Written by pandas, its columns have no type at all."""
    names = ("primary_major_id", "primary_minor_id", "primary", "muons")
    table = pa.table({name: pa.array([], pa.null()) for name in names})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for _ in range(groups):
            writer.write_table(table)
    assert sum(map(len, READERS["bundles"].rows(tmp_path / "a.parquet"))) == 0
    assert READERS["bundles"].totals(tmp_path / "a.parquet") == (0, 0)


def test_columns_that_are_not_read_are_noted(tmp_path):
    table = nested(*make_events(MULTIPLICITY)).append_column("weight", pa.array([1.0] * 9))
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[1] == ["columns that are not read: weight"]
    table = table.rename_columns([*table.column_names[:4], "muons.n"]).select([4, 0, 1, 2, 3])
    pq.write_table(table, tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet")[1] == ["columns that are not read: muons.n"]


def test_a_value_of_the_primary_that_is_also_a_column(tmp_path):
    """It comes from the primary; from the column where the primary of a reader has none."""
    table = nested(*make_events(MULTIPLICITY)).append_column("depth_m", pa.array([5.0] * 9))
    pq.write_table(table, tmp_path / "a.parquet")
    events, notes = read(tmp_path / "a.parquet")
    assert events.columns["depth_m"].min() == 1000
    assert notes == ["columns that are not read: depth_m"]
    pq.write_table(table.set_column(0, "primary", lists(np.ones((9, 3), np.float32))), tmp_path / "a.parquet")
    events = next(parquet.Bundles(primary=tuple(NAMES[:3])).rows(tmp_path / "a.parquet", {}))
    assert set(events.columns["depth_m"]) == {5}


def test_hdf5_of_doubles(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", MULTIPLICITY)
    expected, _ = read(path, "bundles_hdf5")
    with h5py.File(path, "r+") as file:
        for name in ("primaries", "muons"):
            values = file[name][:].astype(np.float64)
            del file[name]
            file[name] = values
    events, notes = read(path, "bundles_hdf5")
    assert np.array_equal(events.items, expected.items)
    assert events.columns["energy_gev"].dtype == np.float32
    noted = "dataset {}: values of type float64 are read as float32"
    assert notes == [noted.format(name) for name in ("primaries", "muons")]


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ({"muons": "Muons"}, "no column muons; .*did you mean Muons"),
        ({"primary": "primaries"}, "did you mean primaries"),
        ({"primary_major_id": "major", "primary_minor_id": "minor"}, "rename them, or write a reader"),
        ({"primary_major_id": "Primary_Major_ID"}, "did you mean Primary_Major_ID"),
        ({"primary_major_id": "other"}, "no column primary_major_id; the file has "),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(tmp_path, names, hint):
    table = nested(*make_events(MULTIPLICITY)).rename_columns(names)
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FormatError, match=hint) as caught:
        READERS["bundles"].totals(tmp_path / "a.parquet")
    assert "source.reader" not in str(caught.value)
