"""The only training loop: batches in, a trained state out, for any workload."""

from __future__ import annotations

import functools
import itertools
import time
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from crpipe.core.causes import plugin_errors
from crpipe.core.errors import CheckpointError, DivergenceError, Interrupted
from crpipe.core.journal import Journal
from crpipe.train.answers import model_of, phases_of
from crpipe.train.checkpoints import CheckpointStore, load, refuse_not_finite, refuse_other_keys
from crpipe.train.link_start import Saved, start_of, verified
from crpipe.train.meter import Clock, GpuSampler, Meter, Profiler, Smooth, UncountedSteps
from crpipe.train.metrics_log import Outputs
from crpipe.train.numerics import c_library, compare, kinds, numerics, numerics_of
from crpipe.train.pretrained import held_out_warning
from crpipe.train.schedule import Schedules
from crpipe.train.state import TrainState
from crpipe.train.step import Micro, Stepper, compile_modules
from crpipe.train.trackers import find_loggers
from crpipe.train.validation import Validator, as_before
from crpipe.train.workload import Calibrates, Fits, Histograms, Workload, WorkloadCall, check_weighted

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from crpipe.core.signals import StopRequest
    from crpipe.core.text import Progress
    from crpipe.events.batch import Cursor, Events
    from crpipe.train.link_plan import LinkPlan
    from crpipe.train.ranks import World

Group = list[tuple["Events", "Cursor"]]
Ready = dict["Cursor", list["Micro"]]
MOVING_AVERAGE_STEPS = 500
MOST_SKIPPED = 20  # steps in a row that are not finite
HISTOGRAM_LOGS = 25  # rows of metrics between histograms
WARN_SHARE = 0.3  # of train.stop_loss


class Trainer:
    """Trains one link to its end or to a stop request; a snapshot then resumes exactly.

    start: the checkpoint that the link starts from, of the link before it or of ``train.pretrained``; None:
    fresh weights.
    """

    def __init__(
        self,
        plan: LinkPlan,
        workload: Workload,
        world: World,
        progress: Progress,
        store: CheckpointStore,
        stop: StopRequest,
        start: Saved | None = None,
        *,
        profile_steps: int = 0,
    ) -> None:
        config, paths, train = plan.campaign.config, plan.campaign.paths, plan.campaign.config.train
        self.plan, self.link, self.train = plan, plan.link, train
        self.workload, self.world, self.progress = workload, world, progress
        self.store, self.stop, self.start = store, stop, start
        self.loader = plan.open_loader(world)
        layout = self.loader.layout
        if not self.loader.events:
            progress.message(plan.nothing_to_train_on())
        plan.use_histograms(workload, layout)
        if train.validate_every or isinstance(workload, Calibrates):
            plan.check_validation()
        self.loggers = find_loggers(train.loggers)
        check_weighted(workload, train.workload, layout)
        torch.manual_seed(config.seed)
        self.state = state = TrainState(model_of(workload), phases_of(workload), config.seed, world.device)
        self.meter, self.throttle_meter = Meter(world.device), Meter(world.device)
        self.stepper = Stepper(
            train, config.load, workload, state, world, self.meter, layout.weight, self.throttle_meter
        )
        self.validator = Validator(plan, store, self.stepper, progress.message)
        self.schedules = Schedules.of(train, {phase.name: phase.schedule for phase in state.phases})
        self.per_step = max(phase.repeat for phase in state.phases) if train.fresh_batches else 1
        self.range_steps = -(-self.loader.batches_per_epoch * plan.epochs // self.per_step)
        self.uncounted = UncountedSteps(world, layout.key)
        self.smooth = Smooth(state.phases, MOVING_AVERAGE_STEPS // train.log_steps)
        self.clock = Clock()
        self.gpu = GpuSampler(world.device)
        steps = profile_steps if world.leads else 0
        self.profiler = Profiler(steps, paths.run_dir() / "profile.json", progress.message)
        self.journal = Journal(paths.train_journal()) if world.leads else None
        self.outputs: Outputs | None = None
        self.last: dict[str, float] = {}
        self.logged = 0  # the last step with a row of metrics
        self.compiled = False
        self._snapshot_taken()

    def run(self) -> Saved | None:
        """Train to the link's end and return its checkpoint, which the leading rank alone writes.

        Raise Interrupted after a snapshot when asked to stop, DivergenceError when losses exceed their limits
        or too many steps in a row are not finite; the last good snapshot is then kept.
        """
        train = self.train
        # Restore: a snapshot of this link, the checkpoint of the link before, or what train.pretrained names.
        self._restore()
        counters = self.state.counters
        with self._open_outputs() as self.outputs, closing(self._groups()) as groups:
            for group, ready in groups:
                # Step: all phases, on one group of batches.
                if train.compile and not self.compiled:
                    self._compile(group)
                self._step(group, ready)
                self.profiler.step()
                # Measure: what the step did, and the held-out events.
                if counters.range_step % train.throttle_steps == 0:
                    self._throttle()
                if counters.range_step % train.log_steps == 0:
                    self._log()
                self._write_histograms(group)
                self._validate()
                # Snapshot: when one is due, or before stopping.
                if self._may_pause():
                    self._stop_if_asked()
                    if self._snapshot_due():
                        self._save_snapshot()
            # Checkpoint: the end of the link.
            self._throttle()
            self._log()
            self._validate_at_end()
            return self._save_checkpoint()

    # Restore.

    def _restore(self) -> None:
        """Restore the state where training goes on.

        In this order: the newest good snapshot of this key, the checkpoint of the link before, that of
        train.pretrained, fresh weights.
        """
        name, say = self.link.name, self.progress.message
        self.numerics = kinds(self.world.gather(numerics(self.world)))
        snapshot = self.world.gather(self._newest_snapshot())[0]
        if snapshot is not None:
            self._resume(snapshot)
            say(f"link {name}: resumes at step {self.state.counters.range_step}")
        elif self.start is None:
            self._fit()
            say(f"link {name}: starts from fresh weights")
        elif self.link.parent:
            path = self.start.path
            checkpoint = load(verified(path).path)
            refuse_other_keys(checkpoint, self.plan.campaign.run_keys, path)
            self._compare_numerics(checkpoint, path)
            self.state.restore(checkpoint)
            self.state.counters = self.state.counters.of_next_link()
            if not self.state.counters.step:  # the links before had no event
                self._fit()
                self._keep_fit_of_pretrained()
            say(f"link {name}: starts from the checkpoint of {self.link.parent}")
        else:
            self._init_weights(self.start)
        earlier = [each for each in self.state.numerics if each not in self.numerics]
        self.state.numerics = [*earlier, *self.numerics]
        self._note("numerics", **self.numerics[0], c_library=c_library())
        self._snapshot_taken()

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
        self._compare_numerics(snapshot, path)
        self.state.restore(snapshot)
        self.state.numerics = numerics_of(snapshot)
        extra = snapshot["extra"]
        self.meter.restore(extra["meter"], self.world)
        self.smooth.restore(extra["smooth"])
        self.throttle_meter.restore(extra["throttle_meter"], self.world)
        self.last = extra["last"]
        self.logged = extra.get("logged", 0)
        self.validator.restore(extra["best"])

    def _init_weights(self, source: Saved) -> None:
        """Start the first link from weights of another training, or go on after a link of another run."""
        train, state, say = self.train, self.state, self.progress.message
        checkpoint = load(source.path)
        warning = held_out_warning(source, checkpoint["keys"])
        if warning:
            say(f"warning: {warning}")
        if train.start_after:
            self._compare_numerics(checkpoint, source.path)
            say(state.continue_from(checkpoint, train.on_optimizer_change))
            self._refuse_not_finite(source)
            say(f"link {self.link.name}: goes on after {train.start_after}, from {source.path}")
            return
        match = state.init_from(checkpoint, train.init_map)
        self._fit()  # after it, because it may have scaled what the fit sees
        state.init_from(checkpoint, train.init_map)  # and what it fitted itself counts, not this fit
        self._refuse_not_finite(source)
        say(match.describe())
        if not train.init_map:
            say(state.load_optimizers(checkpoint, train.on_optimizer_change))
        if self.world.leads:
            match.record(source, warning).write(self.plan.campaign.paths.init_from())

    def _fit(self) -> None:
        """Fit what the workload fits to training events, before the first step; the leading rank does it."""
        workload, model = self.workload, self.state.model
        if not isinstance(workload, Fits) or not self.loader.events:
            return
        if self.world.leads:
            what = f"train.workload: {self.train.workload}.fit failed"
            with torch.no_grad(), plugin_errors(what):
                workload.fit(model, self.plan.training_sample(workload.fit_events))
        buffers = [buffer.cpu() for buffer in model.buffers()] if self.world.leads else None
        fitted = self.world.gather(buffers)[0]
        for buffer, value in zip(model.buffers(), fitted, strict=True):
            buffer.copy_(value)

    def _keep_fit_of_pretrained(self) -> None:
        """Take what train.pretrained fitted itself, as a first link with events does."""
        campaign, fits = self.plan.campaign, isinstance(self.workload, Fits)
        first = start_of(campaign, campaign.chain.links[0]) if fits and not self.train.start_after else None
        if first is not None:
            self.state.init_from(load(first.path), self.train.init_map)

    def _refuse_not_finite(self, source: Saved) -> None:
        for weights in (dict(self.state.model.named_parameters()), self.state.average):
            refuse_not_finite(source.path, weights)

    def _compare_numerics(self, state: Mapping[str, Any], path: Path) -> None:
        policy = self.train.numerics
        compare(numerics_of(state), self.numerics, str(path), policy, self.progress.message)

    # Step.

    def _groups(self) -> Generator[tuple[Group, Ready]]:
        """Yield the batches of each step, and their micro-batches, until the link ends."""
        collate = functools.partial(self.stepper.collate_ahead, seed=self.plan.seed)
        workers = self.plan.campaign.config.load.collate_workers
        batches = self.loader.prepared_batches(collate, self.state.counters.cursor, workers=workers)
        with closing(batches) as stream, self.gpu, self.profiler:
            while not self.validator.stopped:
                waiting = time.perf_counter()
                drawn = list(itertools.islice(stream, self.per_step))
                self.clock.waited += time.perf_counter() - waiting
                if not drawn:
                    return
                ready = {cursor: micro for _, cursor, micro in drawn}
                yield [(events, cursor) for events, cursor, _ in drawn], ready

    def _compile(self, group: Group) -> None:
        events, cursor = group[0]
        probe = functools.partial(self.stepper.probe, events, (*self.plan.seed, *cursor))
        mode = self.train.compile
        compiles = compile_modules(self.state.model, probe, self.progress.message, mode)
        self._note("compile", requested=mode, compiled=compiles)
        self.compiled = True

    def _step(self, group: Group, ready: Ready) -> None:
        counters = self.state.counters
        done = counters.range_step / self.range_steps
        first, last = self.plan.progress
        rate, phase_rates = self.schedules.factors(counters.step, first + done * (last - first))
        if isinstance(self.train.compile, str):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call] # outputs may go
        bad = self.stepper.step(group, self.plan.seed, rate, phase_rates=phase_rates, ready=ready)
        counters.step += 1
        counters.range_step += 1
        counters.cursor = group[-1][1]
        self.uncounted.add(counters.step, bad + self.stepper.overflowed, group)
        self.clock.rate, self.clock.phase_rates = rate, phase_rates
        if len(self.uncounted) >= self.train.log_steps:
            self._count()

    def _count(self) -> None:
        """Count the steps since the last call, and report the skipped ones."""
        counters = self.state.counters
        for step, batches, events, overflowed in self.uncounted.count(counters, self.clock):
            self._note("skipped", step=step, batches=batches, events=events)
            among = f"skipped; among its events: {', '.join(events[:3])}"
            if overflowed:
                among = "skipped, and its loss scale is halved; this is usual in the first steps of float16"
            self.progress.message(
                f"step {step}: {'gradients overflowed' if overflowed else 'not finite'}, {among}"
            )
        if counters.skipped_in_row >= MOST_SKIPPED:
            raise DivergenceError(
                f"link {self.link.name}: {counters.skipped_in_row} steps in a row were not finite; "
                "the last good snapshot is kept; lower the learning rates in a new run"
            )

    # Measure.

    def _open_outputs(self) -> AbstractContextManager[Outputs | None]:
        """Return the files and loggers of metrics, which only the leading rank has."""
        if not self.world.leads:
            return nullcontext()
        step, say = self.state.counters.step, self.progress.message
        return Outputs(self.plan.campaign, self.link.name, step, self.logged, self.loggers, say)

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
        self._check_loss_limits(values)

    def _write(self, values: dict[str, float]) -> None:
        """Write metrics to the files and loggers, with their place in the chain."""
        if self.outputs is not None:
            counters = self.state.counters
            row = {"step": counters.step, "range": self.link.name, "range_step": counters.range_step}
            row |= {"range_steps": self.range_steps, "epoch": counters.cursor.epoch}
            row |= {"events": counters.events, "items": counters.items, "skipped": counters.skipped}
            self.outputs.add(row, values)
            self.logged = counters.step

    def _write_histograms(self, group: Group) -> None:
        every, step = HISTOGRAM_LOGS * self.train.log_steps, self.state.counters.step
        if self.outputs is None or step % every:
            return
        if isinstance(self.workload, Histograms):
            events = group[-1][0]
            model, generator = self.state.model, self.state.generator
            with torch.no_grad(), as_before(model), WorkloadCall(self.workload, "histograms", events):
                arrays = self.workload.histograms(model, events, generator)
            self.outputs.histograms(step, arrays)

    def _check_loss_limits(self, values: Mapping[str, float]) -> None:
        """Warn of a loss beyond WARN_SHARE of train.stop_loss; raise DivergenceError beyond that."""
        step, train = self.state.counters.step, self.train
        for phase in self.state.phases:
            name = f"{phase.name}/{phase.watched_metric}"
            value = values.get(name, 0.0)
            text = f"step {step}: {name} = {value:.4g} is beyond"
            if abs(value) > train.stop_loss:
                raise DivergenceError(
                    f"link {self.link.name}, {text} ± {train.stop_loss:g} (train.stop_loss); the last good "
                    "snapshot is kept; lower the learning rates in a new run from a checkpoint"
                )
            if abs(value) > (limit := WARN_SHARE * train.stop_loss):
                self.progress.message(f"warning: {text} ± {limit:g} ({WARN_SHARE} of train.stop_loss)")

    def _throttle(self) -> None:
        """Decide with the means of the steps since the last decision, whatever train.log_steps is."""
        if not any(phase.throttle for phase in self.state.phases):
            return
        for name in self.state.throttle(self.throttle_meter.read(self.world)):
            factor = self.state.rate_factors[name]
            self.progress.message(f"{name}: too strong, its learning rate falls to {factor:.3g}")

    def _validate(self, *, at_end: bool = False) -> None:
        """Measure the held-out sample where it is due."""
        if not self.validator.due(at_end=at_end):
            return
        started = time.perf_counter()
        self._count()
        self._write(self.validator.measure())
        counters, stopped = self.state.counters, self.validator.stopped
        if stopped:
            self.progress.message(f"link {self.link.name}: ends at step {counters.range_step}: {stopped}")
            self._note("stopped", step=counters.step, reason=stopped)
        self.clock.leave_out(time.perf_counter() - started)

    def _validate_at_end(self) -> None:
        if self.range_steps:
            self._validate(at_end=True)
        else:
            self.validator.inherit()

    # Snapshot and checkpoint.

    def _may_pause(self) -> bool:
        """Return whether to look for a stop request now; several ranks agree at log intervals only."""
        step = self.state.counters.range_step
        if self.validator.stopped or step >= self.range_steps:
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
        due = step // every > self.snapshot_step // every
        return self.world.any(due or time.monotonic() - self.snapshot_time >= self.train.snapshot_seconds)

    def _save_snapshot(self) -> None:
        self._count()
        self._check_loss_limits(self.meter.means(self.world))
        if self.outputs is not None:
            self.outputs.sync()
        meters = {"meter": self.meter, "throttle_meter": self.throttle_meter}
        sums = {name: meter.state(self.world) for name, meter in meters.items()}
        if self.world.leads:
            extra = {
                **sums,
                "smooth": self.smooth.state(),
                "last": dict(self.last),
                "logged": self.logged,
                "best": self.validator.state(),
            }
            weights = self.state.state(self.plan.campaign.run_keys)
            state = {**weights, "extra": extra, "ranks": self.world.size}
            saved = self.store.save_snapshot(state, self.state.counters.range_step)
            self._note("snapshot", step=self.state.counters.step, file=saved.path.name)
        self._snapshot_taken()

    def _snapshot_taken(self) -> None:
        """Count from here to the next snapshot."""
        self.snapshot_step, self.snapshot_time = self.state.counters.range_step, time.monotonic()

    def _save_checkpoint(self) -> Saved | None:
        """Write the finished checkpoint on the leading rank; the others return None."""
        keys = self.plan.campaign.run_keys
        if self.outputs is not None:
            self.outputs.hyper_parameters(self.state.counters.step, keys, self.last)
        self.validator.calibrate()
        if not self.world.leads:
            return None
        state = {**self.state.state(keys), "metrics": self.last, "range": self.link.name}
        self.validator.finish()
        if self.validator.stopped:
            state["stopped"] = self.validator.stopped
        return self.store.save_checkpoint(state)

    def _note(self, what: str, **fields: Any) -> None:
        if self.journal is not None:
            self.journal.add(what, range=self.link.name, **fields)
