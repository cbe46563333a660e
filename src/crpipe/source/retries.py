"""Work on many items at once, and retry what may pass: bounded width, random growing pauses, one deadline."""

from __future__ import annotations

import asyncio
import enum
import random
import re
import time
from typing import TYPE_CHECKING, TypeVar

from crpipe.core.errors import OutageError
from crpipe.core.files import disk_errors, sync
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

Item = TypeVar("Item")
Result = TypeVar("Result")

CONNECT_S = 10.0  # longest time to connect to a server
LONGEST_S = 300.0  # longest pause that a server's Retry-After is followed for
_SECRET = re.compile(
    r"(authz=|Bearer[ +]|%20|Bearer%20)?(eyJ[\w-]+\.[\w-]+(?:\.[\w-]+)?)"
    r"|(authz=|Bearer(?:[ +]|%20)+|(?:access|refresh|id)_token[\"']?\s*[=:]\s*[\"']?)[^&\s\"',;]+",
    re.IGNORECASE,
)


class Failure(enum.Enum):
    """What a try that failed says about the file and its source."""

    FILE = enum.auto()  # this file did not come; others may
    WRONG_BYTES = enum.auto()  # bytes came, and they are not those of the file
    PROGRESS_MADE = enum.auto()  # bytes came, or another server is left: the try does not count
    MISSING = enum.auto()  # whoever lists or looks up files does not have this one
    DENIED = enum.auto()  # for a reason that this side cannot see; in the end a person is needed
    SERVER_BUSY = enum.auto()  # the source is busy or out of reach, which means nothing for the file
    NOT_SERVED = enum.auto()  # the director knows no server for the path, or not yet
    FEDERATION_AWAY = enum.auto()  # its director is out of reach: tried until the deadline, however often


_OUTAGES = frozenset({Failure.SERVER_BUSY, Failure.NOT_SERVED, Failure.FEDERATION_AWAY})


class TemporaryFailure(Exception):  # noqa: N818 - means that another try may succeed, not that something is wrong
    """Something failed that may pass; the text says what, without secrets.

    ``pause_s``: shortest pause before another try, as the server asks for.
    """

    def __init__(self, reason: str, kind: Failure = Failure.FILE, *, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.kind = kind
        self.pause_s = pause_s

    @property
    def is_outage(self) -> bool:
        """Return whether the source failed as a whole, which means nothing for the file."""
        return self.kind in _OUTAGES


class Deadline:
    """A moment after which nothing is tried again; ``say`` reports why a job waits."""

    def __init__(self, seconds: float, what: str, say: Callable[[str], object] = str) -> None:
        self._end = time.monotonic() + seconds
        self._what = what
        self._say = say
        self._said: set[str] = set()
        self._failure = "the first try still ran"

    def left(self) -> float:
        """Return the seconds that remain; never negative."""
        return max(0.0, self._end - time.monotonic())

    def check(self, reason: str) -> None:
        """Raise OutageError, with the ``reason`` of the last failure, when the deadline has passed."""
        if not self.left():
            raise self.expired_error(reason)

    def expired_error(self, reason: str) -> OutageError:
        """Make the error of a deadline that has passed; without a reason, name the last failure."""
        return OutageError(
            f"{self._what}: not finished within source.deadline_minutes ({reason or self._failure}); what is "
            "verified stays: run the same command again, or raise the deadline"
        )

    def note(self, error: TemporaryFailure) -> str:
        """Remember why the last try failed, and return it."""
        self._failure = str(error)
        return self._failure

    def say_once(self, text: str) -> None:
        """Report something about the whole job, once."""
        if text not in self._said:
            self._said.add(text)
            self._say(f"{self._what}: {text}")


async def retry(
    attempt: Callable[[], Awaitable[Result]],
    *,
    attempts: int,
    deadline: Deadline,
    pause_s: float = 0.5,
    patient: bool = True,
) -> Result:
    """Call ``attempt`` until it raises no TemporaryFailure; raise the last one after ``attempts`` failures.

    Pauses double from ``pause_s`` to 30 s, each drawn between half and all of it, so that many clients of one
    overloaded server do not return together. Raise OutageError once the deadline has passed; it ends a try
    that is still running, too. Unless ``patient``, a federation that is out of reach counts like all else.
    """
    failures = waits = 0
    reason = ""
    while True:
        try:
            async with asyncio.timeout(deadline.left()) as limit:
                return await attempt()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise deadline.expired_error(reason) from error
        except TemporaryFailure as error:
            reason = deadline.note(error)
            if patient and error.kind is Failure.FEDERATION_AWAY:
                waits += 1
                deadline.say_once(f"{reason}; waiting for it until the deadline")
            else:
                failures += error.kind is not Failure.PROGRESS_MADE
            if failures >= attempts:
                raise TemporaryFailure(f"{error} ({counted(failures, 'attempt')})", error.kind) from error
            asked_s = min(error.pause_s, LONGEST_S)
        deadline.check(reason)
        full = min(30.0, pause_s * 2 ** min(max(failures + waits - 1, 0), 10))
        pause = max(random.uniform(full / 2, full), asked_s)  # noqa: S311 - not a secret
        await asyncio.sleep(min(deadline.left(), pause))


async def run_concurrently(
    items: Iterable[Item], work: Callable[[Item], Awaitable[None]], width: int
) -> None:
    """Do ``work`` on every item, at most ``width`` at once; the first error cancels the rest and is raised.

    Items are drawn one by one, so that memory does not grow with their number.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    tasks = [asyncio.create_task(worker()) for _ in range(width)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def redact(text: str) -> str:
    """Blank out anything that looks like a token."""
    return _SECRET.sub(lambda match: f"{match[1] or match[3] or ''}[hidden]", text)


# Disk work of a staging job: renames in this thread or in others; flushes in threads, in batches.


QUICK_S = 0.002
MEMORY = 16  # steps in the moving average of the duration
THREADS = 8  # files flushed at once: together they cost fewer commits of the file system's journal
BATCH = 1 << 26  # bytes
FILES = 16 * THREADS  # of a batch: few are left to flush after the last copy


class AdaptiveDiskCalls:
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
        with disk_errors(file):
            sync(file)
