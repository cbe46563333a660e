"""Validation while training: what is measured, which checkpoint is best, when training stops early."""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from crpipe.campaign.records import BestReceipt
from crpipe.core.causes import is_present, plugin_errors
from crpipe.core.errors import CheckpointError, ConfigError, PluginError
from crpipe.events.batch import Events, regroup
from crpipe.events.layout import Metric
from crpipe.loading.loader import held_out
from crpipe.train.checkpoints import load, verified, write_receipt
from crpipe.train.workload import Validates, WorkloadCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.ranges import ChainLink
    from crpipe.loading.loader import RangeShards
    from crpipe.train.checkpoints import Saved, Store
    from crpipe.train.ranks import World
    from crpipe.train.state import TrainState
    from crpipe.train.step import Stepper
    from crpipe.train.workload import Columns, Workload

# Validation inside training: the losses and the workload's own numbers on a fixed held-out sample.
#
# Blocks of the sample are divided among the ranks; each has random numbers of its own, so that the result
# is the same for any number of ranks, and training continues as if nothing had been measured.


PREFIX = "validation/"
BLOCK_EVENTS = 256
_STREAM = 7  # keeps a block's random numbers apart from those of a step


class SampleBlock(NamedTuple):
    """Some events of the sample; the number decides on their rank and their random numbers."""

    number: int
    events: Events


def legal_metrics(workload: Workload) -> dict[str, Metric]:
    """Return what train.keep_best may name: the loss of each phase, and what the workload validates."""
    losses = [Metric(f"{phase.name}/loss", f"loss of {phase.name}") for phase in workload.phases()]
    own = workload.validation_metrics if isinstance(workload, Validates) else ()
    return {metric.name: metric for metric in (*losses, *own)}


def find_metric(name: str, workload: Workload, workload_name: str) -> Metric:
    """Find the metric that train.keep_best names; raise ConfigError with the legal values."""
    with plugin_errors(f"train.workload: {workload_name}.phases failed"):
        legal = legal_metrics(workload)
    if name not in legal:
        raise ConfigError(
            f"train.keep_best: {name} is not measured by {workload_name}; legal values: {', '.join(legal)}"
        )
    return legal[name]


def read_sample(campaign: Campaign, ranges: Sequence[RangeShards], world: World) -> list[SampleBlock]:
    """Read this rank's blocks of the held-out sample; raise ConfigError when the sample is empty."""
    config, load = campaign.config, campaign.config.load
    parts = held_out(
        ranges,
        "validation",
        events=config.train.validate_events,
        batch_events=min(BLOCK_EVENTS, load.batch_events),
        budget_items=load.budget_items,
        seed=config.seed,
    )
    blocks = []
    number = -1
    blocked = regroup((events for _, events in parts), BLOCK_EVENTS, load.budget_items)
    for number, events in enumerate(blocked):
        if number % world.size == world.rank:
            # A copy: it may be a view of all events read.
            blocks.append(SampleBlock(number, events.copy()))
    if number < 0:
        raise ConfigError(
            f"train.validate_steps: there are no validation events in {ranges[0].bulk}"
            f"{' and the folders after it' if len(ranges) > 1 else ''}; raise split.validation_fraction, or "
            "set train.validate_steps: 0"
        )
    return blocks


class Validation:
    """Measures a training state on blocks of events, and leaves it bit for bit as it was."""

    def __init__(self, blocks: Sequence[SampleBlock], seed: int, stepper: Stepper, weight: str = "") -> None:
        """weight: the event column with the weights of the events; empty: all count alike."""
        self._blocks = blocks
        self._seed = seed
        self._workload = stepper.workload
        self._stepper = stepper
        self._state = stepper.state
        self._world = stepper.world
        self._weight = weight

    def measure(self) -> dict[str, float]:
        """Return the means over the whole sample, the same on all ranks; those that are not finite, too."""
        sums: dict[str, Tensor] = {}
        with _as_evaluated(self._state):
            for block in self._blocks:
                for name, value, weight in self._measure_block(block):
                    total = value.double() * weight
                    pair = torch.stack([total, torch.full_like(total, weight)])
                    sums[name] = sums[name] + pair if name in sums else pair
        # A rank without any block knows no name.
        names = sorted({name for seen in self._world.gather(list(sums)) for name in seen})
        nothing = torch.zeros(2, dtype=torch.double, device=self._world.device)
        table = self._world.sum(torch.stack([sums.get(name, nothing) for name in names])).cpu()
        means = {
            f"{PREFIX}{name}": float(total / weight)
            for name, (total, weight) in zip(names, table, strict=True)
        }
        return dict(self._world.gather(means)[0])

    def _measure_block(self, block: SampleBlock) -> Iterator[tuple[str, Tensor, float]]:
        state, events = self._state, block.events
        self._seed_block(block.number)
        yield from self._stepper.measure(events, (self._seed, block.number))
        if isinstance(self._workload, Validates):
            self._seed_block(block.number)
            with torch.no_grad(), WorkloadCall(self._workload, "validate", events):
                found = self._workload.validate(state.model, events, state.generator)
            weights = np.ones(len(events))
            if self._weight:
                weights = np.asarray(events.columns[self._weight], np.float64)
            for metric in self._workload.validation_metrics:
                values = self._column(found, metric.name, len(events))
                mean = float(np.average(values, weights=weights)) if weights.any() else 0.0
                value = torch.tensor(mean, dtype=torch.double, device=self._world.device)
                yield metric.name, value, float(weights.sum())

    def _column(self, found: Columns, name: str, events: int) -> NDArray[np.float64]:
        values = np.asarray(found.get(name), np.float64)
        if values.shape != (events,):
            raise PluginError(
                f"{type(self._workload).__name__}.validate: {name} has the shape {values.shape}, expected "
                f"({events},): one number for each event"
            )
        return values

    def _seed_block(self, number: int) -> None:
        sequence = np.random.SeedSequence([self._seed, number, _STREAM, 0])
        seed = int(sequence.generate_state(1, np.uint64)[0] >> 1)
        self._state.generator.manual_seed(seed)
        torch.manual_seed(seed)


@contextlib.contextmanager
def _as_evaluated(state: TrainState) -> Iterator[None]:
    """Use the averaged weights and the mode for evaluation; then restore weights, buffers and modes."""
    named = dict(state.model.named_parameters())
    own = {name: named[name].detach().clone() for name in state.averaged}
    buffers = [(buffer, buffer.detach().clone()) for buffer in state.model.buffers()]
    modes = [(module, module.training) for module in state.model.modules()]
    try:
        with torch.no_grad():
            for name in state.averaged:
                named[name].copy_(state.average[name])
        state.model.eval()
        yield
    finally:
        with torch.no_grad():
            for name, value in own.items():
                named[name].copy_(value)
            for buffer, value in buffers:
                buffer.copy_(value)
        for module, mode in modes:
            module.training = mode


def finite(values: dict[str, float]) -> dict[str, float]:
    """Leave out what is not finite."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class BestValue:
    """The best value so far and the checkpoint that had it.

    step: of the whole chain; range_step: of the link, as in the names of snapshots.
    """

    metric: str
    value: float
    step: int
    range_step: int
    checkpoint: str = ""
    sha256: str = ""


class BestKeeper:
    """Compares validations; what it decides depends on their values alone, so all ranks decide alike."""

    def __init__(self, metric: Metric, stop_after: int) -> None:
        self.metric = metric
        self.found: BestValue | None = None
        self.without = 0  # validations in a row without a better value
        self._stop_after = stop_after

    def judge(self, values: Mapping[str, float], step: int, range_step: int) -> bool:
        """Take one validation; return whether it is the best so far. What is not finite never is."""
        value = values.get(PREFIX + self.metric.name, math.nan)
        better = math.isfinite(value) and (
            self.found is None or self._cost(value) < self._cost(self.found.value)
        )
        if better:
            self.found = BestValue(self.metric.name, value, step, range_step)
        self.without = 0 if better else self.without + 1
        return better

    def stopped(self) -> str:
        """Return the reason to end the link; empty while training goes on."""
        if not self._stop_after or self.without < self._stop_after:
            return ""
        best = f"best {self.found.value:.6g} at step {self.found.step}" if self.found else "never finite"
        return f"no better {PREFIX}{self.metric.name} for {self.without} validations; {best}"

    def state(self) -> dict[str, Any]:
        """Return what a snapshot needs."""
        found = asdict(self.found) if self.found else None
        return {"metric": self.metric.name, "without": self.without, "found": found}

    def restore(self, state: Mapping[str, Any] | None, folder: Path) -> bool:
        """Load what a snapshot held; False when it is about another metric, or about none.

        Raise CheckpointError when the best checkpoint is gone.
        """
        if state is None or state["metric"] != self.metric.name:
            return False
        self.without = state["without"]
        self.found = BestValue(**state["found"]) if state["found"] else None
        if self.found and not is_present(folder / self.found.checkpoint):
            raise CheckpointError(
                f"{folder / self.found.checkpoint}: missing, the best checkpoint of train.keep_best; restore "
                "it, or move the snapshots of this link away to train it from its beginning"
            )
        return True

    def saved(self, saved: Saved) -> BestValue:
        """Take note of the checkpoint of the value just found."""
        if self.found is None:
            raise ValueError("nothing was found yet")
        found = {**asdict(self.found), "checkpoint": saved.path.name, "sha256": saved.sha256}
        self.found = BestValue(**found)
        return self.found

    def _cost(self, value: float) -> float:
        if self.metric.better == "near":
            return abs(value - (self.metric.ideal or 0.0))
        return -value if self.metric.better == "high" else value


def write_best(path: Path, link: str, store: Store, found: BestValue) -> None:
    """Write the receipt of a best checkpoint."""
    receipt = BestReceipt(
        range=link,
        key=store.key,
        checkpoint=found.checkpoint,
        sha256=found.sha256,
        step=found.step,
        metric=found.metric,
        value=found.value,
    )
    write_receipt(path, receipt)


# Validates a training state where it is due, keeps the best checkpoint, and ends a link that stays worse.


class Validator:
    """The validations of one link; without a sample it measures nothing.

    stopped: why the link ends early; empty while it goes on.
    """

    def __init__(
        self,
        campaign: Campaign,
        link: ChainLink,
        ranges: Sequence[RangeShards],
        store: Store,
        stepper: Stepper,
        say: Callable[[str], None],
    ) -> None:
        """ranges: those of the sample. Raise ConfigError when it is empty, and for an unknown best metric."""
        config, train = campaign.config, campaign.config.train
        self._paths, self._keys, self._link = campaign.paths, campaign.run_keys, link
        self._every, self._store, self._say = train.validate_steps, store, say
        self._state, self._world = stepper.state, stepper.world
        self._validation: Validation | None = None
        self._best: BestKeeper | None = None
        if train.validate_steps:
            sample = read_sample(campaign, ranges, stepper.world)
            self._validation = Validation(sample, config.seed, stepper, stepper.weight)
        if train.keep_best:
            metric = find_metric(train.keep_best, stepper.workload, train.workload)
            self._best = BestKeeper(metric, train.stop_after)
        self._measured = -1  # step of the link
        self.stopped = ""

    def due(self, *, at_end: bool) -> bool:
        """Return whether to measure now; at the link's end unless that was just done."""
        step = self._state.counters.range_step
        if self._validation is None or step == self._measured:
            return False
        return at_end or step % self._every == 0

    def measure(self) -> dict[str, float]:
        """Measure, compare, and give the finite numbers; the state has counted all its steps."""
        if self._validation is None:
            return {}
        counters = self._state.counters
        self._measured = counters.range_step
        found = self._validation.measure()
        values = finite(found)
        if len(values) < len(found):
            names = ", ".join(sorted(found.keys() - values.keys()))
            self._say(f"warning: step {counters.step}: not finite: {names}")
        if self._best:
            if self._best.judge(values, counters.step, counters.range_step):
                self._keep(self._best, values)
            self.stopped = self._best.stopped()
        return values

    def _keep(self, best: BestKeeper, values: dict[str, float]) -> None:
        """Save the best checkpoint, then its receipt, then drop what both replace."""
        if not self._world.leads:
            return
        name = best.metric.name
        state = {
            **self._state.state(self._keys),
            "metrics": values,
            "range": self._link.name,
            "best": {"metric": name, "value": values[PREFIX + name]},
        }
        saved = self._store.save_best(state, self._state.counters.range_step)
        self._write_best(best.saved(saved))
        self._store.drop_replaced(saved.path.name)

    def _write_best(self, best: BestValue) -> None:
        write_best(self._paths.best_receipt(self._link.name), self._link.name, self._store, best)

    def inherit(self) -> None:
        """Take over the best checkpoint of the link before: a link without events changes nothing."""
        best, paths, parent = self._best, self._paths, self._link.parent
        row = BestReceipt.read_if_any(paths.best_receipt(parent)) if parent else None
        if best is None or row is None or row.metric != best.metric.name:
            return
        best.found = BestValue(row.metric, row.value, row.step, 0)
        if self._world.leads:
            state = load(verified(paths.store(parent) / row.checkpoint).path)
            counters = {**state["counters"], "range_step": 0}  # the name says so, too
            saved = self._store.save_best({**state, "range": self._link.name, "counters": counters}, 0)
            self._write_best(best.saved(saved))

    def finish(self) -> None:
        """Leave the receipt and the files of the best checkpoint as this job found them, on the leading rank.

        Later files are of an interrupted job under other keys of validation.
        """
        if self._best is None:
            return
        found = self._best.found
        if found is None:
            self._paths.best_receipt(self._link.name).unlink(missing_ok=True)
        else:
            self._write_best(found)
        self._store.drop_best_after(found.range_step if found else -1)

    def state(self) -> dict[str, Any] | None:
        """Return what a snapshot needs."""
        return self._best.state() if self._best else None

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Load what a snapshot held."""
        if self._best and not self._best.restore(state, self._store.folder):
            self._say(f"train.keep_best: {self._best.metric.name} is compared from this step on")
