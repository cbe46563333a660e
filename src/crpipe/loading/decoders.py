"""Decoders: they turn slices of row groups into the events of a window, with tasks that run side by side.

Slices in reading order come in; event columns come out at once, and items when all tasks have ended.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from crpipe.core.errors import ShardError
from crpipe.events.batch import offsets
from crpipe.events.shard_reader import REMEDY, touched
from crpipe.events.shard_streams import EventStream
from crpipe.loading.window_items import ItemBlock, ItemColumns, ItemRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.events.shard_reader import Shards, Table
    from crpipe.loading.window_items import Items

    EventColumns = tuple[dict[str, NDArray[Any]], NDArray[np.uint32]]


class Slice(NamedTuple):
    """Events [first, last) of a row group, all in one piece; ``piece``: its number."""

    piece: int
    shard: int
    group: int
    first: int
    last: int


class Tasks(Protocol):
    """Runs tasks: a pool of threads, or ``AtOnce``."""

    def submit(self, task: Callable[[], None], /) -> Future[None]:
        """Start a task."""


class AtOnce:
    """Runs each task in the thread that submits it."""

    def submit(self, task: Callable[[], None], /) -> Future[None]:
        """Run a task; what it raises, this raises."""
        done: Future[None] = Future()
        task()
        done.set_result(None)
        return done


@dataclass(frozen=True, slots=True)
class Decoding:
    """A window whose items are being decoded: the columns of its events in reading order, and the tasks."""

    columns: dict[str, NDArray[Any]]
    multiplicity: NDArray[np.uint32]
    tasks: list[Future[None]]
    made: Callable[[], Items]

    def shuffled(self, permutation: NDArray[np.int64]) -> Decoding:
        """Put the columns of the events in the order of ``permutation``; not their items."""
        columns = {name: column.take(permutation) for name, column in self.columns.items()}
        return Decoding(columns, self.multiplicity.take(permutation), self.tasks, self.made)

    def items(self) -> Items:
        """Wait for the items; raise what a task raised, the first one first."""
        for task in self.tasks:
            task.result()
        return self.made()


class Decoder(Protocol):
    """Decodes pieces, or parts of them, given in reading order."""

    def start(self, parts: Sequence[Slice], tasks: Tasks) -> Decoding:
        """Start to decode the parts, end to end; the last start's tasks must have ended."""

    def close(self) -> None:
        """Close all files; no task may be running."""


class Rooms:
    """The buffers of windows in turn: new pages for each window would cost as much as the gather."""

    def __init__(self, width: int, count: int) -> None:
        self._buffers = [np.empty((0, width), np.float32)] * count

    def take(self, items: int) -> NDArray[np.float32]:
        """Give the buffer that was given longest ago, with ``items`` rows; its content is left over."""
        buffer = self._buffers.pop(0)
        if len(buffer) < items:
            width = buffer.shape[1]
            del buffer  # before the larger one is there
            buffer = np.empty((items + items // 8, width), np.float32)
        self._buffers.append(buffer)
        return buffer[:items]


class _ItemGroup:
    """One row group of items; remembers its decoded columns only if ``kept``."""

    def __init__(self, table: Table, number: int, names: list[str]) -> None:
        self._table = table
        self._number = number
        self._names = names
        self.columns: list[Any] = [None] * len(names)
        self.kept = False

    def column(self, index: int) -> NDArray[np.float32]:
        """Decode one column, or give it again."""
        values: NDArray[np.float32] | None = self.columns[index]
        if values is None:
            name = self._names[index]
            values = self._table.read(self._number, [name])[name]
            if self.kept:
                self.columns[index] = values
        return values

    def fill(self, index: int, first: int, last: int, out: NDArray[np.float32] | None) -> None:
        """Decode one column, and copy its rows [first, last) into ``out``, [last - first, K]."""
        values = self.column(index)
        if out is not None:
            out[:, index] = values[first:last]


class WholeGroups:
    """Decodes the whole row group of a piece at once: for pieces that are read one after the other.

    There is a task for each column of each row group of items. fixed: items of every event, if the columns
    are to stay apart; else 0.
    """

    def __init__(self, shards: Shards, layout: Layout, fixed: int, rooms: int) -> None:
        self._shards = shards
        self._names = [field.name for field in layout.items]
        self._fixed = fixed
        self._rooms = Rooms(len(self._names), rooms)
        self._last: tuple[tuple[int, int], _ItemGroup] | None = None

    def start(self, parts: Sequence[Slice], tasks: Tasks) -> Decoding:
        """Start to decode the parts, end to end."""
        cuts, blocks = [], []
        for _, shard, number, first, last in parts:
            group = self._shards.group(shard, number)
            cuts.append(
                _checked(group.cut(first, last), self._fixed, self._shards.pairs[shard].events, number)
            )
            blocks += self._blocks(shard, int(group.item_rows[first]), int(group.item_rows[last]))
        columns, multiplicity = _joined(cuts)
        if self._fixed:
            started = [
                tasks.submit(partial(group.fill, column, first, last, None))
                for group, first, last in blocks
                for column in range(len(self._names))
            ]
            made = partial(
                ItemColumns, self._fixed, [ItemBlock(group.columns, *rows) for group, *rows in blocks]
            )
            return Decoding(columns, multiplicity, started, made)
        ends = offsets(np.array([last - first for _, first, last in blocks], np.int64))
        items = self._rooms.take(int(ends[-1]))
        started = [
            tasks.submit(partial(group.fill, column, first, last, items[ends[at] : ends[at + 1]]))
            for at, (group, first, last) in enumerate(blocks)
            for column in range(len(self._names))
        ]
        return Decoding(columns, multiplicity, started, partial(ItemRows, multiplicity, items))

    def _blocks(self, shard: int, low: int, high: int) -> list[tuple[_ItemGroup, int, int]]:
        """Find the row groups of items that hold the rows [low, high), with the rows inside of each."""
        table = self._shards.pairs[shard].items
        found = []
        for number in range(*touched(table.rows, low, high)):
            start, end = table.rows[number : number + 2].tolist()
            if self._last is None or self._last[0] != (shard, number):
                self._last = (shard, number), _ItemGroup(table, number, self._names)
            group = self._last[1]
            group.kept = bool(self._fixed) or high < end  # the next part goes on with it
            found.append((group, max(low, start) - start, min(high, end) - start))
        return found

    def close(self) -> None:
        """Do nothing: no file stays open."""


class SlicedGroups:
    """Decodes row groups a slice at a time: for pieces of several folders that are read beside each other.

    The slices of a piece come in ascending order; its files are open from its first slice to its last one.
    There is a task for each piece. fixed: as for ``WholeGroups``.
    """

    def __init__(
        self, shards: Shards, pieces: NDArray[np.int64], layout: Layout, fixed: int, rooms: int
    ) -> None:
        self._shards = shards
        self._layout = layout
        self._pieces = pieces
        self._fixed = fixed
        self._streams: dict[int, EventStream] = {}
        self._rooms = Rooms(len(layout.items), rooms)

    def start(self, parts: Sequence[Slice], tasks: Tasks) -> Decoding:
        """Start to decode the parts, end to end."""
        for part in parts:
            if part.piece not in self._streams:
                stream = EventStream(self._shards, self._layout, part.shard, part.group)
                self._streams[part.piece] = stream
        streams = [self._streams[part.piece] for part in parts]
        pairs = list(zip(streams, parts, strict=True))
        cuts = [
            _checked(
                stream.group.cut(part.first, part.last),
                self._fixed,
                self._shards.pairs[part.shard].events,
                part.group,
            )
            for stream, part in pairs
        ]
        columns, multiplicity = _joined(cuts)
        found: list[list[ItemBlock]] = [[] for _ in parts]
        if self._fixed:
            jobs = [partial(_take, stream, part, found[at]) for at, (stream, part) in enumerate(pairs)]
            made: Callable[[], Items] = partial(_columns, self._fixed, found)
        else:
            ends = offsets(
                np.array([stream.items(part.first, part.last) for stream, part in pairs], np.int64)
            )
            items = self._rooms.take(int(ends[-1]))
            jobs = [
                partial(stream.fill, part.first, items[ends[at] : ends[at + 1]])
                for at, (stream, part) in enumerate(pairs)
            ]
            made = partial(ItemRows, multiplicity, items)
        of_piece: dict[int, list[Callable[[], None]]] = {}
        for part, job in zip(parts, jobs, strict=True):
            of_piece.setdefault(part.piece, []).append(job)
            if part.last == self._pieces[part.piece][-1]:
                of_piece[part.piece].append(self._streams.pop(part.piece).close)
        return Decoding(
            columns, multiplicity, [tasks.submit(partial(_in_turn, each)) for each in of_piece.values()], made
        )

    def close(self) -> None:
        """Close all files."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


def _take(stream: EventStream, part: Slice, found: list[ItemBlock]) -> None:
    found += [ItemBlock(*each) for each in stream.take(part.first, part.last)]


def _columns(fixed: int, found: list[list[ItemBlock]]) -> ItemColumns:
    return ItemColumns(fixed, [block for blocks in found for block in blocks])


def _in_turn(jobs: list[Callable[[], None]]) -> None:
    for job in jobs:
        job()


def _checked(cut: EventColumns, fixed: int, table: Table, group: int) -> EventColumns:
    """Return the events of a row group; raise ShardError where one has not ``fixed`` items."""
    if fixed and np.any(cut[1] != fixed):
        raise ShardError(
            f"{table.path}: row group {group} has an event without the {fixed} items that the layout names; "
            f"{REMEDY}"
        )
    return cut


def _joined(cuts: list[EventColumns]) -> EventColumns:
    columns = {name: np.concatenate([columns[name] for columns, _ in cuts]) for name in cuts[0][0]}
    return columns, np.concatenate([multiplicity for _, multiplicity in cuts])
