"""Events with one large number of items: decoded as columns, a window ahead, gathered into buffers."""

import contextlib
import json
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest

from crpipe.core.errors import ShardError
from crpipe.events.batch import Events
from crpipe.events.layout import LARGE, SOURCE_FILE, SOURCE_ROW, Field, Layout
from crpipe.events.shard_writer import write_shard
from crpipe.loading import loader as loading
from crpipe.loading.decoders import Buffers, WholeGroups, WindowBuffers
from crpipe.loading.loader import START, Loader
from damage import flip

CELLS = Layout(
    "cells",
    (Field("number", "int64", "", 0, 1e9, ""),),
    tuple(Field(name, "float32", "", -1e9, 1e9, "") for name in ("light", "time_ns", "valid")),
    ("number",),
    fixed=LARGE,
)


def make(first, count):
    """Events (light, time_ns, valid) = (place in the epoch of each item, -event, 1)."""
    number = np.arange(first, first + count)
    light = np.arange(first * LARGE, (first + count) * LARGE, dtype=np.float32)
    items = np.stack([light, -np.repeat(number, LARGE), np.ones(len(light))], axis=1).astype(np.float32)
    columns = {"number": number, SOURCE_FILE: number.astype(np.uint32), SOURCE_ROW: number.astype(np.uint32)}
    return Events(columns, np.full(count, LARGE, np.uint32), items)


def write(folder, shards, first=0):
    """Write shards of row groups with so many events each."""
    folder.mkdir()
    entries = []
    for number, groups in enumerate(shards):
        starts = first + np.cumsum([0, *groups])
        blocks = [make(int(start), count) for start, count in zip(starts, groups, strict=False)]
        entries.append(write_shard(folder, f"train-{number:05d}", "train", CELLS, blocks))
        first = int(starts[-1])
    manifest = {"range": "0", "data": "0" * 16, "layout": CELLS.describe(), "threshold": LARGE}
    (folder / "manifest.json").write_text(
        json.dumps(manifest | {"shards": [entry.as_json() for entry in entries]})
    )
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("fixed")
    return [write(root / "a", [[30, 20], [25]]), write(root / "b", [[30, 13], [17]], first=75)]


@pytest.fixture
def own_folder(tmp_path):
    return write(tmp_path / "own", [[20, 20, 20, 20]])


def load(folders, **options):
    return Loader(folders, "train", **{"batch_events": 16, "seed": (1,), "epochs": 2} | options)


def read(loader, start=START):
    with contextlib.closing(loader.batches(start)) as stream:
        return list(stream)


def threads():
    return [each.name for each in threading.enumerate() if each.name.startswith(("loader", "decode"))]


def same(one, two):
    assert len(one) == len(two)
    for (events, cursor), (other, at) in zip(one, two, strict=True):
        assert cursor == at
        assert events.items.tobytes() == other.items.tobytes()
        assert events.columns.keys() == other.columns.keys()
        assert all(np.array_equal(events.columns[name], other.columns[name]) for name in events.columns)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("max_items", [None, 5 * LARGE])
def test_threads_give_the_batches_of_the_caller_resumed_anywhere(folders, count, ranks, max_items):
    for rank in range(ranks):
        options = {"rank": rank, "ranks": ranks, "max_items": max_items}
        whole = read(load(folders[:count], prefetch=0, **options))
        assert len(whole) > 4
        for prefetch in (1, 3):
            same(read(load(folders[:count], prefetch=prefetch, **options)), whole)
        for done in range(1, len(whole), 3):
            same(read(load(folders[:count], **options), whole[done - 1][1]), whole[done:])


def test_every_event_comes_with_its_own_items_that_stay(folders):
    batches = read(load(folders, epochs=1))  # all are held to the end
    numbers = np.concatenate([events.columns["number"] for events, _ in batches])
    assert sorted(numbers) == list(range(135))
    for events, _ in batches:
        assert events.items.flags.writeable
        assert np.shares_memory(events.items.reshape(len(events), LARGE, 3), events.items)
        expected = np.concatenate([make(number, 1).items for number in events.columns["number"]])
        assert np.array_equal(events.items, expected)


def test_windows_whose_batches_are_let_go_give_their_memory_to_later_ones(folders):
    owners = []
    loader = load(folders[0], batch_events=15, prefetch=0, epochs=5)
    with contextlib.closing(loader.batches()) as stream:
        for events, _ in stream:
            base = events.items
            while isinstance(base.base, np.ndarray):
                base = base.base
            owners.append(base.__array_interface__["data"][0])
            del events, base
    windows = 5 * (len(loader._order.epoch(0).windows) - 1)
    assert len(set(owners)) <= 3 < windows


def test_without_prefetch_there_are_no_threads(folders):
    with contextlib.closing(load(folders, prefetch=0).batches()) as stream:
        next(stream)
        assert threads() == []


def damage(folder, column):
    """Flip a bit in the last page of a column of the items."""
    path = folder / "train-00000.cells.parquet"
    metadata = pq.read_metadata(path).row_group(3).column(column)
    flip(path, metadata.data_page_offset + metadata.total_compressed_size - 3)


@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_damage_comes_after_the_batches_of_whole_windows(own_folder, column, prefetch):
    damage(own_folder, column)
    batches = []
    stream = load(own_folder, batch_events=10, epochs=1, prefetch=prefetch).batches()
    with (
        pytest.raises(ShardError, match="train-00000.cells.parquet: row group 3 cannot be read"),
        contextlib.closing(stream),
    ):
        batches.extend(stream)
    # The window of 20 events before the damaged one is complete, wherever the shuffle put row group 3.
    order = load(own_folder, batch_events=10, epochs=1)._order.epoch(0)
    assert len(batches) == 2 * order.pieces.tolist().index(3)
    assert threads() == []


def test_other_numbers_of_items_than_the_layout_names_are_found(tmp_path):
    folder = write(tmp_path / "own", [[4]])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["layout"]["fixed"] = LARGE + 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        ShardError, match=f"train-00000.events.parquet: row group 0: .* not the {LARGE + 1} items"
    ):
        read(load(folder))


def record_starts(monkeypatch):
    starts = []
    start = WholeGroups.start
    monkeypatch.setattr(WholeGroups, "start", lambda self, *given: starts.append(1) or start(self, *given))
    return starts


def test_at_most_one_window_is_decoded_ahead_and_none_past_the_end(own_folder, monkeypatch):
    starts = record_starts(monkeypatch)
    loader = load(own_folder, batch_events=10, epochs=1, ranks=2, rank=0, prefetch=1)
    windows = loader._order.epoch(0).windows
    assert len(windows) == 5
    done = 0
    with contextlib.closing(loader.batches()) as stream:
        for events, _ in stream:
            done += len(events)
            # The batch after this one may be gathered already, and one window after that one's decoded.
            current = np.searchsorted(windows, min(done + 10, 40))
            assert len(starts) <= current + 1
    assert len(starts) == 2  # the windows of the first rank
    with contextlib.ExitStack() as stack:
        reader = loader._reader(stack, 0, WindowBuffers(3, LARGE, 1))
        assert [reader._has(window) for window in range(4)] == [True, True, False, False]


def test_windows_that_are_too_large_are_not_decoded_ahead(own_folder, monkeypatch):
    starts = record_starts(monkeypatch)
    monkeypatch.setattr(loading, "AHEAD_ITEMS", 20 * LARGE)
    whole = read(load(own_folder, batch_events=10, epochs=1, prefetch=0))
    starts.clear()
    with contextlib.closing(load(own_folder, batch_events=10, epochs=1, prefetch=1).batches()) as stream:
        batches = [next(stream)]
        assert len(starts) == 1
        batches += stream
    same(batches, whole)
    assert len(starts) == 4


def address(array):
    return array.__array_interface__["data"][0]


def test_a_buffer_is_used_again_when_nobody_holds_it():
    buffers = Buffers(kept=2)
    first = buffers.take(100)
    assert (first.shape, first.dtype) == ((100,), np.float32)
    assert first.flags.writeable
    place = address(first)
    del first
    assert address(buffers.take(90)) == place


def test_a_buffer_in_use_is_not_given_again():
    buffers = Buffers(kept=4)
    first = buffers.take(10)
    views = first, first[2:5], first.reshape(2, 5)[:, 1:].T, memoryview(first), np.asarray(first[1:])
    for view in views:
        held, place = view, address(np.asarray(first))
        assert address(buffers.take(10)) != place
        del held
    kept = first[3:][1:].view(np.uint32)
    kept[:] = 7
    del first, view, views
    for _ in range(4):
        buffers.take(10)[:] = 0
    assert kept.tolist() == [7] * 6


def test_no_more_buffers_are_remembered_than_allowed():
    buffers = Buffers(kept=2)
    held = [buffers.take(10) for _ in range(5)]
    for number, each in enumerate(held):
        each[:] = number
    assert [each[0] for each in held] == [0, 1, 2, 3, 4]
    assert len(buffers._known) == 2


def test_a_larger_batch_replaces_a_free_buffer():
    buffers = Buffers(kept=1)
    buffers.take(10)
    assert len(buffers.take(1000)) == 1000
    assert len(buffers._known) == 1
