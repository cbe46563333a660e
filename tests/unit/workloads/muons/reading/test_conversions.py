"""Types that Python writes by itself are read where no value is lost, and said once; others are refused."""

from itertools import pairwise

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.readers import ReaderChoice
from crpipe.core.errors import FormatError
from crpipe.events.batch import concatenate
from crpipe.events.validity import find_invalid_events
from crpipe.workloads.muons.reading import parquet
from named import READERS
from raw_files import make_events, nested, write_hdf5, write_parquet

MULTIPLICITY = [0, 3, 1, 0, 40, 2, 0, 0, 5]
FLOATS = pa.list_(pa.float64())


def reader(name="bundles"):
    return ReaderChoice(READERS[name]).open()


def changed(path, **columns):
    """Write the usual rows with some columns of another type."""
    table = nested(*make_events(MULTIPLICITY))
    for name, values in columns.items():
        made = values(table[name]) if callable(values) else values
        table = table.set_column(table.schema.get_field_index(name), name, made)
    pq.write_table(table, path)
    return path


def read(path, name="bundles"):
    opened = reader(name)
    events = concatenate(list(opened.rows(path)))
    assert opened.totals(path) == (len(events), len(events.items))
    return events, opened.notes


IDS = [pa.int64(), pa.int32(), pa.uint16(), pa.uint64(), pa.dictionary(pa.int32(), pa.int64())]


@pytest.mark.parametrize("kind", IDS)
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


def test_a_negative_id_is_refused_with_its_row(tmp_path):
    path = changed(tmp_path / "a.parquet", primary_major_id=pa.array([1] * 7 + [-1, 2], pa.int64()))
    with pytest.raises(FormatError, match=r"row 7: primary_major_id: expected a whole number .*found -1"):
        list(reader().rows(path))


def test_floats_are_no_ids(tmp_path):
    path = changed(tmp_path / "a.parquet", primary_major_id=pa.array([1.0] * 9))
    with pytest.raises(FormatError, match=r"expected uint64, found double; .*astype\('uint64'\)"):
        list(reader().rows(path))


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
    assert "energy_gev is inf" in find_invalid_events(events, reader().layout)[0]


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
    opened = reader()
    assert sum(map(len, opened.rows(tmp_path / "a.parquet"))) == 0
    assert opened.totals(tmp_path / "a.parquet") == (0, 0)


def test_nulls_in_place_of_lists_are_refused(tmp_path):
    path = changed(tmp_path / "a.parquet", muons=pa.array([None] * 9, pa.null()))
    with pytest.raises(FormatError, match="row 0: muons: expected a list, found null"):
        list(reader().rows(path))


def test_columns_that_are_not_read_are_noted(tmp_path):
    table = nested(*make_events(MULTIPLICITY)).append_column("weight", pa.array([1.0] * 9))
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[1] == ["columns that are not read: weight"]


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
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(tmp_path, names, hint):
    table = nested(*make_events(MULTIPLICITY)).rename_columns(names)
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FormatError, match=hint) as caught:
        reader().totals(tmp_path / "a.parquet")
    assert "source.reader" not in str(caught.value)


def test_a_giant_of_doubles_is_decoded_row_by_row(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "b.parquet", MULTIPLICITY)
    expected, _ = read(path)
    monkeypatch.setattr(parquet, "_DECODE_BYTES", 1)
    kind = pa.list_(FLOATS)
    events, _ = read(changed(tmp_path / "a.parquet", muons=lambda values: values.cast(kind)))
    assert np.array_equal(events.items, expected.items)
