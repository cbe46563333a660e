"""The learning rate as a pure function of the step and the progress: a snapshot need not hold it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

from crpipe.config.loading import check_choice, rate_ends
from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crpipe.config.sections import TrainSection

Kind = Literal["linear", "constant", "cosine", "cosine_restarts", "one_cycle"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The course of a learning rate over the campaign, as a share of its full value.

    linear: a plateau up to the progress ``decay_from``, then a linear fall to ``decay_to``.
    constant: the full value. cosine: half a cosine from the full value to ``decay_to``.
    cosine_restarts: the same in each of ``restarts`` + 1 equal parts of the campaign (Loshchilov and Hutter,
    arXiv:1608.03983).
    one_cycle: half a cosine from ``one_cycle_start`` up to the full value at the progress ``one_cycle_peak``,
    another one down to ``decay_to`` (Smith and Topin, arXiv:1708.07120, with cosines for their lines).

    All but one_cycle begin with a linear rise over the first ``warmup_steps`` steps.
    """

    warmup_steps: int = 0
    decay_from: float = 0.6
    decay_to: float = 0.05
    kind: Kind = "linear"
    one_cycle_start: float = 0.04
    one_cycle_peak: float = 0.3
    restarts: int = 3

    def __post_init__(self) -> None:
        """Raise ConfigError for a kind that is not known: it would be taken for linear."""
        check_choice("Schedule: kind", self.kind, get_args(Kind))

    @classmethod
    def of(cls, train: TrainSection) -> Self:
        """Return the schedule of the configuration."""
        keys = train.schedule
        return cls(
            keys.warmup_steps,
            keys.decay_from,
            keys.decay_to,
            keys.shape,
            keys.one_cycle_start,
            keys.one_cycle_peak,
            keys.restarts,
        )

    @property
    def ends(self) -> bool:
        """Whether the learning rate depends on how much of the campaign is done."""
        return rate_ends(self.kind, self.decay_from, self.decay_to)

    @property
    def warms_up(self) -> bool:
        """Whether the first steps have a lower learning rate."""
        return self.kind != "one_cycle" and self.warmup_steps > 1

    def factor(self, step: int, progress: float) -> float:
        """Return the share of the full rate at a global step (from 0) and campaign progress (0 to 1).

        Beyond progress 1, in a campaign longer than its horizon, the rate stays where it ended.
        """
        progress = min(1.0, progress)
        if self.kind == "one_cycle":
            if progress <= self.one_cycle_peak:
                return _between(self.one_cycle_start, 1.0, progress / self.one_cycle_peak)
            return _between(1.0, self.decay_to, (progress - self.one_cycle_peak) / (1 - self.one_cycle_peak))
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.kind == "cosine":
            return warm * _between(1.0, self.decay_to, progress)
        if self.kind == "cosine_restarts":
            cycles = progress * (self.restarts + 1)
            return warm * _between(1.0, self.decay_to, cycles % 1.0 if progress < 1.0 else 1.0)
        if self.kind == "constant" or progress <= self.decay_from:
            return warm
        fall = min(1.0, (progress - self.decay_from) / (1.0 - self.decay_from))
        return warm * (1.0 - fall * (1.0 - self.decay_to))


@dataclass(frozen=True, slots=True)
class Schedules:
    """The schedules of a training: of the configuration, and of the phases that ask for another one."""

    common: Schedule
    of_phases: Mapping[str, Schedule]

    @classmethod
    def of(cls, train: TrainSection, phases: Mapping[str, Schedule | None]) -> Self:
        """Collect them; raise ConfigError when the campaign's length shapes one phase's rate only.

        phases: what each asks for, by name. Where the configured schedule does not end, the fingerprint
        leaves the campaign's length out, unless train.schedule.horizon_ranges is set.
        """
        common = Schedule.of(train)
        of_phases = {name: schedule for name, schedule in phases.items() if schedule is not None}
        ending = [name for name, schedule in of_phases.items() if schedule.ends]
        if ending and not common.ends and not train.schedule.horizon_ranges:
            raise ConfigError(
                f"train.schedule.horizon_ranges: the learning rate of {', '.join(ending)} ends with the "
                f"campaign, but that of train.schedule.shape: {train.schedule.shape} does not; set the "
                "number of ranges over which it runs (counted once for each round), for example "
                "train.schedule.horizon_ranges: 100"
            )
        return cls(common, of_phases)

    def factors(self, step: int, progress: float) -> tuple[float, dict[str, float]]:
        """Return the share of the full rate, and those of the phases that have their own."""
        of_phases = {name: schedule.factor(step, progress) for name, schedule in self.of_phases.items()}
        return self.common.factor(step, progress), of_phases


def _between(start: float, end: float, share: float) -> float:
    """Interpolate from ``start`` to ``end`` along half a cosine, which is level at both."""
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2.0
