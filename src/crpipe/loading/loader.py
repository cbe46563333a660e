"""Batches from shards: shuffled, divided among ranks, resumable at any batch.

A folder of shards and a cursor come in; a stream of (events, cursor after them) goes out.
"""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from crpipe.core.errors import ShardError
from crpipe.events.batch import Cursor, Events, concatenate, gather_items, item_view, offsets
from crpipe.events.shard_manifest import read_layout
from crpipe.events.shard_reader import Shards, event_columns, folders_of, touched
from crpipe.loading.microbatch import micro_batches
from crpipe.loading.order import EpochOrder, Order, item_costs

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from crpipe.events.layout import Layout

__all__ = ["START", "Loader", "micro_batches"]

START = Cursor(0, 0)
Item = TypeVar("Item")


class Piece(NamedTuple):
    """A run of events inside one row group that is decoded as a whole; the unit of the epoch's shuffle."""

    shard: int
    group: int
    first: int
    last: int


class Loader:
    """The events of one role in folders of shards, as batches; ``layout`` is what the manifest describes.

    A batch holds at most ``batch_events`` events. All batches of an epoch, on all ranks, hold the same number
    of events to within one, so that the last batch is never much smaller than the others; a batch is empty
    only when there are fewer events than batches. With ``max_items``, for outliers, a batch ends earlier: all
    its events but the last hold at most ``max_items`` items together, and a larger event ends its batch.

    Each epoch visits every event once on exactly one rank, in an order that follows from ``seed``, the epoch,
    the shards and the size of a batch alone: the ranks' streams end to end are that of a single rank.
    """

    def __init__(
        self,
        folders: Path | Sequence[Path],
        role: str,
        *,
        batch_events: int,
        seed: tuple[int, ...],
        epochs: int,
        rank: int = 0,
        ranks: int = 1,
        prefetch: int = 2,
        max_items: int | None = None,
    ) -> None:
        """Open the shards; raise ShardError when one is missing, short, or not what the manifest says.

        Only sizes and footers are checked here; pages are checked against their checksums while reading.
        """
        folders = folders_of(folders)
        self._folder = folders[0]
        self._epochs = epochs
        self._rank = rank
        self._prefetch = prefetch
        self.layout = read_layout(folders[0])
        self._shards = Shards(folders, role, self.layout)
        self.events = sum(pair.events.footer.num_rows for pair in self._shards.pairs)
        self.items = sum(pair.items.footer.num_rows for pair in self._shards.pairs)
        self._pieces = list(_pieces(self._shards))
        sizes = np.array([piece.last - piece.first for piece in self._pieces], np.int64)
        if max_items is None:
            self._order = Order(seed, sizes, capacity=batch_events, ranks=ranks)
        else:
            cost = item_costs(self._shards.multiplicities(), batch_events, max_items)
            self._order = Order(seed, sizes, capacity=max_items, ranks=ranks, cost=cost)
        self.batches_per_epoch = self._order.batches_per_rank

    def batches(self, start: Cursor = START) -> Generator[tuple[Events, Cursor]]:
        """Yield batches, each with the cursor after it, from ``start`` to the end of the last epoch.

        A resumed stream equals the rest of an uninterrupted one, bit for bit, and decodes no more than the
        one or two windows that hold its first batch. One thread works ``prefetch`` batches ahead; it has
        ended when the generator is closed, so close it, and read one stream at a time:
        ``with contextlib.closing(loader.batches(cursor)) as stream``.
        Raise ShardError for a damaged shard, and for a cursor that lies outside of the epochs.
        """
        if start.batch > self.batches_per_epoch or start.epoch > self._epochs or min(start) < 0:
            raise ShardError(
                f"{self._folder}: epoch {start.epoch}, batch {start.batch} lies outside of {self._epochs} "
                f"epochs of {self.batches_per_epoch} batches; resume with the same shards and ranks"
            )
        return _ahead(self._stream(start), self._prefetch)

    def _stream(self, start: Cursor) -> Iterator[tuple[Events, Cursor]]:
        first = start.batch
        for epoch in range(start.epoch, self._epochs):
            reader = _EpochReader(self._shards, self._pieces, self._order.epoch(epoch), self.layout)
            for batch in range(first, self.batches_per_epoch):
                done = batch + 1
                cursor = Cursor(epoch, done) if done < self.batches_per_epoch else Cursor(epoch + 1, 0)
                yield reader.batch(self._rank * self.batches_per_epoch + batch), cursor
            first = 0


class _Window:
    """The decoded events of one window, shuffled; the items follow their events batch by batch."""

    def __init__(self, events: Events, permutation: NDArray[np.int64]) -> None:
        self._columns = {name: column.take(permutation) for name, column in events.columns.items()}
        self._multiplicity = events.multiplicity.take(permutation)
        self._items: pa.Array = item_view(events.offsets(), events.items)
        self._width = events.items.shape[1]
        self._permutation = permutation

    def take(self, low: int, high: int) -> Events:
        """Gather the events at positions [low, high) of the shuffled window."""
        return Events(
            {name: column[low:high] for name, column in self._columns.items()},
            self._multiplicity[low:high],
            gather_items(self._items, self._permutation[low:high], self._width),
        )


class _EpochReader:
    """Reads batches of one epoch; holds one window."""

    def __init__(self, shards: Shards, pieces: list[Piece], order: EpochOrder, layout: Layout) -> None:
        self._shards = shards
        self._pieces = pieces
        self._order = order
        self._layout = layout
        self._window: tuple[int, _Window] | None = None
        self._buffer = np.empty((0, len(layout.items)), np.float32)

    def batch(self, number: int) -> Events:
        """Read batch ``number`` of all ranks' batches."""
        low, high = self._order.batches[number : number + 2]
        parts = []
        for window in range(*touched(self._order.windows, low, high)):
            start, stop = self._order.windows[window : window + 2]
            inside = max(low, start) - start, min(high, stop) - start
            if inside[0] < inside[1]:
                parts.append(self._read_window(window).take(*inside))
        return concatenate(parts or [_empty(self._layout)])

    def _read_window(self, window: int) -> _Window:
        if self._window is None or self._window[0] != window:
            self._window = None
            low, high = self._order.windows[window : window + 2]
            self._window = window, _Window(self._read(low, high), self._order.permutation(window))
        return self._window[1]

    def _read(self, low: int, high: int) -> Events:
        """Decode the stream's events [low, high) in reading order."""
        blocks, sources = [], []
        for position in range(*touched(self._order.starts, low, high)):
            piece = self._pieces[self._order.pieces[position]]
            start = self._order.starts[position] - piece.first
            first, last = max(low - start, piece.first), min(high - start, piece.last)
            group = self._shards.group(piece.shard, piece.group)
            blocks.append(group.cut(first, last))
            sources.append((piece.shard, group.item_rows[first], group.item_rows[last]))
        items = self._room(sum(last - first for _, first, last in sources))
        filled = 0
        for shard, first, last in sources:
            self._shards.items(shard, first, last, items[filled : filled + last - first])
            filled += last - first
        return Events(
            {name: np.concatenate([columns[name] for columns, _ in blocks]) for name in blocks[0][0]},
            np.concatenate([multiplicity for _, multiplicity in blocks]),
            items,
        )

    def _room(self, items: int) -> NDArray[np.float32]:
        """Return the reused buffer of the window: new pages for each would cost as much as the gather."""
        if len(self._buffer) < items:
            self._buffer = np.empty((items + items // 8, self._buffer.shape[1]), np.float32)
        return self._buffer[:items]


def _empty(layout: Layout) -> Events:
    columns = {name: np.empty(0, dtype) for name, dtype in event_columns(layout).items()}
    return Events(columns, np.empty(0, np.uint32), np.empty((0, len(layout.items)), np.float32))


def _pieces(shards: Shards) -> Iterator[Piece]:
    """Cut the shards into pieces: row groups, or runs of events that begin in one row group of items.

    Bulk shards need their footers only. Where one row group of events (outliers) owns several of items, the
    multiplicities show which events begin in which.
    """
    for shard, pair in enumerate(shards.pairs):
        rows = np.diff(pair.events.rows())
        for group, events in enumerate(rows):
            first, last = pair.item_groups[group : group + 2]
            borders = np.array([0, events])
            if last - first > 1:
                starts = offsets(shards.multiplicity(shard, group))[:-1] + pair.item_rows[first]
                borders = np.unique([0, *np.searchsorted(starts, pair.item_rows[first + 1 : last]), events])
            for low, high in itertools.pairwise(borders):
                if low < high:
                    yield Piece(shard, group, int(low), int(high))


def _ahead(source: Iterator[Item], depth: int) -> Generator[Item]:
    """Draw ``depth`` items ahead in one background thread, which has ended when this generator is closed."""
    if depth == 0:
        yield from source
        return
    pool = ThreadPoolExecutor(1, "loader")
    try:
        waiting = deque(pool.submit(next, source, None) for _ in range(depth))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, source, None))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
