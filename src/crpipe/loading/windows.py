"""Batches of one epoch: windows of shuffled events, decoded from pieces of row groups.

Open shards and an epoch's order come in; events come out, one batch at a time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crpipe.events.batch import Events, concatenate, offsets
from crpipe.events.shard_reader import event_columns, touched
from crpipe.loading.decoders import AtOnce, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.events.shard_reader import Shards
    from crpipe.loading.buffers import Buffers
    from crpipe.loading.decoders import Decoder, Decoding, Rooms
    from crpipe.loading.order import EpochOrder
    from crpipe.loading.window_items import Items


@dataclass(frozen=True, slots=True)
class _Window:
    """The events of one window, shuffled; the items follow their events batch by batch."""

    columns: dict[str, NDArray[Any]]
    multiplicity: NDArray[np.uint32]
    permutation: NDArray[np.int64]
    items: Items

    def take(self, low: int, high: int, out: NDArray[np.float32] | None) -> Events:
        """Gather the events at positions [low, high) of the shuffled window."""
        return Events(
            {name: column[low:high] for name, column in self.columns.items()},
            self.multiplicity[low:high],
            self.items.gather(self.permutation[low:high], out),
        )


class Memory(NamedTuple):
    """The memory that the epochs of a stream share.

    fixed: items of every event, if windows hold their items as columns, which meet in buffers; else 0.
    following: whether there are rooms to decode the next window while batches of this one are gathered.
    """

    rooms: Rooms
    buffers: Buffers
    fixed: int
    following: bool


class EpochReader:
    """Reads batches of one epoch, in ascending order and below number ``end``.

    Holds one window, or two where the memory allows. With a ``pool`` its threads decode.
    """

    def __init__(
        self,
        decoder: Decoder,
        pieces: NDArray[np.int64],
        order: EpochOrder,
        layout: Layout,
        *,
        end: int,
        pool: Executor | None,
        memory: Memory,
    ) -> None:
        self._decoder = decoder
        self._pieces = pieces
        self._order = order
        self._layout = layout
        self._end = int(np.searchsorted(order.windows, order.batches[end], side="left"))
        self._pool = pool
        self._memory = memory
        self._window: tuple[int, _Window] | None = None
        self._next: tuple[int, Future[tuple[Decoding, NDArray[np.int64]]]] | None = None

    def batch(self, number: int) -> Events:
        """Read batch ``number`` of all ranks' batches."""
        low, high = self._order.batches[number : number + 2].tolist()
        fixed = self._memory.fixed
        room = self._memory.buffers.take((high - low) * fixed) if fixed else None
        parts = []
        for window in range(*touched(self._order.windows, low, high)):
            start, stop = self._order.windows[window : window + 2].tolist()
            first, last = max(low, start), min(high, stop)
            if first < last:
                out = None if room is None else room[(first - low) * fixed : (last - low) * fixed]
                parts.append(self._read_window(window).take(first - start, last - start, out))
        return concatenate(parts or [_empty(self._layout)], room)

    def _read_window(self, window: int) -> _Window:
        if self._window is None or self._window[0] != window:
            self._window = None
            if self._next is not None and self._next[0] == window:
                decoding, permutation = self._next[1].result()
            else:
                decoding, permutation = self._start(window)
            self._next = None
            columns = decoding.columns, decoding.multiplicity
            self._window = window, _Window(*columns, permutation, decoding.decoded())
            if self._pool is not None and self._memory.following and window + 1 < self._end:
                self._next = window + 1, self._pool.submit(self._start, window + 1)
        return self._window[1]

    def _start(self, window: int) -> tuple[Decoding, NDArray[np.int64]]:
        """Start to decode a window, and shuffle the columns of its events."""
        low, high = self._order.windows[window : window + 2]
        decoding = self._decoder.start(list(self._parts(low, high)), self._pool or AtOnce())
        return decoding.shuffled(permutation := self._order.permutation(window)), permutation

    def _parts(self, low: int, high: int) -> Iterator[Slice]:
        """Find what to decode for the stream's events [low, high), in reading order."""
        order = self._order
        for position in range(*touched(order.starts, low, high)):
            piece = int(order.pieces[position])
            shard, group, first, _ = self._pieces[piece].tolist()
            start, stop = order.starts[position : position + 2].tolist()
            first += int(order.firsts[position]) - start
            yield Slice(piece, shard, group, first + max(int(low), start), first + min(int(high), stop))


def pieces_of(shards: Shards) -> NDArray[np.int64]:
    """Cut the shards into pieces: row groups, or runs of events that begin in one row group of items.

    Return [P, 4]: shard, row group, first event in it, and the end. Bulk shards need their footers only.
    Where one row group of events (outliers) owns several of items, the multiplicities show which events
    begin in which.
    """
    found = []
    for shard, pair in enumerate(shards.pairs):
        for group, events in enumerate(np.diff(pair.events.rows)):
            first, last = pair.item_groups[group : group + 2]
            borders = np.array([0, events])
            if last - first > 1:
                starts = offsets(shards.multiplicity(shard, group))[:-1] + pair.item_rows[first]
                borders = np.unique([0, *np.searchsorted(starts, pair.item_rows[first + 1 : last]), events])
            found += [(shard, group, low, high) for low, high in itertools.pairwise(borders) if low < high]
    return np.array(found, np.int64).reshape(-1, 4)


def _empty(layout: Layout) -> Events:
    columns = {name: np.empty(0, dtype) for name, dtype in event_columns(layout).items()}
    return Events(columns, np.empty(0, np.uint32), np.empty((0, len(layout.items)), np.float32))
