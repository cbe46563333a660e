"""Spreads work over processes; results come in the order of the tasks, whatever the number of workers."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import sys
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
    keep_freed_memory()


def available() -> int:
    """Count the CPUs that this process may use."""
    return int(os.environ.get("SLURM_CPUS_PER_TASK", "0")) or len(os.sched_getaffinity(0))


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # mallopt(3)
_KEPT = 64 << 20


def keep_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system.

    Arrow's own allocator and glibc return the memory of each block of a few MB and request it again for the
    next one: the kernel then clears every page. Blocks above 64 MiB, from giant events, are still returned.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError):  # another C library has no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _KEPT)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _KEPT)


class _Hidden:
    """An import hook that hides pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def leave_pandas_out() -> None:
    """Keep pyarrow from importing pandas, unless pandas is already imported.

    pyarrow imports it when it first inspects a value: a quarter of a second and 50 MB in every process, for
    nothing. It tries only once. pandas can still be imported later, but pyarrow treats its objects as plain
    sequences (nulls are NaN) until it is first asked for a conversion to pandas.
    """
    if "pandas" in sys.modules:
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(hidden)
