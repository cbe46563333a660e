"""Batches of one epoch: windows of shuffled events, decoded from row groups while others are used.

Open shards and an epoch's order come in; events come out, one batch at a time.
"""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from crpipe.events.batch import Events, concatenate, derived, offsets
from crpipe.events.shard_reader import Shards, no_events, touched
from crpipe.loading.decoders import Decoder, InlineTasks, Prepared, Slice, Window, WindowBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.loading.order import EpochOrder


Item = TypeVar("Item")
Result = TypeVar("Result")
_END: Any = object()


class EpochReader:
    """Reads consecutive batches of one epoch, below number ``end``; holds one window.

    With a ``pool`` its threads decode, the columns of events a window ahead; with ``following`` also their
    items.
    """

    def __init__(
        self,
        decoder: Decoder,
        pieces: NDArray[np.int64],
        order: EpochOrder,
        layout: Layout,
        buffers: WindowBuffers,
        *,
        end: int,
        pool: Executor | None = None,
        following: bool = False,
    ) -> None:
        self._decoder = decoder
        self._pieces = pieces
        self._order = order
        self._layout = layout
        self._buffers = buffers
        self._end = int(np.searchsorted(order.windows, order.batches[end], side="left"))
        self._pool = pool
        self._following = following
        self._window: tuple[int, Window] | None = None
        # Always of the window after the last one that was started: batches are consecutive.
        self._next: Future[Window] | None = None
        self._prepared: Future[Prepared] | None = None

    def batch(self, number: int) -> Events:
        """Read batch ``number`` of all ranks' batches."""
        low, high = self._order.batches[number : number + 2].tolist()
        parts = []
        for window in range(*touched(self._order.windows, low, high)):
            start, stop = self._order.windows[window : window + 2].tolist()
            inside = slice(max(low, start) - start, min(high, stop) - start)
            if inside.start < inside.stop:
                events = self._read_window(window)
                columns = {name: column[inside] for name, column in events.columns.items()}
                items = events.items.part(inside.start, inside.stop)
                parts.append(derived(columns, events.multiplicity[inside], items))
        if not parts:
            return no_events(self._layout)
        return concatenate(parts, self._buffers.joined([part.items for part in parts]))

    def _read_window(self, window: int) -> Window:
        if self._window is None or self._window[0] != window:
            self._window = None
            started, self._next = self._next, None
            self._window = window, (started.result() if started else self._start(window)).wait()
            del started
            if self._following and self._pool is not None and self._has(window + 1):
                self._next = self._pool.submit(self._start, window + 1)
        return self._window[1]

    def _has(self, window: int) -> bool:
        """Whether there is a window of that number to read, with events in it."""
        return window < self._end and bool(self._order.windows[window] < self._order.windows[window + 1])

    def _start(self, window: int) -> Window:
        """Start to decode the items of a window, and then the columns of the events of the next one."""
        prepared, self._prepared = self._prepared, None
        events = prepared.result() if prepared else self._prepare(window)
        if self._pool is None:
            return self._decoder.start(events, InlineTasks())
        started = self._decoder.start(events, self._pool)
        if self._has(window + 1):
            self._prepared = self._pool.submit(self._prepare, window + 1)
        return started

    def _prepare(self, window: int) -> Prepared:
        parts = list(self._parts(*self._order.windows[window : window + 2]))
        return self._decoder.prepare(parts, self._order.permutation(window))

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
    pieces = []
    for shard, pair in enumerate(shards.pairs):
        for group, events in enumerate(np.diff(pair.events.rows)):
            first, last = pair.item_groups[group : group + 2]
            borders = np.array([0, events])
            if last - first > 1:
                starts = offsets(shards.multiplicity(shard, group))[:-1] + pair.item_rows[first]
                borders = np.unique([0, *np.searchsorted(starts, pair.item_rows[first + 1 : last]), events])
            pieces += [(shard, group, low, high) for low, high in itertools.pairwise(borders) if low < high]
    return np.array(pieces, np.int64).reshape(-1, 4)


def prefetched(
    source: Generator[Item], prepare: Callable[[Item], Result], *, depth: int, workers: int
) -> Generator[Result]:
    """Yield ``prepare(item)`` for each item of ``source``, in its order, prepared ahead by threads.

    One thread draws from ``source`` and ``workers`` threads call ``prepare``, at most ``depth`` items ahead
    of the consumer. Without workers the consumer's own thread calls it; with ``depth`` 0 there are no
    threads. An exception of either is raised in the consumer's thread, after the items before it. When this
    generator is closed, all threads have ended and ``source`` is closed.
    """
    with closing(source):
        if depth == 0:
            yield from map(prepare, source)
            return
        with ExitStack() as stack:
            reader = _pool(stack, 1, "loader")
            pool = _pool(stack, workers, "collate") if workers else None

            def prepare_next(read: Future[Any]) -> Any:
                item = read.result()
                return item if item is _END else prepare(item)

            def draw() -> Future[Any]:
                read = reader.submit(next, source, _END)
                return read if pool is None else pool.submit(prepare_next, read)

            waiting = deque(draw() for _ in range(depth))
            while (item := waiting.popleft().result()) is not _END:
                waiting.append(draw())
                yield item if pool else prepare(item)


def _pool(stack: ExitStack, threads: int, name: str) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads, name)
    # The others end before the reader, for whose results they may be waiting.
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool
