"""The user's own loggers (train.loggers): each gets the metrics in a thread that training never waits for."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from crpipe.config.names import find_class
from crpipe.core.causes import Foreign
from crpipe.core.errors import ForeignError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

KEY = "train.loggers"
MOST_WAITING = 1000  # rows for one logger; the oldest is dropped
CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What a logger is built with.

    run, link: names; step: of the whole chain, at which this job begins or resumes. Steps that an interrupted
        job had logged after its last snapshot come again.
    keys: everything that changes a checkpoint, by dotted names. folder: runs/<run>.
    """

    run: str
    link: str
    step: int
    keys: Mapping[str, Any]
    folder: Path


class Logger(Protocol):
    """A class that train.loggers names as ``module:Name``; built as ``Name(run)`` with a LoggedRun.

    Building it and all calls happen in one thread of its own, in the leading rank. An exception is reported
    once and ends this logger; training goes on.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one log interval, or of one validation (``validation/…``)."""

    def close(self) -> None:
        """Send what is left; the job waits for it at most 10 s."""


def find_loggers(names: Sequence[str]) -> dict[str, Callable[[LoggedRun], Logger]]:
    """Import the classes that train.loggers names; raise ConfigError when one cannot be."""
    return {name: find_class(KEY, name) for name in names}


class Loggers:
    """All loggers of a job; close it to send what is left."""

    def __init__(
        self,
        classes: Mapping[str, Callable[[LoggedRun], Logger]],
        run: LoggedRun,
        say: Callable[[str], None],
    ) -> None:
        self._threads = [_LoggerThread(name, found, run) for name, found in classes.items()]
        self._say = say
        for thread in self._threads:
            thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics to every logger, and report what went wrong since the last call."""
        for thread in self._threads:
            thread.add(step, dict(metrics))
        self._report(self._threads)

    def close(self) -> None:
        """Let all loggers finish; wait at most 10 s for all of them together."""
        ends = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        self._report(self._threads)
        for thread in self._threads:
            if thread.is_alive():
                left = thread.waiting()
                self._say(
                    f"{KEY}: {thread.name} has not finished in {CLOSE_S:g} s; {left} rows of metrics not sent"
                )
            if thread.dropped:
                self._say(
                    f"{KEY}: {thread.name} was too slow: {thread.dropped} rows of metrics were not logged"
                )

    def _report(self, threads: Iterable[_LoggerThread]) -> None:
        for thread in threads:
            if thread.problem:
                self._say(f"warning: {thread.problem}; training goes on without this logger")
                thread.problem = ""


class _LoggerThread(threading.Thread):
    """One logger and the rows that wait for it."""

    def __init__(self, name: str, found: Callable[[LoggedRun], Logger], run: LoggedRun) -> None:
        super().__init__(name=name, daemon=True)  # one that never returns must not keep the job
        self.problem = ""
        self.dropped = 0
        self._found = found
        self._run = run
        self._rows: deque[tuple[int, dict[str, float]]] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._failed = False

    def add(self, step: int, metrics: dict[str, float]) -> None:
        """Append a row; drop the oldest one when too many wait."""
        with self._changed:
            if self._failed:
                return
            if len(self._rows) >= MOST_WAITING:
                self._rows.popleft()
                self.dropped += 1
            self._rows.append((step, metrics))
            self._changed.notify()

    def end(self) -> None:
        """Close the logger after the rows that wait."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def waiting(self) -> int:
        """Count the rows that wait."""
        return len(self._rows)

    def run(self) -> None:
        """Build the logger, hand it one row after the other, and close it."""
        try:
            with Foreign(f"{KEY}: {self.name} failed"):
                logger = self._found(self._run)
                while (row := self._next()) is not None:
                    logger.log(*row)
                logger.close()
        except (ForeignError, MachineError) as error:
            with self._changed:
                self._failed = True
                self._rows.clear()
            self.problem = str(error)

    def _next(self) -> tuple[int, dict[str, float]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._ending)
            return self._rows.popleft() if self._rows else None
