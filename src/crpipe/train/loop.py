"""The only training loop: batches in, a trained state out, for any workload."""

from __future__ import annotations

import functools
import itertools
import time
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from crpipe.core.errors import CheckpointError, DivergenceError, Interrupted
from crpipe.core.journal import Journal
from crpipe.train.checkpoints import load, refuse_not_finite, refuse_other_keys, verified
from crpipe.train.meter import Clock, GpuSampler, Meter, Profiler, Smooth, UncountedSteps, check_loss_limits
from crpipe.train.metrics_log import Outputs, find_loggers
from crpipe.train.numerics import add_to, c_library, judge, numerics, recorded
from crpipe.train.pretrained import has_seen
from crpipe.train.schedule import Schedules
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper, compile_modules
from crpipe.train.validation import Validator
from crpipe.train.workload import Histograms, WorkloadCall, check_weighted

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.signals import StopRequest
    from crpipe.core.text import Progress
    from crpipe.events.batch import Cursor, Events
    from crpipe.train.checkpoints import Saved, Store
    from crpipe.train.link_plan import LinkPlan
    from crpipe.train.ranks import World
    from crpipe.train.step import Micro
    from crpipe.train.workload import Workload

Group = list[tuple["Events", "Cursor"]]
Ready = dict["Cursor", list["Micro"]]
MOVING_AVERAGE_STEPS = 500


class Trainer:
    """Trains one link to its end or to a stop request; a snapshot then resumes exactly.

    start: the checkpoint that the link starts from, of the link before it or of ``train.init_from``; None:
    fresh weights.
    """

    def __init__(
        self,
        campaign: Campaign,
        plan: LinkPlan,
        workload: Workload,
        world: World,
        progress: Progress,
        store: Store,
        stop: StopRequest,
        start: Saved | None = None,
        *,
        profile_steps: int = 0,
    ) -> None:
        config, paths, train = campaign.config, campaign.paths, campaign.config.train
        self.campaign, self.plan, self.link, self.train = campaign, plan, plan.link, train
        self.workload, self.world, self.progress = workload, world, progress
        self.store, self.stop, self.origin = store, stop, start
        self.loader = plan.open_loader(campaign, world)
        layout = self.loader.layout
        if not self.loader.events:
            progress.message(plan.nothing_to_train_on())
        plan.use_histograms(campaign, workload, layout)
        if train.validate_steps:
            plan.check_validation(campaign)
        self.loggers = find_loggers(train.loggers)
        check_weighted(workload, train.workload, layout)
        torch.manual_seed(config.seed)
        self.state = state = TrainState(workload.model(), workload.phases(), config.seed, world.device)
        self.meter, self.throttle_meter = Meter(world.device), Meter(world.device)
        self.stepper = Stepper(
            train, config.load, workload, state, world, self.meter, layout.weight, self.throttle_meter
        )
        self.judge = Validator(campaign, self.link, plan.validation, store, self.stepper, progress.message)
        self.schedules = Schedules.of(train, {phase.name: phase.schedule for phase in state.phases})
        self.per_step = max(phase.repeat for phase in state.phases) if train.fresh_batches else 1
        self.range_steps = -(-self.loader.batches_per_epoch * plan.epochs // self.per_step)
        self.pending = UncountedSteps(world, layout.key)
        self.smooth = Smooth(state.phases, MOVING_AVERAGE_STEPS // train.log_steps)
        self.clock = Clock()
        self.gpu = GpuSampler(world.device)
        steps = (profile_steps or train.profile_steps) if world.leads else 0
        self.profiler = Profiler(steps, paths.run_dir() / "profile.json", progress.message)
        self.journal = Journal(paths.train_journal()) if world.leads else None
        self.outputs: Outputs | None = None
        self.last: dict[str, float] = {}
        self.logged = 0  # the last step with a row of metrics
        self.compiled = False
        self.saved = _Moment(0, time.monotonic())

    def run(self) -> Saved | None:
        """Train to the link's end and return its checkpoint, which the leading rank alone writes.

        Raise Interrupted after a snapshot when asked to stop, DivergenceError when losses leave their band or
        too many steps in a row are not finite; the last good snapshot is then kept.
        """
        train = self.train
        self._restore()
        counters = self.state.counters
        with self._open_outputs() as self.outputs, closing(self._groups()) as groups:
            for group, ready in groups:
                if train.compile and not self.compiled:
                    self._compile(group)
                self._step(group, ready)
                self.profiler.step()
                if counters.range_step % train.throttle_steps == 0:
                    self._throttle()
                if counters.range_step % train.log_steps == 0:
                    self._log()
                self._write_histograms(group)
                self._validate()
                if self._may_pause():
                    self._stop_if_asked()
                    if self._snapshot_due():
                        self._save_snapshot()
            self._throttle()
            self._log()
            self._validate_at_end()
            return self._save_checkpoint()

    def _restore(self) -> None:
        """Restore the state where training goes on.

        In this order: the newest good snapshot of this key, the checkpoint of the link before, that of
        train.init_from, fresh weights.
        """
        name, say = self.link.name, self.progress.message
        self.numerics = self.world.gather(numerics(self.world))
        snapshot = self.world.gather(self._newest_snapshot())[0]
        if snapshot is not None:
            self._resume(snapshot)
            say(f"link {name}: resumes at step {self.state.counters.range_step}")
        elif self.origin is None:
            say(f"link {name}: starts from fresh weights")
        elif self.link.parent:
            path = self.origin.path
            checkpoint = load(verified(path).path)
            refuse_other_keys(checkpoint, self.campaign.run_keys, path)
            self._judge_numerics(checkpoint, path)
            self.state.restore(checkpoint)
            self.state.counters = self.state.counters.of_next_link()
            say(f"link {name}: starts from the checkpoint of {self.link.parent}")
        else:
            self._begin_from(self.origin)
        for each in self.numerics:
            self.state.numerics = add_to(self.state.numerics, each)
        self._note("numerics", **self.numerics[0], c_library=c_library())
        self.saved = _Moment(self.state.counters.range_step, time.monotonic())

    def _begin_from(self, source: Saved) -> None:
        """Start the first link from weights of another training, or go on after a link of another run."""
        train, state, say = self.train, self.state, self.progress.message
        checkpoint = load(source.path)
        warning = has_seen(source, checkpoint["keys"])
        if warning:
            say(f"warning: {warning}")
        if train.start_after:
            self._judge_numerics(checkpoint, source.path)
            say(state.continue_from(checkpoint, train.on_optimizer_change))
            self._refuse_not_finite(source)
            say(f"link {self.link.name}: goes on after {train.start_after}, from {source.path}")
            return
        match = state.init_from(checkpoint, train.init_map)
        self._refuse_not_finite(source)
        say(match.describe())
        if not train.init_map:
            say(state.load_optimizers(checkpoint, train.on_optimizer_change))
        if self.world.leads:
            match.record(source, warning).write(self.campaign.paths.init_from())

    def _refuse_not_finite(self, source: Saved) -> None:
        for weights in (dict(self.state.model.named_parameters()), self.state.average):
            refuse_not_finite(source.path, weights)

    def _save_checkpoint(self) -> Saved | None:
        """Write the finished checkpoint on the leading rank; the others return None."""
        keys = self.campaign.run_keys
        if self.outputs is not None:
            self.outputs.hyper_parameters(self.state.counters.step, keys, self.last)
        if not self.world.leads:
            return None
        state = {**self.state.state(keys), "metrics": self.last, "range": self.link.name}
        self.judge.finish()
        stopped = {"stopped": self.judge.stopped} if self.judge.stopped else {}
        return self.store.save_checkpoint({**state, **stopped})

    def _newest_snapshot(self) -> Path | None:
        if not self.world.leads:
            return None
        self.store.drop_parts()
        return self.store.newest_snapshot(self.progress.message)

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
        judge(recorded(state), self.numerics[0], str(path), self.train.numerics, self.progress.message)

    def _open_outputs(self) -> AbstractContextManager[Outputs | None]:
        """Return the files and loggers of metrics, which only the leading rank has."""
        if not self.world.leads:
            return nullcontext()
        step, say = self.state.counters.step, self.progress.message
        return Outputs(self.campaign, self.link.name, step, self.logged, self.loggers, say)

    def _compile(self, group: Group) -> None:
        events, cursor = group[0]
        probe = functools.partial(self.stepper.probe, events, (*self.plan.seed, *cursor))
        compile_modules(self.state.model, probe, self.progress.message)
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

    def _groups(self) -> Generator[tuple[Group, Ready]]:
        """Yield the batches of each step, and their micro-batches, until the link ends."""
        collate = functools.partial(self.stepper.collate_ahead, seed=self.plan.seed)
        workers = self.campaign.config.load.collate_workers
        batches = self.loader.made(collate, self.state.counters.cursor, workers=workers)
        anomalies = torch.autograd.set_detect_anomaly(self.train.detect_anomaly)
        with closing(batches) as stream, self.gpu, self.profiler, anomalies:
            while not self.judge.stopped:
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
        first, last = self.plan.progress
        rate, own_rates = self.schedules.factors(counters.step, first + done * (last - first))
        bad = self.stepper.step(group, self.plan.seed, rate, own_rates=own_rates, ready=ready)
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
            self.progress.message(
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
        self.progress.update(f"train {self.link.name}", counters.range_step, self.range_steps, note)
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
            self.progress.message(f"{name}: too strong, its learning rate falls to {share:.3g}")

    def _validate(self, *, at_end: bool = False) -> None:
        """Measure the held-out sample where it is due."""
        if not self.judge.due(at_end=at_end):
            return
        begun = time.perf_counter()
        self._count()
        self._write(self.judge.measure())
        counters, stopped = self.state.counters, self.judge.stopped
        if stopped:
            self.progress.message(f"link {self.link.name}: ends at step {counters.range_step}: {stopped}")
            self._note("stopped", step=counters.step, reason=stopped)
        self.clock.leave_out(time.perf_counter() - begun)

    def _validate_at_end(self) -> None:
        if self.range_steps:
            self._validate(at_end=True)
        else:
            self.judge.inherit()

    def _check_band(self, values: dict[str, float]) -> None:
        watched = [f"{phase.name}/{phase.watched_metric}" for phase in self.state.phases]
        place = self.link.name, self.state.counters.step
        check_loss_limits(values, watched, self.train, place, self.progress.message)

    def _may_pause(self) -> bool:
        """Report whether to look for a stop request now; several ranks agree at log intervals only."""
        step = self.state.counters.range_step
        if self.judge.stopped or step >= self.range_steps:
            return False
        return self.world.size == 1 or step % self.train.log_steps == 0

    def _stop_if_asked(self) -> None:
        reason = self.stop.reason()
        if not self.world.any(bool(reason)):
            return
        self._save_snapshot()
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

    def _save_snapshot(self) -> None:
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
            state = {**self.state.state(self.campaign.run_keys), "extra": extra, "ranks": self.world.size}
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
