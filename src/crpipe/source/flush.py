"""Disk work of a staging job: renames in this thread or in others; flushes in threads, in batches."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from crpipe.core.files import sync, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

Result = TypeVar("Result")

QUICK_S = 0.002
MEMORY = 16  # steps in the moving average of the duration
THREADS = 8  # files flushed at once: together they cost fewer commits of the file system's journal
BATCH = 1 << 26  # bytes
FILES = 16 * THREADS  # of a batch: few are left to flush after the last copy


class Steps:
    """Opens and renames: faster than starting a thread on a local disk, milliseconds on a shared one."""

    def __init__(self) -> None:
        self._usual_s = 0.0

    async def do(self, step: Callable[[], Result]) -> Result:
        """Run a step in this thread while such steps are quick, in another one while they are not."""
        if self._usual_s > QUICK_S:
            return await asyncio.to_thread(self._timed, step)
        return self._timed(step)

    def _timed(self, step: Callable[[], Result]) -> Result:
        begin = time.perf_counter()
        try:
            return step()
        finally:
            self._usual_s += (time.perf_counter() - begin - self._usual_s) / MEMORY


class Flush:
    """Flushes finished files to the disk while others are still being written."""

    def __init__(self) -> None:
        self._waiting: list[Path] = []
        self._bytes = 0
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[list[None]] | None = None

    async def add(self, file: Path, size: int) -> None:
        """Add a file; wait when the disk is more than one batch late."""
        self._waiting.append(file)
        self._bytes += size
        if self._bytes >= BATCH or len(self._waiting) >= FILES:
            await self._start()

    async def finish(self, folders: Iterable[Path]) -> None:
        """Flush all files, then the directories ``folders`` that hold their names."""
        await self._start()
        self._waiting = list(folders)
        await self._start()
        if self._running:
            await self._running

    async def _start(self) -> None:
        batch, self._waiting, self._bytes = self._waiting, [], 0
        async with self._turn:
            if self._running:
                await self._running
            parts = [batch[first::THREADS] for first in range(min(THREADS, len(batch)))]
            self._running = asyncio.gather(*(asyncio.to_thread(_flush, part) for part in parts))


def _flush(files: Sequence[Path]) -> None:
    for file in files:
        with writing(file):
            sync(file)
