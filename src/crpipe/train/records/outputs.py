"""The files and loggers that the leading rank of a training job writes its metrics to."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Self

from crpipe.core.files import sync
from crpipe.train.records.loggers import LoggedRun, Loggers
from crpipe.train.records.metrics_log import EventFile, MetricsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from crpipe.train.link import TrainJob
    from crpipe.train.records.loggers import Logger

_TOTALS = ("events", "items", "skipped")


class Outputs:
    """metrics.jsonl, a TensorBoard file, and the loggers of train.loggers; a context manager."""

    def __init__(
        self,
        job: TrainJob,
        step: int,
        logged: int,
        loggers: Mapping[str, Callable[[LoggedRun], Logger]],
        say: Callable[[str], None],
    ) -> None:
        """Cut the files back to ``step``, at which the job begins or resumes.

        logged: the last step that both files had when the snapshot was taken; report a file that lost it.
        """
        files = job.files
        self._stack, self._say = ExitStack(), say
        self._rows = MetricsFile(files.store / "metrics.jsonl", step)
        self._events = self._stack.enter_context(closing(EventFile(files.events, files.event_file, step)))
        for file in (self._rows, self._events):
            if file.last_step < logged:
                say(
                    f"warning: {file.path}: cut; what it had after step {file.last_step}, up to {logged}, is "
                    "lost and stays missing in the curves; the training itself goes on exactly"
                )
        folder = files.journal.parent
        run = LoggedRun(folder.name, job.link.name, step, job.keys, folder)
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
        shown = {**values, **totals}
        self._events.scalars(row["step"], now, shown)
        self._loggers.log(row["step"], shown)

    def histograms(self, step: int, found: Mapping[str, NDArray[Any]]) -> None:
        """Write distributions to TensorBoard."""
        for tag, values in found.items():
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
