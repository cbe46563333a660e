"""Validation inside training: the losses and the workload's own numbers on a fixed held-out sample.

Blocks of the sample are divided among the ranks; each has random numbers of its own, so that the result is
the same for any number of ranks, and training continues as if nothing had been measured.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from crpipe.core.causes import Foreign
from crpipe.core.errors import ConfigError, ForeignError
from crpipe.events.batch import Events, regroup
from crpipe.events.metric import Metric
from crpipe.loading.held_out import held_out
from crpipe.train.workload import Validates, WorkloadCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.train.link import TrainJob
    from crpipe.train.ranks import World
    from crpipe.train.state import TrainState
    from crpipe.train.step import Stepper
    from crpipe.train.workload import Columns, Workload

PREFIX = "validation/"
BLOCK_EVENTS = 256
_STREAM = 7  # keeps a block's random numbers apart from those of a step


class SampleBlock(NamedTuple):
    """Some events of the sample; the number decides on their rank and their random numbers."""

    number: int
    events: Events


def legal_metrics(workload: Workload) -> dict[str, Metric]:
    """Give what train.keep_best may name: the loss of each phase, and what the workload validates."""
    losses = [Metric(f"{phase.name}/loss", f"loss of {phase.name}") for phase in workload.phases()]
    own = workload.validation_metrics if isinstance(workload, Validates) else ()
    return {metric.name: metric for metric in (*losses, *own)}


def find_metric(name: str, workload: Workload, workload_name: str) -> Metric:
    """Find the metric that train.keep_best names; raise ConfigError with the legal values."""
    with Foreign(f"train.workload: {workload_name}.phases failed"):
        legal = legal_metrics(workload)
    if name not in legal:
        raise ConfigError(
            f"train.keep_best: {name} is not measured by {workload_name}; legal values: {', '.join(legal)}"
        )
    return legal[name]


def read_sample(job: TrainJob, world: World) -> list[SampleBlock]:
    """Read this rank's blocks of the held-out sample; raise ConfigError when the sample is empty."""
    load, ranges = job.load, job.link.validation
    parts = held_out(
        ranges,
        "validation",
        events=job.train.validate_events,
        batch_events=min(BLOCK_EVENTS, load.batch_events),
        budget_items=load.budget_items,
        seed=job.seed,
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
        """Give the means over the whole sample, the same on all ranks; those that are not finite, too."""
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
            raise ForeignError(
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
