"""Batches of one epoch: windows of shuffled events, decoded from pieces of row groups.

Open shards and an epoch's order come in; events come out, one batch at a time.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from crpipe.events.batch import Events, concatenate, gather_items, item_view, offsets
from crpipe.events.shard_reader import event_columns, touched
from crpipe.events.shard_streams import EventStream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.events.shard_reader import Shards
    from crpipe.loading.order import EpochOrder


class Slice(NamedTuple):
    """Events [first, last) of a row group, all in one piece; ``piece``: its number."""

    piece: int
    shard: int
    group: int
    first: int
    last: int


class Decoder(Protocol):
    """Decodes pieces, or parts of them, given in reading order."""

    def read(self, parts: Sequence[Slice]) -> Events:
        """Decode the parts, end to end; the items are valid until the next call."""

    def close(self) -> None:
        """Close all files."""


class EpochReader:
    """Reads batches of one epoch, in ascending order; holds one window."""

    def __init__(
        self, decoder: Decoder, pieces: NDArray[np.int64], order: EpochOrder, layout: Layout
    ) -> None:
        self._decoder = decoder
        self._pieces = pieces
        self._order = order
        self._layout = layout
        self._window: tuple[int, _Window] | None = None

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
            events = self._decoder.read(list(self._parts(low, high)))
            self._window = window, _Window(events, self._order.permutation(window))
        return self._window[1]

    def _parts(self, low: int, high: int) -> Iterator[Slice]:
        """Find what to decode for the stream's events [low, high), in reading order."""
        order = self._order
        for position in range(*touched(order.starts, low, high)):
            piece = int(order.pieces[position])
            shard, group, first, _ = self._pieces[piece].tolist()
            start, stop = order.starts[position : position + 2].tolist()
            first += int(order.firsts[position]) - start
            yield Slice(piece, shard, group, first + max(int(low), start), first + min(int(high), stop))


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


class _Room:
    """The reused buffer of a window's items: new pages for each would cost as much as the gather."""

    def __init__(self, width: int) -> None:
        self._buffer = np.empty((0, width), np.float32)

    def take(self, items: int) -> NDArray[np.float32]:
        """Give a buffer of ``items`` rows; its content is left over from the last use."""
        if len(self._buffer) < items:
            self._buffer = np.empty((items + items // 8, self._buffer.shape[1]), np.float32)
        return self._buffer[:items]


class WholeGroups:
    """Decodes the whole row group of a piece at once: for pieces that are read one after the other."""

    def __init__(self, shards: Shards, layout: Layout) -> None:
        self._shards = shards
        self._room = _Room(len(layout.items))

    def read(self, parts: Sequence[Slice]) -> Events:
        """Decode the parts, end to end; the items are valid until the next call."""
        blocks, sources = [], []
        for _, shard, number, first, last in parts:
            group = self._shards.group(shard, number)
            blocks.append(group.cut(first, last))
            sources.append((shard, group.item_rows[first], group.item_rows[last]))
        items = self._room.take(sum(last - first for _, first, last in sources))
        filled = 0
        for shard, first, last in sources:
            self._shards.items(shard, first, last, items[filled : filled + last - first])
            filled += last - first
        return _joined(blocks, items)

    def close(self) -> None:
        """Do nothing: no file stays open."""


class SlicedGroups:
    """Decodes row groups a slice at a time: for pieces of several folders that are read beside each other.

    The slices of a piece come in ascending order; its files are open from its first slice to its last one.
    """

    def __init__(self, shards: Shards, pieces: NDArray[np.int64], layout: Layout) -> None:
        self._shards = shards
        self._layout = layout
        self._pieces = pieces
        self._streams: dict[int, EventStream] = {}
        self._room = _Room(len(layout.items))

    def read(self, parts: Sequence[Slice]) -> Events:
        """Decode the parts, end to end; the items are valid until the next call."""
        for part in parts:
            if part.piece not in self._streams:
                stream = EventStream(self._shards, self._layout, part.shard, part.group)
                self._streams[part.piece] = stream
        streams = [self._streams[part.piece] for part in parts]
        counts = [stream.items(part.first, part.last) for stream, part in zip(streams, parts, strict=True)]
        ends = offsets(np.array(counts, np.int64))
        items = self._room.take(int(ends[-1]))
        blocks = []
        for at, (stream, part) in enumerate(zip(streams, parts, strict=True)):
            blocks.append(stream.group.cut(part.first, part.last))
            stream.fill(part.first, items[ends[at] : ends[at + 1]])
            if part.last == self._pieces[part.piece][-1]:
                self._streams.pop(part.piece).close()
        return _joined(blocks, items)

    def close(self) -> None:
        """Close all files."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


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


def _joined(
    blocks: list[tuple[dict[str, NDArray[Any]], NDArray[np.uint32]]], items: NDArray[np.float32]
) -> Events:
    return Events(
        {name: np.concatenate([columns[name] for columns, _ in blocks]) for name in blocks[0][0]},
        np.concatenate([multiplicity for _, multiplicity in blocks]),
        items,
    )


def _empty(layout: Layout) -> Events:
    columns = {name: np.empty(0, dtype) for name, dtype in event_columns(layout).items()}
    return Events(columns, np.empty(0, np.uint32), np.empty((0, len(layout.items)), np.float32))
