"""Disk work of a staging job: small steps at once while the disk is quick; flushes in threads, in batches."""

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
MEMORY = 16  # steps that the usual duration is taken over
THREADS = 8  # files flushed at once: together they cost fewer commits of the file system's journal
BATCH = 1 << 26  # bytes


class Steps:
    """Opens and renames: quicker than a thread begins on a local disk, milliseconds on a slow shared one."""

    def __init__(self) -> None:
        self._usual_s = 0.0

    async def do(self, step: Callable[[], Result]) -> Result:
        """Do a step here while such steps are quick, in a thread while they are not."""
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
    """Brings finished files to the disk while others are still being written."""

    def __init__(self) -> None:
        self._waiting: list[Path] = []
        self._bytes = 0
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[list[None]] | None = None

    async def add(self, file: Path, size: int) -> None:
        """Take a file; wait when the disk is more than a batch behind."""
        self._waiting.append(file)
        self._bytes += size
        if self._bytes >= BATCH:
            await self._start()

    async def finish(self, folders: Iterable[Path]) -> None:
        """Return when all files are on the disk, and then their names in ``folders``."""
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
