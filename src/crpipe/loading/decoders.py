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
from crpipe.events.shard_reader import REMEDY, touched
from crpipe.events.shard_streams import LARGE_ROWS, EventStream, RowStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.events.shard_reader import Group, Shards, Table
    from crpipe.loading.window_items import Items, Rooms


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
class Window:
    """The events of one window, shuffled; the tasks fill its items. columns, multiplicity: [N]."""

    columns: dict[str, NDArray[Any]]
    multiplicity: NDArray[np.uint32]
    items: Items
    tasks: list[Future[None]]

    def wait(self) -> Window:
        """Wait for the items; raise what a task raised, the first one first."""
        for task in self.tasks:
            task.result()
        return self


@dataclass(frozen=True, slots=True)
class Prepared:
    """The events of one window without their items.

    parts, groups: its slices in reading order, and their decoded groups.
    multiplicity: [N], in reading order. permutation: which of these events comes at each place.
    columns: [N] each, shuffled.
    """

    parts: Sequence[Slice]
    groups: list[Group]
    multiplicity: NDArray[np.uint32]
    permutation: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]

    def window(self, rooms: Rooms) -> Window:
        """Make room for the items."""
        items = rooms.window(self.multiplicity, self.permutation)
        return Window(self.columns, self.multiplicity.take(self.permutation), items, [])


class Decoder(Protocol):
    """Decodes pieces, or parts of them, given in reading order."""

    def prepare(self, parts: Sequence[Slice], permutation: NDArray[np.int64]) -> Prepared:
        """Decode the columns of the parts' events, also while the tasks of another window run."""

    def start(self, prepared: Prepared, tasks: Tasks) -> Window:
        """Start to decode the items of a window; the tasks of the last start must have ended."""

    def close(self) -> None:
        """Close all files; no task may be running."""


class _ItemRun:
    """Consecutive row groups of items, read from row ``skip`` on, each column by itself."""

    def __init__(
        self, table: Table, groups: tuple[int, int], skip: int, names: list[str], event_rows: int
    ) -> None:
        self._place = table, groups, skip
        self._names = names
        self._event_rows = event_rows
        self._streams: dict[int, RowStream] = {}

    def read(self, column: int, read: Callable[[RowStream, Sequence[int]], None], *, last: bool) -> None:
        """Let ``read`` take what it needs of a column; ``last``: then close its file."""
        if column not in self._streams:
            table, groups, skip = self._place
            self._streams[column] = RowStream(
                table,
                groups,
                [self._names[column]],
                skip,
                block_rows=LARGE_ROWS,
                event_rows=self._event_rows,
            )
        read(self._streams[column], [column])
        if last:
            self._streams.pop(column).close()

    def close(self) -> None:
        """Close all files."""
        for stream in self._streams.values():
            stream.close()


class WholeGroups:
    """Decodes row groups one after the other: for pieces that are read so.

    There is a task for each column of each part.
    """

    def __init__(self, shards: Shards, layout: Layout, rooms: Rooms) -> None:
        self._shards = shards
        self._names = [field.name for field in layout.items]
        self._rooms = rooms
        self._open: tuple[tuple[int, int, int], _ItemRun] | None = None

    def prepare(self, parts: Sequence[Slice], permutation: NDArray[np.int64]) -> Prepared:
        """Decode the columns of the parts' events."""
        groups = [self._shards.group(part.shard, part.group) for part in parts]
        return _prepared(self._shards, self._rooms.fixed, parts, groups, permutation)

    def start(self, prepared: Prepared, tasks: Tasks) -> Window:
        """Start to decode the items of a window."""
        window = prepared.window(self._rooms)
        parts = list(self._filled(prepared))
        reads, filled = [], 0
        for at, (part, low, high, end) in enumerate(parts, start=1):
            run = self._run(part, low, end)
            # Only what a window ends with may go on in the next one.
            last = at < len(parts) or high == end
            fill = partial(_fill, window.items, filled, filled + high - low)
            reads.append(partial(run.read, read=fill, last=last))
            filled += high - low
            if not last:
                self._open = (part.shard, part.group, high), run
        for column in range(len(self._names)):
            window.tasks.extend(tasks.submit(partial(read, column)) for read in reads)
        return window

    @staticmethod
    def _filled(prepared: Prepared) -> Iterator[tuple[Slice, int, int, int]]:
        """Give the parts that have items: the first row, the row after the last, and that of the group."""
        for part, group in zip(prepared.parts, prepared.groups, strict=True):
            low, high, end = group.item_rows[[part.first, part.last, -1]].tolist()
            if low < high:
                yield part, low, high, end

    def _run(self, part: Slice, low: int, end: int) -> _ItemRun:
        """Read on where the last window ended, if ``low`` is the next row; else open the rows [low, end)."""
        place, run = self._open or ((), None)
        self._open = None
        if run is not None:
            if place == (part.shard, part.group, low):
                return run
            run.close()
        table = self._shards.pairs[part.shard].items
        groups = touched(table.rows, low, end)
        skip = low - int(table.rows[groups[0]])
        return _ItemRun(table, groups, skip, self._names, max(self._rooms.fixed, 1))

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

    def prepare(self, parts: Sequence[Slice], permutation: NDArray[np.int64]) -> Prepared:
        """Decode the columns of the parts' events."""
        for part in parts:
            if part.piece not in self._streams:
                stream = EventStream(self._shards, self._layout, part.shard, part.group)
                self._streams[part.piece] = stream
        groups = [self._streams[part.piece].group for part in parts]
        return _prepared(self._shards, self._rooms.fixed, parts, groups, permutation)

    def start(self, prepared: Prepared, tasks: Tasks) -> Window:
        """Start to decode the items of a window."""
        window = prepared.window(self._rooms)
        steps: dict[int, list[Callable[[], None]]] = {part.piece: [] for part in prepared.parts}
        filled = 0
        for part, group in zip(prepared.parts, prepared.groups, strict=True):
            stream = self._streams[part.piece]
            count = int(group.item_rows[part.last] - group.item_rows[part.first])
            steps[part.piece].append(partial(self._read, stream, part.first, window.items, filled, count))
            filled += count
            if part.last == self._pieces[part.piece][-1]:
                steps[part.piece].append(self._streams.pop(part.piece).close)
        window.tasks.extend(tasks.submit(partial(_in_turn, each)) for each in steps.values())
        return window

    def _read(self, stream: EventStream, event: int, items: Items, filled: int, count: int) -> None:
        columns = range(len(self._layout.items))
        _fill(items, filled, filled + count, stream.items(event, self._rooms.fixed), columns)

    def close(self) -> None:
        """Close all files."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


def _prepared(
    shards: Shards, fixed: int, parts: Sequence[Slice], groups: list[Group], permutation: NDArray[np.int64]
) -> Prepared:
    """Join and shuffle the events of parts; raise ShardError where one has not the fixed number of items."""
    cuts = [group.cut(part.first, part.last) for group, part in zip(groups, parts, strict=True)]
    for part, (_, counts) in zip(parts, cuts, strict=True):
        if fixed and np.any(counts != fixed):
            raise ShardError(
                f"{shards.pairs[part.shard].events.path}: row group {part.group}: an event has not the "
                f"{fixed} items that the layout names; {REMEDY}"
            )
    columns = {name: np.concatenate([values[name] for values, _ in cuts]) for name in cuts[0][0]}
    return Prepared(
        parts,
        groups,
        np.concatenate([counts for _, counts in cuts]),
        permutation,
        {name: column.take(permutation) for name, column in columns.items()},
    )


def _fill(items: Items, first: int, last: int, stream: RowStream, columns: Sequence[int]) -> None:
    items.fill(stream, first, last, columns)


def _in_turn(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()
