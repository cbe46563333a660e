"""Readers of other people: what they do wrong is named, with the file and the column."""

import errno
import gc
import itertools
import re
import sys

import numpy as np
import pytest

from crpipe.campaign.readers import ReaderChoice, WritesRaw, open_reader
from crpipe.core.errors import ConfigError, DiskError, FormatError, PluginError
from crpipe.events.batch import concatenate
from crpipe.events.layout import Layout
from named import READERS
from plain_reader import HITS, make_hits, write_events

BROKEN = "plain_reader:Broken"
WRONG = {
    "type": "expected crpipe.events.batch.Events, found tuple",
    "missing": "column run: missing; the layout has run, number, good",
    "extra": "column energy: not in the layout",
    "dtype": "column run: expected int32 [3], found int64 [3]",
    "byte order": "column run: expected int32 [3], found >i4 [3]",
    "length": "column run: expected [3], found int32 [2]",
    "list": "column run: expected [3], found list",
    "multiplicity": "multiplicity: expected uint32 [3], found int64 [3]",
    "sum": "items: expected 6, the sum of the multiplicities, found 5",
    "items": "items: expected float32 [M, K], found float64 [6, 2]",
    "width": "hits: expected float32 [6, 2], found float32 [6, 1]",
}


@pytest.fixture
def path(tmp_path):
    return write_events(tmp_path / "a.npz", make_hits([2, 0, 4, 1]))


def test_every_event_in_order(path):
    reader = ReaderChoice("plain_reader:Plain").open()
    events = concatenate(list(reader.rows(path)))
    expected = make_hits([2, 0, 4, 1])
    assert np.array_equal(events.items, expected.items)
    assert all(np.array_equal(events.columns[name], column) for name, column in expected.columns.items())
    assert reader.totals(path) == (4, 7)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_block_names_file_reader_and_column(path, wrong):
    reader = ReaderChoice(BROKEN, {"wrong": wrong}).open()
    text = f"{path}: the reader {BROKEN} yielded a wrong block: {WRONG[wrong]}"
    with pytest.raises(PluginError, match=re.escape(text)):
        list(reader.rows(path))


def test_any_exception_of_a_reader_names_the_file_and_its_place(path):
    reader = ReaderChoice(BROKEN, {"wrong": "raises"}).open()
    place = (
        re.escape(f"{path}: the reader {BROKEN} failed") + r".*KeyError: 'energy_gev' \(support/plain_reader"
    )
    with pytest.raises(PluginError, match=place):
        list(reader.rows(path))
    with pytest.raises(PluginError, match=r"a\.npz: .*ZeroDivisionError: no totals"):
        ReaderChoice(BROKEN, {"wrong": "totals"}).open().totals(path)


def test_an_exception_of_the_consumer_is_its_own(path):
    reader = ReaderChoice("plain_reader:Plain").open()
    with pytest.raises(ZeroDivisionError):
        [1 / 0 for _ in reader.rows(path)]
    path.write_bytes(b"no")
    with pytest.raises(FormatError, match=r"a\.npz: no \.npz file"):
        list(reader.rows(path))


def test_a_file_that_cannot_be_closed_where_nobody_wants_the_rest_loses_nothing(path, monkeypatch):
    def rows(_reader, _path, _tables):
        try:
            yield make_hits([2])
            yield make_hits([1])
        finally:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("plain_reader.Plain.rows", rows)
    unraised = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    reader = ReaderChoice("plain_reader:Plain").open()
    assert [len(block) for block in itertools.islice(reader.rows(path), 1)] == [1]
    gc.collect()
    assert unraised == []
    with pytest.raises(DiskError):
        list(reader.rows(path))


def test_items_become_contiguous(path):
    events = make_hits([2, 3])
    write_events(path, events)
    reader = ReaderChoice("plain_reader:Plain").open()
    reader.reader._events = lambda _: type(events)(
        events.columns, events.multiplicity, np.asfortranarray(events.items)
    )
    (found,) = reader.rows(path)
    assert found.items.flags.c_contiguous
    assert np.array_equal(found.items, events.items)


def test_events_of_a_fixed_size_must_have_it(tmp_path):
    layout = Layout(HITS.item, HITS.events, HITS.items, HITS.group, fixed=2)
    choice = ReaderChoice("plain_reader:Plain", {"layout": layout.describe()})
    path = write_events(tmp_path / "a.npz", make_hits([2, 2, 2, 2, 3]))
    with pytest.raises(FormatError, match=r"a\.npz: row 4: expected 2 hits in each event, found 3"):
        list(choice.open().rows(path))


def test_a_table_that_is_missing_is_named_with_its_key(tmp_path):
    with pytest.raises(
        ConfigError, match=r"source\.tables: the table geometry is missing.*\{geometry: URI\}"
    ):
        ReaderChoice("plain_reader:Geometric").open()
    table = tmp_path / "geometry"
    table.write_text("5")
    path = write_events(tmp_path / "a.npz", make_hits([1]))
    (events,) = ReaderChoice("plain_reader:Geometric", {}, {"geometry": table}).open().rows(path)
    assert events.items[0, 0] == make_hits([1]).items[0, 0] + 5


@pytest.mark.parametrize("attribute", ["item", "group"])
def test_a_layout_that_cannot_be_stored_is_refused_before_anything_is_read(attribute):
    layout = HITS.describe() | {attribute: ""}
    with pytest.raises(ConfigError, match="source.reader: plain_reader:Plain"):
        open_reader("plain_reader:Plain", {"layout": layout})


def test_a_layout_of_another_type_is_refused(monkeypatch):
    monkeypatch.setattr("plain_reader.HITS", "hits")
    with pytest.raises(ConfigError, match=r"plain_reader:Plain\.layout is no crpipe\.events\.layout\.Layout"):
        open_reader("plain_reader:Plain", {})


def test_expectations_of_another_type_are_refused(monkeypatch):
    monkeypatch.setattr("plain_reader.Plain.expectations", {"typical": {}}, raising=False)
    with pytest.raises(ConfigError, match=r"plain_reader:Plain\.expectations: expected .*, found dict"):
        open_reader("plain_reader:Plain", {})


def test_only_some_readers_write_raw_files():
    assert all(isinstance(open_reader(name, {}), WritesRaw) for name in READERS.values())
    assert not isinstance(open_reader("plain_reader:Plain", {}), WritesRaw)
