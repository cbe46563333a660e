"""Work on many items at once, and try again what may pass: bounded width, jittered backoff, one deadline."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, TypeVar

from crpipe.errors import SourceError, TransferError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

Item = TypeVar("Item")
Result = TypeVar("Result")


class Transient(Exception):  # noqa: N818 - says that another try may succeed, not that something is wrong for good
    """Something failed that may pass; the text says what, without secrets."""


class Deadline:
    """A moment after which nothing is tried again."""

    def __init__(self, seconds: float, what: str) -> None:
        self._end = time.monotonic() + seconds
        self._what = what

    def left(self) -> float:
        """Seconds that remain; never negative."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise SourceError when the deadline is behind us."""
        if not self.left():
            raise SourceError(
                f"{self._what}: not finished within source.deadline_minutes; what is verified stays: run the "
                "same command again, or raise the deadline"
            )


async def persist(
    what: str,
    attempt: Callable[[], Awaitable[Result]],
    *,
    attempts: int,
    deadline: Deadline,
    pause_s: float = 0.5,
) -> Result:
    """Call ``attempt`` until it does not raise Transient, at most ``attempts`` times.

    Pauses double from ``pause_s`` to 30 s, each drawn between half and all of it, so that many clients of one
    struggling server do not come back together. Raise TransferError naming ``what`` after the last attempt.
    """
    for number in range(attempts):
        try:
            return await attempt()
        except Transient as error:
            reason = str(error)
        deadline.check()
        if number + 1 < attempts:
            full = min(30.0, pause_s * 2**number)
            await asyncio.sleep(min(deadline.left(), random.uniform(full / 2, full)))  # noqa: S311 - not a secret
    raise TransferError(
        f"{what}: {reason} ({attempts} attempts); run the same command again later, or set it aside with "
        "source.on_bad_file: quarantine"
    )


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
