"""Blocks of readers: by name, in any type that loses nothing, and a damaged file has a name."""

import errno
import zlib
from importlib import import_module

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crpipe.author import Field, FormatError, Layout, Reader
from crpipe.events.batch import MisfitError
from runs import REPOSITORY


def layout(fixed=0):
    return Layout(
        item="hits",
        events=(Field("run", "uint32", "", 0, 9, "run"), Field("energy", "float32", "GeV", 0, 9, "energy")),
        items=(Field("x", "float32", "m", 0, 9, "x"), Field("y", "float32", "m", 0, 9, "y")),
        group=("run",),
        fixed=fixed,
    )


class Hits(Reader):
    layout = layout()


class Tiles(Reader):
    layout = layout(2)


EVENTS = {"run": [1, 2, 3], "energy": [0.5, 1.5, 2.5]}
ITEMS = {"x": [1.0, 2.0, 3.0, 4.0], "y": [5, 6, 7, 8]}
COUNTS = [2, 0, 2]


@pytest.mark.parametrize(
    "made", [list, np.array, pa.array, lambda each: pa.chunked_array([each[:1], each[1:]])]
)
def test_columns_have_the_types_and_the_order_of_the_layout(made):
    items = {name: made(ITEMS[name]) for name in ("y", "x")}
    block = Hits().block(made(COUNTS), {name: made(each) for name, each in EVENTS.items()}, items)
    assert [block.columns["run"].dtype, block.columns["energy"].dtype] == [np.uint32, np.float32]
    assert block.multiplicity.tolist() == COUNTS
    assert block.items.tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]]


def test_events_of_one_size_need_no_counts():
    events = {name: each[:2] for name, each in EVENTS.items()}
    block = Tiles().block(None, events, {name: np.reshape(each, (2, 2)) for name, each in ITEMS.items()})
    assert block.multiplicity.tolist() == [2, 2]
    assert block.items[:, 0].tolist() == ITEMS["x"]


def test_masked_values_are_no_values():
    masked = np.ma.array(ITEMS["x"], mask=[False, True, False, False])
    assert np.isnan(Hits().block(COUNTS, EVENTS, ITEMS | {"x": masked}).items[:, 0]).tolist() == [0, 1, 0, 0]
    with pytest.raises(MisfitError, match="column run: nan in row 1 of the block is no uint32"):
        Hits().block(COUNTS, EVENTS | {"run": np.ma.array([1, 2, 3], mask=[0, 1, 0])}, ITEMS)


@pytest.mark.parametrize(
    ("events", "items", "counts", "words"),
    [
        ({"run": [1, 2, -3]}, {}, COUNTS, "column run: -3 in row 2 of the block is no uint32"),
        ({"run": [1, 2, 2.5]}, {}, COUNTS, "column run: 2.5 in row 2"),
        ({"run": [1, 2, 1 << 40]}, {}, COUNTS, "column run: 1099511627776 in row 2"),
        ({"energy": [0.5, 1e39, 2.0]}, {}, COUNTS, r"column energy: 1e\+39 in row 1"),
        ({"energy": ["a", "b", "c"]}, {}, COUNTS, "column energy: expected float32, found <U1"),
        ({"enrgy": [1, 2, 3]}, {}, COUNTS, "event column enrgy: not in the layout .*did you mean energy"),
        ({}, {"z": [1]}, COUNTS, r"item column z: not in the layout \(x, y\)"),
        ({}, {"x": None}, COUNTS, "item column x: not given"),
        ({}, {"x": [1.0]}, COUNTS, "items: expected columns of one length"),
        ({}, {}, [2, 0, 1], "items: expected 3, the sum of the multiplicities, found 4"),
    ],
)
def test_what_does_not_fit_is_named(events, items, counts, words):
    items = {name: each for name, each in {**ITEMS, **items}.items() if each is not None}
    with pytest.raises(MisfitError, match=words):
        Hits().block(counts, {**EVENTS, **events}, items)


def test_values_that_are_no_numbers_stay_for_the_check_of_values():
    block = Hits().block(COUNTS, {**EVENTS, "energy": [np.nan, np.inf, 1]}, ITEMS)
    assert np.isnan(block.columns["energy"][0])
    assert np.isinf(block.columns["energy"][1])


class Failing(Hits):
    error: Exception

    def rows(self, path, tables):
        yield self.block(COUNTS, EVENTS, ITEMS)
        raise self.error

    def totals(self, path, tables):
        raise self.error


def both(error, tmp_path):
    reader = Failing()
    reader.error = error
    for read in (
        lambda: list(reader.rows(tmp_path / "a.hits", {})),
        lambda: reader.totals(tmp_path / "a.hits", {}),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
            read()
        yield caught.value


def test_an_error_of_a_damaged_file_names_it(tmp_path):
    of_zip = zlib.error("-3"), NotImplementedError("method"), OSError(errno.EINVAL, "place below 0")
    for error in (ValueError("bad"), KeyError("run"), EOFError(), OSError("thrift"), *of_zip):
        for found in both(error, tmp_path):
            assert isinstance(found, FormatError)
            assert "a.hits: cannot be read whole" in str(found)


def test_errors_of_the_machine_and_of_the_package_stay_what_they_are(tmp_path):
    for error in (OSError(errno.EIO, "disk"), TypeError("package"), FormatError("own words")):
        assert [*both(error, tmp_path)] == [error, error]


def test_the_example_compares_the_checksums_of_pages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    reader = import_module("jets.reading").ParquetJets()
    lists = pa.array([[1.0, 2.0]])
    path = tmp_path / "a.parquet"
    table = {"jet_id": [1], "label": [0], "jet_pt_gev": [300.0], "pt_gev": lists, "eta": lists, "phi": lists}
    pq.write_table(pa.table(table), path, write_page_checksum=True, compression="none")
    value = np.float64(300).tobytes()
    path.write_bytes(path.read_bytes().replace(value, np.float64(301).tobytes(), 1))
    with pytest.raises(FormatError, match="CRC checksum verification failed"):
        list(reader.rows(path, {}))
