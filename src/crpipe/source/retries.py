"""Work on many items at once, and retry what may pass: bounded width, random growing pauses, one deadline."""

from __future__ import annotations

import asyncio
import random
import re
import time
from typing import TYPE_CHECKING, TypeVar

from crpipe.core.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

Item = TypeVar("Item")
Result = TypeVar("Result")

CONNECT_S = 10.0  # longest time to connect to a server
_SECRET = re.compile(
    r"(authz=|Bearer[ +]|%20)?(eyJ[\w-]+\.[\w-]+(\.[\w-]+)?)|(authz=)[^&\s\"']+", re.IGNORECASE
)


class Transient(Exception):  # noqa: N818 - means that another try may succeed, not that something is wrong
    """Something failed that may pass; the text says what, without secrets.

    ``outage``: the source itself is out of reach or busy, which means nothing for the file.
    ``progress``: bytes arrived before it failed, so that the try does not count.
    """

    def __init__(self, reason: str, *, outage: bool = False, progress: bool = False) -> None:
        super().__init__(reason)
        self.outage = outage
        self.progress = progress


class Deadline:
    """A moment after which nothing is tried again."""

    def __init__(self, seconds: float, what: str) -> None:
        self._end = time.monotonic() + seconds
        self._what = what

    def left(self) -> float:
        """Seconds that remain; never negative."""
        return max(0.0, self._end - time.monotonic())

    def check(self, reason: str) -> None:
        """Raise SourceError, with the ``reason`` of the last failure, when the deadline has passed."""
        if not self.left():
            raise SourceError(
                f"{self._what}: not finished within source.deadline_minutes ({reason}); what is verified "
                "stays: run the same command again, or raise the deadline"
            )


async def persist(
    attempt: Callable[[], Awaitable[Result]],
    *,
    attempts: int,
    deadline: Deadline,
    pause_s: float = 0.5,
) -> Result:
    """Call ``attempt`` until it does not raise Transient; raise the last one after ``attempts`` failures.

    Pauses double from ``pause_s`` to 30 s, each drawn between half and all of it, so that many clients of one
    overloaded server do not return together. Raise SourceError once the deadline has passed.
    """
    failures = 0
    while True:
        try:
            return await attempt()
        except Transient as error:
            failures += not error.progress
            reason = str(error)
            if failures >= attempts:
                raise Transient(f"{error} ({failures} attempts)", outage=error.outage) from error
        deadline.check(reason)
        full = min(30.0, pause_s * 2 ** max(failures - 1, 0))
        await asyncio.sleep(min(deadline.left(), random.uniform(full / 2, full)))  # noqa: S311 - not a secret


async def each(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], width: int) -> None:
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
    return _SECRET.sub(lambda found: f"{found[1] or found[4] or ''}[hidden]", text)
