"""The only training loop: batches in, a trained state out, for any workload."""

from __future__ import annotations

import functools
import itertools
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from crpipe.core.errors import CheckpointError, DivergenceError, Interrupted
from crpipe.core.journal import Journal
from crpipe.train.checkpoints import load, refuse_other_keys, verified
from crpipe.train.link import begin_from
from crpipe.train.meter import Clock, GpuSampler, Meter, PendingSteps, Profiler, Smooth, check_band
from crpipe.train.metrics_log import Outputs
from crpipe.train.numerics import add_to, c_library, judge, numerics, recorded
from crpipe.train.schedule import Schedules
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper, compile_modules
from crpipe.train.validation import Judge
from crpipe.train.workload import Histograms, WorkloadCall, check_weighted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.events.batch import Cursor, Events
    from crpipe.train.checkpoints import Saved
    from crpipe.train.step import Micro
    from crpipe.train.validation import Inputs

Group = list[tuple["Events", "Cursor"]]
Ready = dict["Cursor", list["Micro"]]
MOVING_AVERAGE_STEPS = 500


class Trainer:
    """Trains one link to its end or to a stop request; a snapshot then resumes exactly.

    A context manager around its output files: ``start()``, ``run()``, ``finish()``.
    """

    def __init__(self, inputs: Inputs) -> None:
        job, world = inputs.job, inputs.world
        self.job, self.link, self.train = job, job.link, job.train
        self.workload, self.loader, self.store = inputs.workload, inputs.loader, inputs.store
        check_weighted(self.workload, job.workload, self.loader.layout)
        self.world, self.stop, self.progress = world, inputs.stop, inputs.progress
        self.parent, self.source = inputs.parent, inputs.source
        torch.manual_seed(job.seed)
        self.state = TrainState(self.workload.model(), self.workload.phases(), job.seed, world.device)
        self.meter = Meter(world.device)
        self.throttle_meter = Meter(world.device)
        weight = self.loader.layout.weight
        self.stepper = Stepper(
            self.train, job.load, self.workload, self.state, world, self.meter, weight, self.throttle_meter
        )
        self.judge = Judge(inputs, self.stepper)
        asked = {phase.name: phase.schedule for phase in self.state.phases}
        self.schedules = Schedules.of(self.train, asked)
        self.per_step = max(phase.repeat for phase in self.state.phases) if self.train.fresh_batches else 1
        self.range_steps = -(-self.loader.batches_per_epoch * self.link.epochs // self.per_step)
        self.pending = PendingSteps(world, self.loader.layout.key)
        self.smooth = Smooth(self.state.phases, MOVING_AVERAGE_STEPS // self.train.log_steps)
        self.clock = Clock()
        self.gpu = GpuSampler(world.device)
        steps = inputs.profile_steps if world.leads else 0
        self.profiler = Profiler(steps, job.files.profile, self.progress.say)
        self.journal = Journal(job.files.journal) if world.leads else None
        self.loggers = inputs.loggers
        self.outputs: Outputs | None = None
        self.last: dict[str, float] = {}
        self.logged = 0  # the last step with a row of metrics
        self.compiled = False
        self.saved = _Moment(0, time.monotonic())
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Restore the state where training goes on, and open the output files.

        In this order: the newest good snapshot of this key, the parent's checkpoint, train.init_from, fresh
        weights.
        """
        name, say = self.link.name, self.progress.say
        self.numerics = self.world.gather(numerics(self.world))
        found = self.world.gather(self._newest_snapshot())[0]
        if found is not None:
            self._resume(found)
            say(f"link {name}: resumes at step {self.state.counters.range_step}")
        elif self.parent is not None and self.job.files.parent_store is not None:
            path = self.job.files.parent_store / self.parent.checkpoint
            checkpoint = load(verified(path).path)
            refuse_other_keys(checkpoint, self.job.keys, path)
            self._judge_numerics(checkpoint, path)
            self.state.restore(checkpoint)
            self.state.counters = self.state.counters.of_next_link()
            say(f"link {name}: starts from the checkpoint of {self.link.parent}")
        elif self.source is not None:
            begin_from(self.source, self.state, self.job, self.numerics[0], say, records=self.world.leads)
        else:
            say(f"link {name}: starts from fresh weights")
        for each in self.numerics:
            self.state.numerics = add_to(self.state.numerics, each)
        self._note("numerics", **self.numerics[0], c_library=c_library())
        self._open_outputs()
        self.saved = _Moment(self.state.counters.range_step, time.monotonic())

    def run(self) -> None:
        """Train to the link's end.

        Raise Interrupted after a snapshot when asked to stop, DivergenceError when losses leave their band or
        too many steps in a row are not finite; the last good snapshot is then kept.
        """
        counters = self.state.counters
        anomalies = torch.autograd.set_detect_anomaly(self.train.detect_anomaly)
        collate = functools.partial(self.stepper.collate_ahead, seed=self.link.seed)
        made = self.loader.made(collate, counters.cursor, workers=self.job.load.collate_workers)
        with closing(made) as stream, self.gpu, self.profiler, anomalies:
            for group, ready in self._groups(stream):
                if self.train.compile and not self.compiled:
                    self._compile(group)
                self._step(group, ready)
                self.profiler.step()
                if counters.range_step % self.train.throttle_steps == 0:
                    self._throttle()
                if counters.range_step % self.train.log_steps == 0:
                    self._log()
                self._write_histograms(group)
                self._validate()
                if self.judge.stopped:
                    break
                if self._may_pause():
                    self._stop_if_asked()
                    if self._snapshot_due():
                        self._save()
        self._throttle()
        self._log()
        if self.range_steps:
            self._validate(at_end=True)
        else:
            self.judge.inherit()

    def finish(self) -> Saved | None:
        """Write the finished checkpoint on the leading rank; the others give None."""
        if self.outputs is not None:
            self.outputs.hyper_parameters(self.state.counters.step, self.job.keys, self.last)
        if not self.world.leads:
            return None
        state = {**self.state.state(self.job.keys), "metrics": self.last, "range": self.link.name}
        self.judge.finish()
        stopped = {"stopped": self.judge.stopped} if self.judge.stopped else {}
        return self.store.save_checkpoint({**state, **stopped})

    def _newest_snapshot(self) -> Path | None:
        if not self.world.leads:
            return None
        self.store.drop_parts()
        return self.store.newest_snapshot(self.progress.say)

    def _resume(self, path: Path) -> None:
        """Load a snapshot; raise CheckpointError when it is of another number of ranks.

        Its position in the data is that of its own number of ranks.
        """
        snapshot = load(path)
        if snapshot["ranks"] != self.world.size:
            raise CheckpointError(
                f"{path}: made by {snapshot['ranks']} ranks, this job has {self.world.size}: it would train "
                "on some events twice and on others never; restore train.gpus, train.processes and "
                "train.nodes, or move the snapshots of this link away to train it from its beginning"
            )
        self._judge_numerics(snapshot, path)
        self.state.restore(snapshot)
        self.state.numerics = recorded(snapshot)
        extra = snapshot["extra"]
        self.meter.restore(extra["meter"])
        self.smooth.restore(extra["smooth"])
        self.throttle_meter.restore(extra["throttle_meter"])
        self.last = extra["last"]
        self.logged = extra.get("logged", 0)
        self.judge.restore(extra["best"])

    def _judge_numerics(self, state: Mapping[str, Any], path: Path) -> None:
        """Say, or refuse, that a state goes on with other numerics than those it was computed with."""
        judge(recorded(state), self.numerics[0], str(path), self.train.numerics, self.progress.say)

    def _open_outputs(self) -> None:
        if not self.world.leads:
            return
        outputs = Outputs(self.job, self.state.counters.step, self.logged, self.loggers, self.progress.say)
        self.outputs = self._stack.enter_context(outputs)

    def _compile(self, group: Group) -> None:
        events, cursor = group[0]
        probe = functools.partial(self.stepper.probe, events, (*self.link.seed, *cursor))
        compile_modules(self.state.model, probe, self.progress.say)
        self.compiled = True

    def _write_histograms(self, group: Group) -> None:
        every, step = self.train.histogram_steps, self.state.counters.step
        if not every or self.outputs is None or step % every:
            return
        if isinstance(self.workload, Histograms):
            events = group[-1][0]
            with torch.no_grad(), WorkloadCall(self.workload, "histograms", events):
                found = self.workload.histograms(self.state.model, events, self.state.generator)
            self.outputs.histograms(step, found)

    def _groups(self, stream: Iterator[tuple[Events, Cursor, list[Micro]]]) -> Iterator[tuple[Group, Ready]]:
        """Draw the batches of each step, and their micro-batches."""
        while True:
            waiting = time.perf_counter()
            drawn = list(itertools.islice(stream, self.per_step))
            self.clock.waited += time.perf_counter() - waiting
            if not drawn:
                return
            ready = {cursor: micro for _, cursor, micro in drawn}
            yield [(events, cursor) for events, cursor, _ in drawn], ready

    def _step(self, group: Group, ready: Ready) -> None:
        counters = self.state.counters
        done = counters.range_step / self.range_steps
        first, last = self.link.progress
        rate, own_rates = self.schedules.factors(counters.step, first + done * (last - first))
        bad = self.stepper.step(group, self.link.seed, rate, own_rates=own_rates, ready=ready)
        counters.step += 1
        counters.range_step += 1
        counters.cursor = group[-1][1]
        self.pending.add(counters.step, bad, group)
        self.clock.rate, self.clock.own_rates = rate, own_rates
        if len(self.pending) >= self.train.log_steps:
            self._count()

    def _count(self) -> None:
        """Count the steps since the last call, and report the skipped ones."""
        counters = self.state.counters
        for item in self.pending.count(counters, self.clock):
            self._note("skipped", step=item.step, batches=item.batches, events=item.events)
            self.progress.say(
                f"step {item.step}: not finite, skipped; among its events: {', '.join(item.events[:3])}"
            )
        if counters.skipped_in_row >= self.train.max_skipped:
            raise DivergenceError(
                f"link {self.link.name}: {counters.skipped_in_row} steps in a row were not finite "
                "(train.max_skipped); the last good snapshot is kept; lower the learning rates in a new run"
            )

    def _log(self) -> None:
        self._count()
        values = self.meter.read(self.world)
        if not values:
            return
        self.last = values
        counters = self.state.counters
        values |= self.smooth.add(values)
        speed = self.clock.read(self.world) | self.gpu.read()
        self._write(values | speed)
        note = f"step {counters.step}  {speed['speed/events_per_s']:.0f} events/s"
        self.progress.advance(f"train {self.link.name}", counters.range_step, self.range_steps, note)
        self._check_band(values)

    def _write(self, values: dict[str, float]) -> None:
        """Write metrics to the files and loggers, with their place in the chain."""
        if self.outputs is not None:
            counters = self.state.counters
            row = {"step": counters.step, "range": self.link.name, "range_step": counters.range_step}
            row |= {"range_steps": self.range_steps, "epoch": counters.cursor.epoch}
            row |= {"events": counters.events, "items": counters.items, "skipped": counters.skipped}
            self.outputs.add(row, values)
            self.logged = counters.step

    def _throttle(self) -> None:
        """Decide with the means of the steps since the last decision, whatever train.log_steps is."""
        if not any(phase.throttle for phase in self.state.phases):
            return
        for name in self.state.throttle(self.throttle_meter.read(self.world)):
            share = self.state.shares[name]
            self.progress.say(f"{name}: too strong, its learning rate falls to {share:.3g}")

    def _validate(self, *, at_end: bool = False) -> None:
        """Measure the held-out sample where it is due."""
        if not self.judge.due(at_end=at_end):
            return
        begun = time.perf_counter()
        self._count()
        self._write(self.judge.measure())
        counters, stopped = self.state.counters, self.judge.stopped
        if stopped:
            self.progress.say(f"link {self.link.name}: ends at step {counters.range_step}: {stopped}")
            self._note("stopped", step=counters.step, reason=stopped)
        self.clock.leave_out(time.perf_counter() - begun)

    def _check_band(self, values: dict[str, float]) -> None:
        watched = [f"{phase.name}/{phase.watched_metric}" for phase in self.state.phases]
        place = self.link.name, self.state.counters.step
        check_band(values, watched, self.train, place, self.progress.say)

    def _may_pause(self) -> bool:
        """Report whether to look for a stop request now; several ranks agree at log intervals only."""
        step = self.state.counters.range_step
        return step < self.range_steps and (self.world.size == 1 or step % self.train.log_steps == 0)

    def _stop_if_asked(self) -> None:
        reason = self.stop.reason()
        if not self.world.any(bool(reason)):
            return
        self._save()
        raise Interrupted(
            f"link {self.link.name}: stopped by {reason or 'another rank'} at step "
            f"{self.state.counters.range_step} of {self.range_steps}; a snapshot is saved, "
            "the same command resumes"
        )

    def _snapshot_due(self) -> bool:
        every, step = self.train.snapshot_steps, self.state.counters.range_step
        # Several ranks look at log intervals only: they may step over a multiple of snapshot_steps.
        due = step // every > self.saved.step // every
        return self.world.any(due or time.monotonic() - self.saved.time_s >= self.train.snapshot_seconds)

    def _save(self) -> None:
        self._count()
        self._check_band(self.meter.means(self.world))
        if self.outputs is not None:
            self.outputs.sync()
        if self.world.leads:
            extra = {
                "meter": self.meter.state(),
                "throttle_meter": self.throttle_meter.state(),
                "smooth": self.smooth.state(),
                "last": dict(self.last),
                "logged": self.logged,
                "best": self.judge.state(),
            }
            state = {**self.state.state(self.job.keys), "extra": extra, "ranks": self.world.size}
            saved = self.store.save_snapshot(state, self.state.counters.range_step)
            self._note("snapshot", step=self.state.counters.step, file=saved.path.name)
        self.saved = _Moment(self.state.counters.range_step, time.monotonic())

    def _note(self, what: str, **fields: Any) -> None:
        if self.journal is not None:
            self.journal.add(what, range=self.link.name, **fields)


class _Moment(NamedTuple):
    """When the last snapshot was taken."""

    step: int
    time_s: float
