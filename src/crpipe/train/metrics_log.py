"""The rows of metrics.jsonl, and what else gets them: TensorBoard and loggers of the user.

Both are cut back to the resumed step before a job continues, so that no step is written twice.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, Self

from crpipe.core.causes import is_present, plugin_errors
from crpipe.core.errors import MachineError, PluginError
from crpipe.core.files import atomic_write, disk_errors, sync
from crpipe.core.journal import tail
from crpipe.core.text import counted
from crpipe.report.tensorboard import curve_of, drop_moved
from crpipe.train.event_file import EventFile
from crpipe.train.trackers import KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign


class MetricsFile:
    """Rows of metrics, one JSON object per line, appended at each log interval."""

    def __init__(self, path: Path, resumed_step: int) -> None:
        self.path = path
        rows = [row for row in read_metrics(path) if row["step"] <= resumed_step]
        with atomic_write(path) as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.last_step = max((row["step"] for row in rows), default=0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        with disk_errors(self.path), self.path.open("a") as handle:
            handle.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all whole rows; a last line cut by a crash is left out."""
    return tail(path, sys.maxsize) if is_present(path) else []


MOST_WAITING = 1000  # rows for one logger; the oldest is dropped
CLOSE_S = 60.0
_TOTALS = ("events", "items", "skipped")


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
        """Log the metrics of one log interval, or of one validation (``validation/…``)."""

    def close(self) -> None:
        """Send what is left; the job waits for it at most a minute."""


class Loggers:
    """The user's own loggers (train.loggers), each with a queue and a thread that training never waits for.

    Close it to send what is left.
    """

    def __init__(
        self,
        classes: Mapping[str, Callable[[LoggedRun], Logger]],
        run: LoggedRun,
        say: Callable[[str], None],
    ) -> None:
        self._threads = [_LoggerThread(name, kind, run) for name, kind in classes.items()]
        self._say = say
        for thread in self._threads:
            thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics to every logger, and report what went wrong since the last call."""
        for thread in self._threads:
            thread.add(step, dict(metrics))
        self._report()

    def close(self) -> None:
        """End all loggers; wait at most a minute for all of them together."""
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.rows.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._report()
        for thread in self._threads:
            if thread.is_alive():
                left = max(thread.rows.qsize() - 1, 0)
                self._say(
                    f"{KEY}: {thread.name} has not finished in {CLOSE_S:g} s; "
                    f"{counted(left, 'row')} of metrics not sent"
                )
            if thread.dropped:
                self._say(
                    f"{KEY}: {thread.name} was too slow: {counted(thread.dropped, 'row')} of "
                    "metrics not logged"
                )

    def _report(self) -> None:
        for thread in self._threads:
            if thread.problem:
                self._say(f"warning: {thread.problem}; training goes on without this logger")
                thread.problem = ""


class _LoggerThread(threading.Thread):
    """One logger and the rows that wait for it; None ends it."""

    def __init__(self, name: str, kind: Callable[[LoggedRun], Logger], run: LoggedRun) -> None:
        super().__init__(name=name, daemon=True)  # one that never returns must not keep the job
        self.rows: SimpleQueue[tuple[int, dict[str, float]] | None] = SimpleQueue()
        self.problem = ""
        self.dropped = 0
        self._kind = kind
        self._logged_run = run

    def add(self, step: int, metrics: dict[str, float]) -> None:
        """Append a row; drop the oldest one when too many wait."""
        if not self.is_alive():
            return
        if self.rows.qsize() >= MOST_WAITING:
            with contextlib.suppress(Empty):  # the logger may have taken it just now
                self.rows.get_nowait()
                self.dropped += 1
        self.rows.put((step, metrics))

    def run(self) -> None:
        """Build the logger, hand it one row after the other, and close it."""
        try:
            with plugin_errors(f"{KEY}: {self.name} failed"):
                logger = self._kind(self._logged_run)
                while (row := self.rows.get()) is not None:
                    logger.log(*row)
                logger.close()
        except (PluginError, MachineError) as error:
            self.problem = str(error)


class Outputs:
    """What the leading rank writes its metrics to: metrics.jsonl, a TensorBoard file, the user's loggers.

    A context manager.
    """

    def __init__(
        self,
        campaign: Campaign,
        link: str,
        step: int,
        logged: int,
        loggers: Mapping[str, Callable[[LoggedRun], Logger]],
        say: Callable[[str], None],
    ) -> None:
        """Cut the files back to ``step``, at which the job begins or resumes.

        logged: the last step that both files had when the snapshot was taken; report a file that lost it.
        """
        paths = campaign.paths
        self._stack, self._say = ExitStack(), say
        self._rows = MetricsFile(paths.store(link) / "metrics.jsonl", step)
        drop_moved(paths, campaign.chain)
        file_name = curve_of(campaign.chain, link)
        self._events = self._stack.enter_context(closing(EventFile(paths.tensorboard(), file_name, step)))
        for file in (self._rows, self._events):
            if file.last_step < logged:
                say(
                    f"warning: {file.path}: cut; what it had after step {file.last_step}, up to {logged}, is "
                    "lost and stays missing in the curves; the training itself goes on exactly"
                )
        folder = paths.run_dir()
        run = LoggedRun(folder.name, link, step, campaign.run_keys, folder)
        self._loggers = self._stack.enter_context(closing(Loggers(loggers, run, say)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, row: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """Write the metrics of a step; ``row``: where it is in the chain, and the totals so far."""
        now = time.time()
        self._rows.add({**row, "time": round(now, 3), **values})
        totals = {f"total/{name}": float(row[name]) for name in _TOTALS}
        scalars = {**values, **totals}
        self._events.scalars(row["step"], now, scalars)
        self._loggers.log(row["step"], scalars)

    def histograms(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write distributions to TensorBoard."""
        for tag, values in arrays.items():
            self._events.histogram(step, time.time(), tag, values)

    def hyper_parameters(self, step: int, keys: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Write the configuration beside the final metrics, and flush all that was written to the disk."""
        self._events.hyper_parameters(step, keys, metrics)
        self.sync()

    def sync(self) -> None:
        """Flush everything written to the disk: a resume continues after it."""
        if self._events.keep():
            self._say(
                f"warning: {self._events.path}: deleted while this job ran; it begins again, and the curves "
                "of what came before are in metrics.jsonl alone; the training itself goes on exactly"
            )
        self._rows.path.touch()  # as it begins again with its next row
        sync(self._rows.path)
