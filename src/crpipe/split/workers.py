"""Spreads work over processes; results come in the order of the tasks, whatever the number of workers."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from crpipe.campaign.split_record import NOTE, left_notes
from crpipe.core.errors import CrpipeError, DiskError, HostMemoryError, PluginError
from crpipe.core.signals import follow_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path

Task = TypeVar("Task")
Result = TypeVar("Result")
_NOTES: list[memoryview] = []  # that of this process; a store into it costs no call of the system


def in_order(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int,
    *,
    notes: Path | None = None,
    spawn: bool = False,
) -> Generator[Result]:
    """Yield ``function(task)`` for each task, in the order of the tasks; the first error ends the work.

    With one worker everything runs in this process, otherwise in spawned ones, which end when this one dies.
    notes: a file in which each process notes what it works on, for the error about one that a signal ends.
    spawn: leave this process alone even with one worker.
    """
    workers = min(workers, len(tasks))
    if notes is not None and workers:
        notes.write_bytes(bytes(NOTE * workers))
    if workers <= 1 and not (spawn and workers):
        yield from _here(function, tasks, notes)
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    arguments = (notes, context.Value("i", 0))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=arguments)
    started: set[BaseProcess] = set()
    try:
        results = pool.map(function, tasks)
        started = set(multiprocessing.active_children()) - others
        yield from results
    except BrokenProcessPool as error:
        pool.shutdown()
        raise _died(started, notes) from error  # the notes stay: the next attempt reads them
    except BaseException:
        _forget(notes)
        raise
    else:
        _forget(notes)
    finally:
        pool.shutdown(cancel_futures=True)


def _here(function: Callable[[Task], Result], tasks: Sequence[Task], notes: Path | None) -> Iterator[Result]:
    if tasks:
        _note_in(notes, 0)
    try:
        yield from map(function, tasks)
    finally:
        _NOTES.clear()
        _forget(notes)


def _forget(notes: Path | None) -> None:
    if notes is not None:
        notes.unlink(missing_ok=True)


def working_on(path: Path) -> None:
    """Note which file this process reads: a library that kills the process names none."""
    for note in _NOTES:
        text = os.fsencode(f"{os.getpid()} {path}")[: NOTE - 1]
        note[: len(text) + 1] = text + b"\0"


def _died(started: set[BaseProcess], notes: Path | None) -> CrpipeError:
    """Make the error about workers, of which a signal ended one; the pool ends the others with SIGTERM."""
    files_read = left_notes(notes) if notes is not None else {}
    for process in started:
        number = -(process.exitcode or 0)
        if number > 0 and number not in (signal.SIGKILL, signal.SIGTERM):
            name, file = signal.Signals(number).name, files_read.get(process.pid or 0, "a worker process")
            kind = DiskError if number == signal.SIGBUS else PluginError
            return kind(
                f"{file}: the process that worked on it was ended by {name} ({signal.strsignal(number)}): a "
                "library that reads it failed, its last words are above or in the log; try `crpipe inspect` "
                "on the file, have it made again, or take it out of the source"
            )
    reading = ", ".join(sorted(files_read.values()))
    return HostMemoryError(
        "a worker process was killed, most likely for lack of memory; set resources.split.mem_mb higher or "
        "resources.split.cpus lower, then run the same command again"
        + (f" (the processes worked on {reading})" if reading else "")
    )


def _begin(notes: Path | None, count: Any) -> None:
    follow_parent()
    reuse_freed_memory()
    with count.get_lock():
        slot, count.value = count.value, count.value + 1
    _note_in(notes, slot)


def _note_in(notes: Path | None, slot: int) -> None:
    if notes is not None:
        with notes.open("r+b") as file:
            _NOTES[:] = [memoryview(mmap.mmap(file.fileno(), 0))[slot * NOTE : (slot + 1) * NOTE]]


def available() -> int:
    """Count the CPUs that this process may use."""
    return int(os.environ.get("SLURM_CPUS_PER_TASK", "0")) or len(os.sched_getaffinity(0))


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # mallopt(3)
_KEPT = 64 << 20


def reuse_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system: 8 % less CPU time of a split.

    Arrow's own allocator and glibc return the memory of each block of a few MB and request it again for the
    next one: the kernel then clears every page. Blocks above 64 MiB are still returned.
    docs/performance-tried.md has the figures.
    """
    gc.freeze()  # what was imported is not looked through again and again
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError):  # another C library has no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _KEPT)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _KEPT)


def return_freed_memory() -> None:
    """Return all freed memory to the system."""
    with contextlib.suppress(AttributeError):  # another C library has no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
