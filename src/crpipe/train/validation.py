"""Validation while training: what is measured, which checkpoint is best, when training stops early."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.campaign.records import BestReceipt
from crpipe.core.causes import is_present, plugin_errors
from crpipe.core.errors import CheckpointError, ConfigError, PluginError
from crpipe.core.text import counted
from crpipe.events.batch import Events, regroup
from crpipe.events.layout import Metric
from crpipe.loading.loader import count_held_out, held_out
from crpipe.train.answers import phases_of
from crpipe.train.checkpoints import CheckpointStore, load, write_receipt
from crpipe.train.link_start import Saved, verified
from crpipe.train.meter import totals_of_ranks
from crpipe.train.workload import Calibrates, Validates, Workload, WorkloadCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from crpipe.train.link_plan import LinkPlan
    from crpipe.train.state import TrainState
    from crpipe.train.step import Stepper

PREFIX = "validation/"
BLOCK_EVENTS = 256
_STREAM = 7  # keeps a block's random numbers apart from those of a step


def find_metric(name: str, workload: Workload, workload_name: str) -> Metric:
    """Find the metric that train.monitor names: the loss of a phase, or one that the workload validates.

    Raise ConfigError with the legal values.
    """
    with plugin_errors(f"train.workload: {workload_name}.phases failed"):
        losses = [Metric(f"{phase.name}/loss", f"loss of {phase.name}") for phase in phases_of(workload)]
        validated = workload.validation_metrics if isinstance(workload, Validates) else ()
        legal = {metric.name: metric for metric in (*losses, *validated)}
    if name not in legal:
        raise ConfigError(
            f"train.monitor: {name} is not measured by {workload_name}; legal values: {', '.join(legal)}"
        )
    return legal[name]


def is_better(metric: Metric, value: float, best: float | None) -> bool:
    """Return whether a value is better than the best one so far; one that is not finite never is."""

    def cost(value: float) -> float:
        if metric.better == "near":
            return abs(value - (metric.ideal or 0.0))
        return -value if metric.better == "high" else value

    return math.isfinite(value) and (best is None or cost(value) < cost(best))


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value so far and the checkpoint that had it, as a snapshot holds them.

    step: of the whole chain; range_step: of the link, as in the names of snapshots.
    """

    metric: str
    value: float
    step: int
    range_step: int
    checkpoint: str = ""
    sha256: str = ""

    def write(self, path: Path, link: str, key: str) -> None:
        """Write the receipt of the best checkpoint."""
        receipt = BestReceipt(
            range=link,
            key=key,
            checkpoint=self.checkpoint,
            sha256=self.sha256,
            step=self.step,
            metric=self.metric,
            value=self.value,
        )
        write_receipt(path, receipt)


class Validator:
    """Validates a link on held-out events, keeps the best checkpoint, and ends a link that stays worse.

    Blocks of the sample are divided among the ranks; each has random numbers of its own. So the result is the
    same for any number of ranks, all of them decide alike, and training goes on bit for bit as if nothing had
    been measured. Without train.validate_every it only calibrates, at the link's end.

    stopped: why the link ends early; empty while it goes on.
    """

    def __init__(
        self, plan: LinkPlan, store: CheckpointStore, stepper: Stepper, say: Callable[[str], None]
    ) -> None:
        """Raise ConfigError when there are no validation events, and for an unknown best metric."""
        self._plan, self._store, self._stepper, self._say = plan, store, stepper, say
        self._state, self._world, self._workload = stepper.state, stepper.world, stepper.workload
        self._train = train = plan.campaign.config.train
        self._receipt_path = plan.campaign.paths.best_receipt(plan.link.name)
        # This rank's blocks, each with its number, which decides on its random numbers.
        self._blocks: list[tuple[int, Events]] = []
        self._calibrates = isinstance(self._workload, Calibrates) and self._workload.calibration_events > 0
        has_events = (train.validate_every or self._calibrates) and any(
            count_held_out(shards, "validation") for shards in plan.validation
        )
        if train.validate_every:
            if not has_events:
                raise ConfigError(
                    f"train.validate_every: there are no validation events in {plan.validation[0].bulk}"
                    f"{' and the folders after it' if len(plan.validation) > 1 else ''}; raise "
                    "split.validation_fraction, or set train.validate_every: 0"
                )
            self._blocks = list(self._read_sample(train.validate_events))
        if self._calibrates and not has_events:
            say("no validation events: predicted uncertainties are not calibrated")
            self._calibrates = False
        self._metric: Metric | None = None
        if train.monitor:
            self._metric = find_metric(train.monitor, self._workload, train.workload)
        self._best: BestValue | None = None
        self._without = 0  # validations in a row without a better value
        self._measured = -1  # step of the link
        self.stopped = ""

    def due(self, *, at_end: bool) -> bool:
        """Return whether to measure now; at the link's end unless that was just done."""
        every, step = self._train.validate_every, self._state.counters.range_step
        if not every or step == self._measured:
            return False
        return at_end or step % every == 0

    def measure(self) -> dict[str, float]:
        """Measure, compare, and return the finite numbers; the state has counted all its steps."""
        counters = self._state.counters
        self._measured = counters.range_step
        means = self._means()
        values = {name: value for name, value in means.items() if math.isfinite(value)}
        if len(values) < len(means):
            names = ", ".join(sorted(means.keys() - values.keys()))
            self._say(f"warning: step {counters.step}: not finite: {names}")
        if self._metric:
            self._compare(self._metric, values)
        return values

    def _compare(self, metric: Metric, values: dict[str, float]) -> None:
        """Keep the state where it is the best so far; decide whether the link ends early."""
        counters, name = self._state.counters, PREFIX + metric.name
        value = values.get(name, math.nan)
        if is_better(metric, value, self._best.value if self._best else None):
            self._without = 0
            self._best = BestValue(metric.name, value, counters.step, counters.range_step)
            before = [buffer.clone() for buffer in self._state.model.buffers()]
            self.calibrate()
            if self._world.leads:
                state = {
                    **self._state.state(self._plan.campaign.run_keys),
                    "metrics": values,
                    "range": self._plan.link.name,
                    "best": {"metric": metric.name, "value": value},
                }
                saved = self._save(state, self._best)
                self._store.drop_replaced(saved.path.name)
            _restore(self._state.model.buffers(), before)  # training goes on as if nothing had been measured
        else:
            self._without += 1
            self._lower_rates()
        if self._train.early_stopping_patience and self._without >= self._train.early_stopping_patience:
            best = self._best
            text = f"best {best.value:.6g} at step {best.step}" if best else "never finite"
            self.stopped = f"no better {name} for {self._without} validations; {text}"

    def _lower_rates(self) -> None:
        """Lower the learning rates of all phases after ``plateau_after`` validations that were no better."""
        schedule = self._train.schedule
        if schedule.plateau_after and self._without % schedule.plateau_after == 0:
            factors = self._state.lower_rates(schedule.plateau_factor, schedule.plateau_least)
            shares = ", ".join(f"{name} {factor:.3g}" for name, factor in factors.items())
            self._say(
                f"no better validation {counted(self._without, 'time')}: learning rates fall to {shares}"
            )

    def _save(self, state: dict[str, Any], best: BestValue) -> Saved:
        """Write the best checkpoint, and then its receipt."""
        saved = self._store.save_best(state, best.range_step)
        self._best = replace(best, checkpoint=saved.path.name, sha256=saved.sha256)
        self._write_receipt(self._best)
        return saved

    def _write_receipt(self, best: BestValue) -> None:
        best.write(self._receipt_path, self._plan.link.name, self._store.key)

    def inherit(self) -> None:
        """Adopt the best checkpoint of the link before: a link without events changes nothing."""
        paths, parent = self._plan.campaign.paths, self._plan.link.parent
        row = BestReceipt.read_if_any(paths.best_receipt(parent)) if parent else None
        if self._metric is None or row is None or row.metric != self._metric.name:
            return
        self._best = BestValue(row.metric, row.value, row.step, 0)
        if self._world.leads:
            state = load(verified(paths.store(parent) / row.checkpoint).path)
            counters = {**state["counters"], "range_step": 0}  # the name says so, too
            self._save({**state, "range": self._plan.link.name, "counters": counters}, self._best)

    def finish(self) -> None:
        """Leave the receipt and the files of the best checkpoint as this job found them, on the leading rank.

        Later files are of an interrupted job under other keys of validation.
        """
        if self._metric is None:
            return
        if self._best is None:
            self._receipt_path.unlink(missing_ok=True)
        else:
            self._write_receipt(self._best)
        self._store.drop_best_after(self._best.range_step if self._best else -1)

    def state(self) -> dict[str, Any] | None:
        """Return what a snapshot needs."""
        if self._metric is None:
            return None
        best = asdict(self._best) if self._best else None
        return {"metric": self._metric.name, "without": self._without, "found": best}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Load what a snapshot held, unless it is about another metric, or about none.

        Raise CheckpointError when the best checkpoint is gone.
        """
        if self._metric is None:
            return
        if state is None or state["metric"] != self._metric.name:
            self._say(f"train.monitor: {self._metric.name} is compared from this step on")
            return
        self._without = state["without"]
        if state["found"]:
            self._best = BestValue(**state["found"])
            path = self._store.folder / self._best.checkpoint
            if not is_present(path):
                raise CheckpointError(
                    f"{path}: missing, the best checkpoint of train.monitor; restore it, or move the "
                    "snapshots of this link away to train it from its beginning"
                )

    # Uncertainties, corrected by what they are in the sample.

    def calibrate(self) -> None:
        """Calibrate the model on validation events, with the averaged weights, alike on all ranks.

        The events are the same whatever train.validate_every and train.validate_events are: these may change
        without changing a checkpoint. They are read block by block.
        """
        workload, state = self._workload, self._state
        if not isinstance(workload, Calibrates) or not self._calibrates:
            return
        mine = []
        with _as_evaluated(state), torch.no_grad():
            for number, events in self._read_sample(workload.calibration_events):
                state.seed_random(self._plan.campaign.config.seed, number, _STREAM, 0)
                with WorkloadCall(workload, "deviations", events):
                    mine.append((number, workload.deviations(state.model, events, state.generator)))
        blocks = sorted(itertools.chain(*self._world.gather(mine)), key=lambda block: block[0])
        names = blocks[0][1]
        joined = {name: np.concatenate([columns[name] for _, columns in blocks]) for name in names}
        with torch.no_grad(), plugin_errors(f"train.workload: {self._train.workload}.calibrate failed"):
            workload.calibrate(state.model, joined)

    # What is measured: the losses, and the workload's own numbers.

    def _read_sample(self, most: int) -> Iterator[tuple[int, Events]]:
        """Read this rank's blocks of a sample of at most so many events, each with its number."""
        config = self._plan.campaign.config
        budget = config.load.max_items
        parts = held_out(
            self._plan.validation,
            "validation",
            events=most,
            batch_events=min(BLOCK_EVENTS, config.load.batch_size),
            budget_items=budget,
            seed=config.seed,
        )
        for number, events in enumerate(regroup((events for _, events in parts), BLOCK_EVENTS, budget)):
            if number % self._world.size == self._world.rank:
                yield number, events.copy()  # it may be a view of all events read

    def _means(self) -> dict[str, float]:
        """Return the means over the whole sample, the same on all ranks; those that are not finite, too."""
        sums: dict[str, Tensor] = {}
        with _as_evaluated(self._state):
            for number, events in self._blocks:
                for name, value, weight in self._measure_block(number, events):
                    total = value.double() * weight
                    pair = torch.stack([total, torch.full_like(total, weight)])
                    sums[name] = sums[name] + pair if name in sums else pair
        totals = totals_of_ranks(sums, self._world)
        means = {f"{PREFIX}{name}": float(total / weight) for name, (total, weight) in totals.items()}
        return dict(self._world.gather(means)[0])

    def _measure_block(self, number: int, events: Events) -> Iterator[tuple[str, Tensor, float]]:
        state, workload, seed = self._state, self._workload, self._plan.campaign.config.seed
        state.seed_random(seed, number, _STREAM, 0)
        yield from self._stepper.measure(events, (seed, number))
        if isinstance(workload, Validates):
            state.seed_random(seed, number, _STREAM, 0)
            with torch.no_grad(), WorkloadCall(workload, "validate", events):
                columns = workload.validate(state.model, events, state.generator)
            weights = np.ones(len(events))
            if self._stepper.weight:
                weights = np.asarray(events.columns[self._stepper.weight], np.float64)
            for metric in workload.validation_metrics:
                values = np.asarray(columns.get(metric.name), np.float64)
                if values.shape != (len(events),):
                    raise PluginError(
                        f"{type(workload).__name__}.validate: {metric.name} has the shape {values.shape}, "
                        f"expected ({len(events)},): one number for each event"
                    )
                mean = float(np.average(values, weights=weights)) if weights.any() else 0.0
                value = torch.tensor(mean, dtype=torch.double, device=self._world.device)
                yield metric.name, value, float(weights.sum())


@contextlib.contextmanager
def _as_evaluated(state: TrainState) -> Iterator[None]:
    """Use the averaged weights and the mode for evaluation; then restore weights, buffers and modes."""
    before = [value.detach().clone() for value in state.averaged.values()]
    with as_before(state.model):
        try:
            with torch.no_grad():
                for name, parameter in state.averaged.items():
                    parameter.copy_(state.average[name])
            state.model.eval()
            yield
        finally:
            with torch.no_grad():
                _restore(state.averaged.values(), before)


@contextlib.contextmanager
def as_before(model: nn.Module) -> Iterator[None]:
    """Restore the buffers and modes of a model that is only looked at."""
    before = [buffer.clone() for buffer in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            _restore(model.buffers(), before)
        for module, mode in modes:
            module.training = mode


def _restore(tensors: Iterable[Tensor], values: list[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
