"""Decoders: they turn slices of row groups into the events of a window, with tasks that run side by side.

Slices in reading order come in; event columns come out at once, and items when all tasks have ended.
"""

from __future__ import annotations

import weakref
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crpipe.core.errors import ShardError
from crpipe.events.batch import gather_items, item_view, offsets
from crpipe.events.shard_reader import REMEDY, Group, Shards, touched
from crpipe.events.shard_streams import LARGE_ROWS, EventStream, RowStream
from crpipe.loading.order import LEAST_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout


AHEAD_ITEMS = 1 << 23  # a window of so many is not decoded before the one before it is handed out


class Slice(NamedTuple):
    """Events [first, last) of a row group, all in one piece; ``piece``: its number."""

    piece: int
    shard: int
    group: int
    first: int
    last: int


class InlineTasks:
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

    def window(self, buffers: WindowBuffers) -> Window:
        """Return the window with memory for its items."""
        items = buffers.window(self.multiplicity, self.permutation)
        return Window(self.columns, self.multiplicity.take(self.permutation), items, [])


class _ItemRun:
    """Consecutive row groups of items, each column read by itself; ``open_stream`` opens one at the start."""

    def __init__(self, open_stream: Callable[[int], RowStream]) -> None:
        self._open_stream = open_stream
        self._streams: dict[int, RowStream] = {}

    def read(self, column: int, read: Callable[[RowStream, Sequence[int]], None], *, last: bool) -> None:
        """Call ``read`` with the stream of a column; ``last``: then close its file."""
        if column not in self._streams:
            self._streams[column] = self._open_stream(column)
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

    def __init__(self, shards: Shards, layout: Layout, buffers: WindowBuffers) -> None:
        self._shards = shards
        self._names = [field.name for field in layout.items]
        self._buffers = buffers
        self._open: tuple[tuple[int, int, int], _ItemRun] | None = None

    def prepare(self, parts: Sequence[Slice], permutation: NDArray[np.int64]) -> Prepared:
        """Decode the columns of the parts' events."""
        groups = [self._shards.group(part.shard, part.group) for part in parts]
        return _prepared(self._shards, self._buffers.fixed, parts, groups, permutation)

    def start(self, prepared: Prepared, tasks: Tasks) -> Window:
        """Start to decode the items of a window."""
        window = prepared.window(self._buffers)
        parts = list(self._filled(prepared))
        reads, filled = [], 0
        for at, (part, low, high, end) in enumerate(parts, start=1):
            run = self._run(part, low, end)
            # Only what a window ends with may go on in the next one.
            last = at < len(parts) or high == end
            fill = partial(window.items.fill, filled, filled + high - low)
            reads.append(partial(run.read, read=fill, last=last))
            filled += high - low
            if not last:
                self._open = (part.shard, part.group, high), run
        for column in range(len(self._names)):
            window.tasks.extend(tasks.submit(partial(read, column)) for read in reads)
        return window

    @staticmethod
    def _filled(prepared: Prepared) -> Iterator[tuple[Slice, int, int, int]]:
        """Yield the parts that have items: the first row, the row after the last, and that of the group."""
        for part, group in zip(prepared.parts, prepared.groups, strict=True):
            low, high, end = group.item_rows[[part.first, part.last, -1]].tolist()
            if low < high:
                yield part, low, high, end

    def _run(self, part: Slice, low: int, end: int) -> _ItemRun:
        """Read on where the last window ended, if ``low`` is the next row; else open the rows [low, end)."""
        position, run = self._open or ((), None)
        self._open = None
        if run is not None:
            if position == (part.shard, part.group, low):
                return run
            run.close()
        table = self._shards.pairs[part.shard].items
        groups = touched(table.rows, low, end)
        skip = low - int(table.rows[groups[0]])
        event_rows = max(self._buffers.fixed, 1)

        def open_stream(column: int) -> RowStream:
            names = [self._names[column]]
            return RowStream(table, groups, names, skip, block_rows=LARGE_ROWS, event_rows=event_rows)

        return _ItemRun(open_stream)

    def close(self) -> None:
        """Close all files."""
        if self._open is not None:
            self._open[1].close()


class SlicedGroups:
    """Decodes row groups a slice at a time: for pieces of several folders that are read beside each other.

    The slices of a piece come in ascending order; its files are open from its first slice to its last one.
    There is a task for each piece.
    """

    def __init__(
        self, shards: Shards, pieces: NDArray[np.int64], layout: Layout, buffers: WindowBuffers
    ) -> None:
        self._shards = shards
        self._layout = layout
        self._pieces = pieces
        self._streams: dict[int, EventStream] = {}
        self._buffers = buffers

    def prepare(self, parts: Sequence[Slice], permutation: NDArray[np.int64]) -> Prepared:
        """Decode the columns of the parts' events."""
        for part in parts:
            if part.piece not in self._streams:
                stream = EventStream(self._shards, self._layout, part.shard, part.group)
                self._streams[part.piece] = stream
        groups = [self._streams[part.piece].group for part in parts]
        return _prepared(self._shards, self._buffers.fixed, parts, groups, permutation)

    def start(self, prepared: Prepared, tasks: Tasks) -> Window:
        """Start to decode the items of a window."""
        window = prepared.window(self._buffers)
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
        items.fill(filled, filled + count, stream.items(event, self._buffers.fixed), columns)

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


def _in_turn(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()


class Buffers:
    """Hands out arrays of float32, and their memory again when nobody holds a view of them any more.

    Fresh memory of tens of megabytes for each window would cost as much as filling it. At most ``kept``
    buffers are remembered, those in use included.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._known: list[tuple[NDArray[np.float32], weakref.ref[Any]]] = []

    def take(self, values: int) -> NDArray[np.float32]:
        """Return an array of ``values`` float32; its content is left over from an earlier use.

        It belongs to the caller as long as the array, or any view of it, exists.
        """
        free = [at for at, (_, user) in enumerate(self._known) if user() is None]
        fits = [at for at in free if len(self._known[at][0]) >= values]
        if fits:
            buffer, _ = self._known.pop(fits[0])
        else:
            # One that is too small goes first, else the oldest: its user may hold it for good.
            if len(self._known) >= self._kept:
                self._known.pop(free[0] if free else 0)
            buffer = np.empty(values + values // 8, np.float32)  # the next may be larger
        # All views of this array refer to it and not to the buffer, which it sees as plain bytes.
        array = np.frombuffer(buffer.data, np.float32, values)
        self._known.append((buffer, weakref.ref(array)))
        return array


class ItemRows:
    """Events of any size, in reading order. Arrow gathers them at memcpy speed, batch by batch."""

    def __init__(
        self, multiplicity: NDArray[np.uint32], permutation: NDArray[np.int64], array: NDArray[np.float32]
    ) -> None:
        self._permutation = permutation
        self._array = array
        self._view = item_view(offsets(multiplicity), array)

    def fill(self, first: int, last: int, stream: RowStream, columns: Sequence[int]) -> None:
        """Fill the items [first, last) of the window with the next rows of a stream of ``columns``."""
        stream.fill(last - first, [self._array[first:last, column] for column in columns])

    def part(self, low: int, high: int) -> NDArray[np.float32]:
        """Return the items of the shuffled events [low, high), end to end: [M, K], C-contiguous."""
        return gather_items(self._view, self._permutation[low:high], self._array.shape[1])


class ItemColumns:
    """Events of ``fixed`` items each, every column by itself; each event is decoded to its shuffled place.

    So nothing is left to do for a batch, and nothing puts the columns side by side: that would cost more than
    half as much as decoding, and who needs single columns would have to take them apart again.
    """

    def __init__(self, fixed: int, permutation: NDArray[np.int64], array: NDArray[np.float32]) -> None:
        """array: [K, N, fixed]."""
        self._fixed = fixed
        self._rank = np.empty_like(permutation)  # of each event, in reading order, among the shuffled ones
        self._rank[permutation] = np.arange(len(permutation))
        self._array = array

    def fill(self, first: int, last: int, stream: RowStream, columns: Sequence[int]) -> None:
        """Fill the items [first, last) of the window with the next rows of a stream of ``columns``.

        The interval and the stream's blocks hold whole events.
        """
        targets = [self._array[column] for column in columns]
        done = first // self._fixed
        for values, low, high in stream.take(last - first):
            places = self._rank[done : done + (high - low) // self._fixed]
            for target, column in zip(targets, values, strict=True):
                target[places] = column[low:high].reshape(-1, self._fixed)
            done += len(places)

    def part(self, low: int, high: int) -> NDArray[np.float32]:
        """Return the items of the shuffled events [low, high), end to end: [M, K], a view of columns."""
        return self._array[:, low:high].reshape(len(self._array), -1, copy=False).T


class WindowBuffers:
    """Makes the memory of windows, and uses it again.

    fixed: items of every event, if windows hold their items as columns; else 0, and they hold them as rows.
    """

    def __init__(self, width: int, fixed: int, prefetch: int) -> None:
        """prefetch: batches that wait while others are made."""
        self.fixed = fixed
        self._width = width
        # This window, the next one, and those of batches that wait or that the consumer has. Rows are copied
        # into batches: there is one window.
        self._windows = Buffers(3 + prefetch // LEAST_WINDOW)
        self._batches = Buffers(2 + prefetch // LEAST_WINDOW)
        self._rows = np.empty((0, width), np.float32)

    def window(self, multiplicity: NDArray[np.uint32], permutation: NDArray[np.int64]) -> Items:
        """Return memory for the items of a window's events; rows of an earlier window are lost.

        multiplicity: of the events in reading order. permutation: which of them comes at each place.
        """
        if self.fixed:
            array = self._windows.take(self._width * len(multiplicity) * self.fixed)
            shape = self._width, len(multiplicity), self.fixed
            return ItemColumns(self.fixed, permutation, array.reshape(shape))
        items = int(multiplicity.sum(dtype=np.int64))
        if len(self._rows) < items:
            self._rows = np.empty((0, self._width), np.float32)  # before the larger one is there
            self._rows = np.empty((items + items // 8, self._width), np.float32)
        return ItemRows(multiplicity, permutation, self._rows[:items])

    def joined(self, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Join the items of parts of a batch, end to end: [M, K]; a single one is not copied."""
        if len(parts) == 1 or not self.fixed:
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        items = sum(map(len, parts))
        columns = self._batches.take(self._width * items).reshape(self._width, items)
        return np.concatenate([part.T for part in parts], axis=1, out=columns).T


# What runs tasks.
Tasks = Executor | InlineTasks
# The items of a window's events in memory. Decoders fill them in reading order, in tasks that run side by
# side; they are read as shuffled.
Items = ItemRows | ItemColumns
# Decodes pieces, or parts of them, given in reading order. Only ``prepare`` may be called while tasks run:
# those of the last start must have ended before another ``start``, and before ``close``.
Decoder = WholeGroups | SlicedGroups
