"""Works ahead of a consumer in background threads: in order, and only so many items ahead."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

Item = TypeVar("Item")
Made = TypeVar("Made")
_END: Any = object()


def ahead(
    source: Generator[Item], make: Callable[[Item], Made], *, depth: int, workers: int
) -> Generator[Made]:
    """Yield ``make(item)`` for each item of ``source``, in its order.

    One thread draws from ``source`` and ``workers`` threads call ``make``, at most ``depth`` items ahead of
    the consumer. Without workers the consumer's own thread calls ``make``; with ``depth`` 0 there are no
    threads. An exception of either is raised in the consumer's thread, after the
    items before it. When this generator is closed, all threads have ended and ``source`` is closed.
    """
    with closing(source):
        if depth == 0:
            yield from map(make, source)
            return
        with ExitStack() as stack:
            reader = _pool(stack, 1, "loader")
            makers = _pool(stack, workers, "collate") if workers else None

            def draw() -> Future[Any]:
                read = reader.submit(next, source, _END)
                return read if makers is None else makers.submit(lambda: _made(read.result(), make))

            waiting = deque(draw() for _ in range(depth))
            while (item := waiting.popleft().result()) is not _END:
                waiting.append(draw())
                yield item if makers else make(item)


def _made(item: Item, make: Callable[[Item], Made]) -> Made:
    made: Made = item if item is _END else make(item)
    return made


def _pool(stack: ExitStack, threads: int, name: str) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads, name)
    # Makers end before the reader, for whose results they may be waiting.
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool
