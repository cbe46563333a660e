"""The learning rate as a pure function of the step and the progress: a snapshot need not hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crpipe.config.training import TrainSection


@dataclass(frozen=True, slots=True)
class Schedule:
    """A linear rise over the first steps, a plateau, and a linear fall over the end of the campaign."""

    warmup_steps: int
    decay_from: float
    decay_to: float

    @classmethod
    def of(cls, train: TrainSection) -> Schedule:
        """Take the schedule from the configuration."""
        return cls(train.warmup_steps, train.decay_from, train.decay_to)

    def factor(self, step: int, progress: float) -> float:
        """Give the share of the full rate at a global step (from 0) and campaign progress (0 to 1)."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if progress <= self.decay_from:
            return warm
        fall = min(1.0, (progress - self.decay_from) / (1.0 - self.decay_from))
        return warm * (1.0 - fall * (1.0 - self.decay_to))
