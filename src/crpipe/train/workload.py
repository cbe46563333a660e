"""The workload protocol: all that the trainer knows about what it trains.

A workload is named in the configuration as ``module:Class``; the same module holds ``ClassConfig``, the
pydantic model of its options. Nothing is registered or subclassed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from crpipe.events.batch import Events

Batch = dict[str, Tensor]
Metrics = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch, torch.Generator], tuple[Tensor, Metrics]]


@runtime_checkable
class Histograms(Protocol):
    """What a workload may offer beside the protocol: distributions for TensorBoard."""

    def histograms(
        self, model: nn.Module, events: Events, generator: torch.Generator
    ) -> dict[str, NDArray[np.floating[Any]]]:
        """Give named arrays (conditions, multiplicities, real and generated features) of a batch."""


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """Which optimizer a phase uses; part of the fingerprint through the workload's options."""

    kind: Literal["adam", "sgd"]
    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Throttle:
    """What lowers the learning rate of a player that grows too strong; nothing ever raises it again.

    Each log interval whose ``metric`` is beyond ``above`` multiplies it by ``factor``, down to the share
    ``least``.
    """

    metric: str
    above: float
    factor: float
    least: float


@dataclass(frozen=True, slots=True)
class Phase:
    """One player's optimizer step.

    loss: ``(model, batch, generator) -> (scalar, metrics)``. The scalar is a mean over the batch's events, so
        that micro-batches weighted by their events add up to the whole; metrics are detached scalars of the
        same kind. Every random number comes from ``generator``.
    repeat: optimizer steps of this phase within one training step, one batch each (train.fresh_batches).
    average: whether this phase's parameters enter the averaged (EMA) weights.
    smoothed: metrics that are also logged as a moving average over 500 steps.
    watched_metric: metric compared with train.warn_loss and train.stop_loss, where the loss itself may be
        large for good reasons.
    """

    name: str
    params: Callable[[nn.Module], Iterable[nn.Parameter]]
    loss: Loss
    optimizer: OptimizerSpec
    repeat: int = 1
    average: bool = False
    smoothed: tuple[str, ...] = ()
    throttle: Throttle | None = None
    watched_metric: str = "loss"


class Workload(Protocol):
    """What a workload provides; built as ``Class(options)`` with an instance of its ``ClassConfig``."""

    def size(self, events: Events) -> NDArray[np.integer[Any]]:
        """Items that each event puts into a batch, [N]; what the muon budget counts."""

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Turn the events at ``index`` into tensors on the CPU; ``seed`` feeds any random choice.

        All phases of a step share the result: no loss changes it in place.
        """

    def model(self) -> nn.Module:
        """Build the whole model, initialised from torch's global generator."""

    def phases(self) -> list[Phase]:
        """The phases of one training step, in order."""

    def predict(self, model: nn.Module, events: Events, generator: torch.Generator) -> Events:
        """Predict (or generate) for the conditions in ``events``, in the layout of the input."""

    def score(self, truth: Events, prediction: Events, folder: Path) -> dict[str, float]:
        """Compare; write figures into ``folder``; return named numbers."""
