"""The only training loop: batches in, a trained state out; it knows nothing of what is trained."""

from __future__ import annotations

import functools
import itertools
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from crpipe.core.errors import DivergenceError, Interrupted
from crpipe.core.files import sync
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW
from crpipe.train.compiling import compile_modules
from crpipe.train.meter import Clock, GpuSampler, Meter, Smooth
from crpipe.train.schedule import Schedule
from crpipe.train.step import Stepper
from crpipe.train.workload import Histograms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.core.signals import StopRequest
    from crpipe.events.batch import Cursor, Events
    from crpipe.loading.loader import Loader
    from crpipe.train.metrics_log import EventFile, MetricsFile
    from crpipe.train.profiling import Profiler
    from crpipe.train.ranks import World
    from crpipe.train.state import TrainState
    from crpipe.train.workload import Workload

Group = list[tuple["Events", "Cursor"]]
MOVING_AVERAGE_STEPS = 500
NAMED_EVENTS = 20


class Link(NamedTuple):
    """Where a range stands in the campaign: its name, the seed of its data order, its share of the whole."""

    name: str
    seed: tuple[int, ...]
    epochs: int
    progress_from: float
    progress_to: float


class Fit:
    """Trains one range to its end or to a stop request; a snapshot then resumes exactly."""

    def __init__(
        self,
        config: Config,
        workload: Workload,
        state: TrainState,
        loader: Loader,
        link: Link,
        *,
        world: World,
        stop: StopRequest,
        snapshot: Callable[[dict[str, Any]], None],
        outputs: tuple[MetricsFile, EventFile] | None,
        journal: Callable[..., None],
        profiler: Profiler,
        progress: Progress,
    ) -> None:
        self.config, self.state, self.loader, self.link = config, state, loader, link
        self.world, self.stop, self.snapshot, self.outputs = world, stop, snapshot, outputs
        self.journal, self.profiler, self.progress = journal, profiler, progress
        self.workload = workload
        self.compiled = False
        self.meter = Meter(world.device)
        self.stepper = Stepper(config, workload, state, world, self.meter)
        self.schedule = Schedule.of(config.train)
        fresh = config.train.fresh_batches
        self.per_step = max(phase.repeat for phase in state.phases) if fresh else 1
        self.range_steps = -(-loader.batches_per_epoch * link.epochs // self.per_step)
        self.pending: list[_Pending] = []
        self.last: dict[str, float] = {}
        self.saved = _Moment(state.counters.range_step, time.monotonic())
        self.smooth = Smooth(state.phases, MOVING_AVERAGE_STEPS // config.train.log_steps)
        self.clock = Clock()
        self.gpu = GpuSampler(world.device)

    def restore(self, extra: dict[str, Any]) -> None:
        """Take up the metrics of a log interval that a snapshot cut in two."""
        self.meter.restore(extra["meter"])
        self.smooth.restore(extra["smooth"])
        self.last = extra["last"]

    def run(self) -> dict[str, float]:
        """Train to the range's end; return its last metrics.

        Raise Interrupted after a snapshot when asked to stop, DivergenceError when losses leave their band or
        too many steps in a row are not finite; the last good snapshot then stands.
        """
        counters = self.state.counters
        with closing(self.loader.batches(counters.cursor)) as stream, self.gpu, self.profiler:
            for group in self._groups(stream):
                if self.config.train.compile and not self.compiled:
                    self._compile(group)
                self._step(group)
                self.profiler.step()
                if counters.range_step % self.config.train.log_steps == 0:
                    self._log()
                self._draw_histograms(group)
                if self._may_pause():
                    self._stop_if_asked()
                    if self._snapshot_due():
                        self._save()
        self._log()
        return self.last

    def _compile(self, group: Group) -> None:
        events, cursor = group[0]
        probe = functools.partial(self.stepper.probe, events, (*self.link.seed, *cursor))
        compile_modules(self.state.model, probe, self.progress.say)
        self.compiled = True

    def _draw_histograms(self, group: Group) -> None:
        every = self.config.train.histogram_steps
        if not every or self.outputs is None or self.state.counters.step % every:
            return
        if isinstance(self.workload, Histograms):
            with torch.no_grad():
                found = self.workload.histograms(self.state.model, group[-1][0], self.state.generator)
            for tag, values in found.items():
                self.outputs[1].histogram(self.state.counters.step, time.time(), tag, values)

    def _groups(self, stream: Iterator[tuple[Events, Cursor]]) -> Iterator[Group]:
        while True:
            waiting = time.perf_counter()
            group = list(itertools.islice(stream, self.per_step))
            self.clock.waited += time.perf_counter() - waiting
            if not group:
                return
            yield group

    def _step(self, group: Group) -> None:
        counters = self.state.counters
        done = counters.range_step / self.range_steps
        span = self.link.progress_to - self.link.progress_from
        rate = self.schedule.factor(counters.step, self.link.progress_from + done * span)
        bad = self.stepper.step(group, self.link.seed, rate)
        counters.step += 1
        counters.range_step += 1
        counters.cursor = group[-1][1]
        self.pending.append(_pending(counters.step, bad, group))
        self.clock.rate = rate
        if len(self.pending) >= self.config.train.log_steps:
            self._settle()

    def _settle(self) -> None:
        """Count the steps since the last call over all ranks, and name the skipped ones: one transfer."""
        if not self.pending:
            return
        counters = self.state.counters
        flags = torch.stack([item.bad for item in self.pending]).cpu().tolist()
        sizes = torch.tensor([(item.events, item.muons) for item in self.pending], device=self.world.device)
        events, muons = self.world.sum(sizes.sum(0)).tolist()
        counters.events += events
        counters.muons += muons
        self.clock.count(events, muons, len(self.pending))
        for item, flag in zip(self.pending, flags, strict=True):
            counters.skipped += int(flag)
            counters.skipped_in_row = counters.skipped_in_row + 1 if flag else 0
            if flag:
                self._tell_skipped(item)
        self.pending.clear()
        if counters.skipped_in_row >= self.config.train.max_skipped:
            raise DivergenceError(
                f"range {self.link.name}: {counters.skipped_in_row} steps in a row were not finite "
                "(train.max_skipped); the last good snapshot is kept; lower the learning rates in a new run"
            )

    def _tell_skipped(self, item: _Pending) -> None:
        named = [f"file {file} row {row}" for part in self.world.gather(item.named()) for file, row in part]
        self.journal(
            "skipped",
            range=self.link.name,
            step=item.step,
            batches=[list(at) for at in item.at],
            events=named,
        )
        self.progress.say(f"step {item.step}: not finite, skipped; among its events: {', '.join(named[:3])}")

    def _log(self) -> None:
        self._settle()
        values = self.meter.read(self.world)
        if not values:
            return
        self.last = values
        counters, clock = self.state.counters, self.clock
        values |= self.smooth.add(values)
        for name in self.state.throttle(values):
            self.progress.say(f"{name}: too strong, its learning rate falls to {self.state.shares[name]:.3g}")
        speed = clock.read(self.world) | self.gpu.read()
        if self.outputs is not None:
            now = time.time()
            row = {"step": counters.step, "range": self.link.name, "range_step": counters.range_step}
            row |= {"range_steps": self.range_steps, "epoch": counters.cursor.epoch, "time": round(now, 3)}
            totals = {"events": counters.events, "muons": counters.muons, "skipped": counters.skipped}
            self.outputs[0].add({**row, **totals, **values, **speed})
            shown = {**values, **speed, **{f"total/{name}": float(value) for name, value in totals.items()}}
            self.outputs[1].scalars(counters.step, now, shown)
            note = f"step {counters.step}  {speed['speed/events_per_s']:.0f} events/s"
            self.progress.advance(f"train {self.link.name}", counters.range_step, self.range_steps, note)
        self._check_band(values)

    def _check_band(self, values: dict[str, float]) -> None:
        judged = [f"{phase.name}/{phase.watched_metric}" for phase in self.state.phases]
        for name, value in ((name, values[name]) for name in judged if name in values):
            told = f"step {self.state.counters.step}: {name} = {value:.4g} is beyond"
            if abs(value) > self.config.train.stop_loss:
                raise DivergenceError(
                    f"range {self.link.name}, {told} ± {self.config.train.stop_loss:g} (train.stop_loss); "
                    "the last good snapshot is kept; lower the learning rates in a new run from a checkpoint"
                )
            if abs(value) > self.config.train.warn_loss:
                self.progress.say(f"warning: {told} ± {self.config.train.warn_loss:g} (train.warn_loss)")

    def _may_pause(self) -> bool:
        """Tell whether this is a step at which to look up; several ranks agree at log intervals only."""
        step = self.state.counters.range_step
        return step < self.range_steps and (self.world.size == 1 or step % self.config.train.log_steps == 0)

    def _stop_if_asked(self) -> None:
        reason = self.stop.reason()
        if not self.world.any(bool(reason)):
            return
        self._save()
        raise Interrupted(
            f"range {self.link.name}: stopped by {reason or 'another rank'} at step "
            f"{self.state.counters.range_step} of {self.range_steps}; a snapshot is saved, "
            "the same command resumes"
        )

    def _snapshot_due(self) -> bool:
        train, step = self.config.train, self.state.counters.range_step
        # Several ranks look up at log intervals only: they may step over a multiple of snapshot_steps.
        due = step // train.snapshot_steps > self.saved.step // train.snapshot_steps
        return self.world.any(due or time.monotonic() - self.saved.time_s >= train.snapshot_seconds)

    def _save(self) -> None:
        self._settle()
        self._check_band(self.meter.means(self.world))
        if self.outputs is not None:
            for file in self.outputs:
                sync(file.path)  # what a snapshot has gone past is never written again
        if self.world.leads:
            self.snapshot(
                {"meter": self.meter.state(), "smooth": self.smooth.state(), "last": dict(self.last)}
            )
        self.saved = _Moment(self.state.counters.range_step, time.monotonic())


class _Moment(NamedTuple):
    """When the last snapshot was taken."""

    step: int
    time_s: float


class _Pending(NamedTuple):
    """A step whose skip flag still lies on the device; its batches are gone, lest they pile up in memory."""

    step: int
    bad: Tensor
    events: int
    muons: int
    at: list[Cursor]
    files: list[NDArray[np.integer[Any]]]
    rows: list[NDArray[np.integer[Any]]]

    def named(self) -> list[tuple[int, int]]:
        """Give file and row of the first events of each batch."""
        return [
            pair
            for files, rows in zip(self.files, self.rows, strict=True)
            for pair in zip(files.tolist(), rows.tolist(), strict=True)
        ]


def _pending(step: int, bad: Tensor, group: Group) -> _Pending:
    return _Pending(
        step,
        bad,
        sum(len(events) for events, _ in group),
        sum(len(events.items) for events, _ in group),
        [cursor for _, cursor in group],
        [events.columns[SOURCE_FILE][:NAMED_EVENTS].copy() for events, _ in group],
        [events.columns[SOURCE_ROW][:NAMED_EVENTS].copy() for events, _ in group],
    )
