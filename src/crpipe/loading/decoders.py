"""Decoders: they turn slices of row groups into the events of a window, with tasks that run side by side.

Slices in reading order come in; event columns come out at once, and items when all tasks have ended.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from crpipe.core.errors import ShardError
from crpipe.events.batch import offsets
from crpipe.events.shard_reader import REMEDY, touched
from crpipe.events.shard_streams import EventStream, RowStream
from crpipe.loading.window_items import ItemColumns, ItemRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.events.shard_reader import Group, Shards, Table
    from crpipe.loading.window_items import Items

BLOCK_ROWS = 1 << 16  # decoded at once of one column: with its page it stays in a core's cache


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
    """A window whose items are being decoded.

    columns, multiplicity: of its events, [N].
    room: [M, K] float32, where the tasks put the items of the events in reading order.
    items: what the room holds when all tasks have ended.
    """

    columns: dict[str, NDArray[Any]]
    multiplicity: NDArray[np.uint32]
    room: NDArray[np.float32]
    items: Items
    tasks: list[Future[None]] = field(default_factory=list)

    def shuffled(self, permutation: NDArray[np.int64]) -> Decoding:
        """Put the columns of the events in the order of ``permutation``; not their items."""
        columns = {name: column.take(permutation) for name, column in self.columns.items()}
        return replace(self, columns=columns, multiplicity=self.multiplicity.take(permutation))

    def decoded(self) -> Items:
        """Wait for the items; raise what a task raised, the first one first."""
        for task in self.tasks:
            task.result()
        return self.items


class Decoder(Protocol):
    """Decodes pieces, or parts of them, given in reading order."""

    def start(self, parts: Sequence[Slice], tasks: Tasks) -> Decoding:
        """Start to decode the parts, end to end; the tasks of the last start must have ended.

        The items are valid until as many starts later as there are rooms.
        """

    def close(self) -> None:
        """Close all files; no task may be running."""


class Rooms:
    """The reused buffers of windows: new pages for each window would cost as much as the gather.

    fixed: items of every event, if windows hold their items as ``ItemColumns``; else 0: ``ItemRows``.
    """

    def __init__(self, width: int, fixed: int, count: int) -> None:
        self._width = width
        self._fixed = fixed
        self._buffers = [np.empty(0, np.float32)] * count

    def window(self, found: Sequence[tuple[Group, Slice, Path]]) -> Decoding:
        """Join the events of slices, and give the room for their items; its content is left over.

        Each slice with its decoded group and the path of that; raise ShardError where an event has not the
        fixed number of items.
        """
        cuts = [group.cut(part.first, part.last) for group, part, _ in found]
        for (_, part, path), (_, multiplicity) in zip(found, cuts, strict=True):
            if self._fixed and np.any(multiplicity != self._fixed):
                raise ShardError(
                    f"{path}: row group {part.group}: an event has not the {self._fixed} items that the "
                    f"layout names; {REMEDY}"
                )
        multiplicity = np.concatenate([multiplicity for _, multiplicity in cuts])
        columns = {name: np.concatenate([columns[name] for columns, _ in cuts]) for name in cuts[0][0]}
        room = self._take(int(multiplicity.sum(dtype=np.int64)))
        items = ItemColumns(self._fixed, room) if self._fixed else ItemRows(multiplicity, room)
        return Decoding(columns, multiplicity, room, items)

    def _take(self, items: int) -> NDArray[np.float32]:
        """Give the buffer that was given longest ago, as [items, K]."""
        values = items * self._width
        buffer = self._buffers.pop(0)
        if len(buffer) < values:
            del buffer  # before the larger one is there
            buffer = np.empty(values + values // 8, np.float32)
        self._buffers.append(buffer)
        shape = (self._width, items) if self._fixed else (items, self._width)
        room = buffer[:values].reshape(shape)
        return room.T if self._fixed else room


class _ItemGroup:
    """A row group of items, read from row ``first`` on, each column by itself."""

    def __init__(self, table: Table, number: int, first: int, names: list[str]) -> None:
        self._table = table
        self._number = number
        self._first = first
        self._names = names
        self._streams: list[RowStream | None] = [None] * len(names)

    def fill(self, column: int, out: NDArray[np.float32], *, last: bool) -> None:
        """Copy the next rows of a column into its place in ``out``, [M, K]; ``last``: and close its file."""
        name = self._names[column]
        stream = self._streams[column]
        if stream is None:
            groups = self._number, self._number + 1
            stream = RowStream(self._table, groups, [name], self._first, BLOCK_ROWS)
            self._streams[column] = stream
        stream.fill(len(out), {name: out[:, column]})
        if last:
            stream.close()
            self._streams[column] = None

    def close(self) -> None:
        """Close all files."""
        for stream in self._streams:
            if stream is not None:
                stream.close()


class WholeGroups:
    """Decodes row groups one after the other: for pieces that are read so.

    There is a task for each column of each row group of items.
    """

    def __init__(self, shards: Shards, layout: Layout, rooms: Rooms) -> None:
        self._shards = shards
        self._names = [field.name for field in layout.items]
        self._rooms = rooms
        self._open: tuple[tuple[int, int, int], _ItemGroup] | None = None

    def start(self, parts: Sequence[Slice], tasks: Tasks) -> Decoding:
        """Start to decode the parts, end to end."""
        found, blocks = [], []
        for part in parts:
            group = self._shards.group(part.shard, part.group)
            found.append((group, part, self._shards.pairs[part.shard].events.path))
            low, high = group.item_rows[[part.first, part.last]].tolist()
            rows = self._shards.pairs[part.shard].item_rows
            for block in range(*touched(rows, low, high)):
                start, end = max(low, int(rows[block])), min(high, int(rows[block + 1]))
                blocks.append((part.shard, block, start, end))
        decoding = self._rooms.window(found)
        filled = 0
        for at, (shard, block, start, end) in enumerate(blocks):
            items = self._block(shard, block, start)
            out = decoding.room[filled : filled + end - start]
            filled += len(out)
            # Only what a window ends with may go on in the next one.
            last = at + 1 < len(blocks) or end == self._shards.pairs[shard].item_rows[block + 1]
            for column in range(len(self._names)):
                decoding.tasks.append(tasks.submit(partial(items.fill, column, out, last=last)))
            if not last:
                self._open = (shard, block, end), items
        return decoding

    def _block(self, shard: int, block: int, start: int) -> _ItemGroup:
        """Go on with the open row group of items, if its next row is ``start``; else open that one."""
        place, items = self._open or ((), None)
        self._open = None
        if items is not None:
            if place == (shard, block, start):
                return items
            items.close()
        table = self._shards.pairs[shard].items
        return _ItemGroup(table, block, start - int(table.rows[block]), self._names)

    def close(self) -> None:
        """Close all files."""
        if self._open is not None:
            self._open[1].close()


class SlicedGroups:
    """Decodes row groups a slice at a time: for pieces of several folders that are read beside each other.

    The slices of a piece come in ascending order; its files are open from its first slice to its last one.
    There is a task for each piece.
    """

    def __init__(self, shards: Shards, pieces: NDArray[np.int64], layout: Layout, rooms: Rooms) -> None:
        self._shards = shards
        self._layout = layout
        self._pieces = pieces
        self._streams: dict[int, EventStream] = {}
        self._rooms = rooms

    def start(self, parts: Sequence[Slice], tasks: Tasks) -> Decoding:
        """Start to decode the parts, end to end."""
        for part in parts:
            if part.piece not in self._streams:
                stream = EventStream(self._shards, self._layout, part.shard, part.group)
                self._streams[part.piece] = stream
        streams = [self._streams[part.piece] for part in parts]
        decoding = self._rooms.window(
            [
                (stream.group, part, self._shards.pairs[part.shard].events.path)
                for stream, part in zip(streams, parts, strict=True)
            ]
        )
        counts = [stream.items(part.first, part.last) for stream, part in zip(streams, parts, strict=True)]
        ends = offsets(np.array(counts, np.int64))
        steps: dict[int, list[Callable[[], None]]] = {part.piece: [] for part in parts}
        for at, (stream, part) in enumerate(zip(streams, parts, strict=True)):
            steps[part.piece].append(partial(stream.fill, part.first, decoding.room[ends[at] : ends[at + 1]]))
            if part.last == self._pieces[part.piece][-1]:
                steps[part.piece].append(self._streams.pop(part.piece).close)
        decoding.tasks.extend(tasks.submit(partial(_in_turn, each)) for each in steps.values())
        return decoding

    def close(self) -> None:
        """Close all files."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


def _in_turn(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()
