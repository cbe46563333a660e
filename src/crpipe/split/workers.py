"""Spreads work over processes; results come in the order of the tasks, whatever the number of workers."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from crpipe.core.errors import CrpipeError
from crpipe.core.signals import follow_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """Yield ``function(task)`` for each task, in the order of the tasks; the first error ends the work.

    With one worker everything runs in this process, otherwise in spawned ones, which end when this one dies.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)
    try:
        yield from pool.map(function, tasks)
    except BrokenProcessPool as error:
        raise CrpipeError(
            "a worker process was killed, most likely for lack of memory; give the job more memory or set "
            "split.workers lower, then run the same command again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    follow_parent()
    reuse_freed_memory()


def available() -> int:
    """Count the CPUs that this process may use."""
    return int(os.environ.get("SLURM_CPUS_PER_TASK", "0")) or len(os.sched_getaffinity(0))


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # mallopt(3)
_KEPT = 64 << 20
_RETURNED = 256 << 20  # bytes of events after which freed memory is returned


def reuse_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system: 8 % less CPU time of a split.

    Arrow's own allocator and glibc return the memory of each block of a few MB and request it again for the
    next one: the kernel then clears every page. Blocks above 64 MiB are still returned. docs/performance.md
    has the figures.
    """
    gc.freeze()  # what was imported is not looked through again and again
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError):  # another C library has no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _KEPT)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _KEPT)


class FreedMemory:
    """Returns freed memory to the system from time to time, however large a raw file is.

    A few kB stay in memory for each block of events. They take the place where the block before was, so that
    the next block does not fit there: a file of 3 GB took 3 GB, most of it free.
    """

    def __init__(self) -> None:
        self._passed = 0

    def passed(self, size: int) -> None:
        """Count the bytes of one more block."""
        self._passed += size
        if self._passed >= _RETURNED:
            self._passed = 0
            return_freed_memory()


def return_freed_memory() -> None:
    """Return all freed memory to the system."""
    with contextlib.suppress(AttributeError):  # another C library has no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
