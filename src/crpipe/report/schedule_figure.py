"""The figure of ``crpipe plan``: the learning rate of each phase over the whole campaign, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from crpipe.report.figure_style import NEUTRAL, new_figure, note, save, style

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

POINTS = 1000
_PANEL = 1.9  # inches


@dataclass(frozen=True, slots=True)
class RateCurve:
    """The learning rate of one phase.

    factor: the share of ``rate`` at a global step and a share of the campaign. warms_up: whether the first
    steps matter for it.
    """

    phase: str
    kind: str
    factor: Callable[[int, float], float]
    rate: float
    warms_up: bool


@dataclass(frozen=True, slots=True)
class RatePlan:
    """What the figure shows.

    begins, ends: ranges trained on before the first link and after the last one, summed over the rounds.
    horizon: ranges over which the schedules run their course. rounds: where a round begins, after the first.
    range_steps: training steps of a range, as far as known.
    """

    curves: tuple[RateCurve, ...]
    begins: int
    ends: int
    horizon: int
    rounds: tuple[int, ...]
    range_steps: float | None


def plot_rates(plan: RatePlan, path: Path) -> Path:
    """Plot one panel for each phase; the warm-up is to scale where the steps of a range are known."""
    with style():
        figure = new_figure(0.9 + _PANEL * len(plan.curves))
        axes = figure.subplots(len(plan.curves), sharex=True, squeeze=False)[:, 0]
        for axis, curve in zip(axes, plan.curves, strict=True):
            _panel(axis, plan, curve)
        axes[-1].set_xlabel("ranges trained on, all rounds")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        if plan.range_steps is not None:
            steps = plan.range_steps
            top = axes[0].secondary_xaxis("top", (lambda x: x * steps, lambda x: x / steps))
            top.set_xlabel(f"steps, about {steps:,.0f} in a range")
        elif any(curve.warms_up for curve in plan.curves):
            figure.suptitle(
                "without the warm-up: how long it is, in ranges, is known once a range is split", fontsize=9
            )
        return save(figure, path)


def _panel(axis: Axes, plan: RatePlan, curve: RateCurve) -> None:
    places = _places(plan)
    # Without known steps the curve is that after the warm-up.
    steps = places * plan.range_steps if plan.range_steps is not None else np.full(len(places), 1e15)
    rates = [
        curve.rate * curve.factor(int(step), place / plan.horizon)
        for step, place in zip(steps, places, strict=True)
    ]
    axis.plot(places, rates, color=NEUTRAL)
    note(axis.figure, curve.phase, curve.kind, ranges=places, learning_rate=rates)
    for number, begin in enumerate(plan.rounds, 2):
        axis.axvline(begin, color="black", linewidth=0.6, linestyle=":")
        axis.text(begin, 0, f" round {number}", fontsize=8, verticalalignment="bottom")
    if plan.begins < plan.horizon < plan.ends:
        axis.axvline(plan.horizon, color="black", linewidth=0.6, linestyle="--")
        axis.text(plan.horizon, curve.rate / 2, " train.horizon_ranges", fontsize=8)
    axis.set_title(f"{curve.phase}: {curve.kind}, {curve.rate:g} at most", loc="left")
    axis.set_ylabel("learning rate")
    axis.set_ylim(0, curve.rate * 1.08 if curve.rate else None)
    axis.set_xlim(plan.begins, plan.ends)


def _places(plan: RatePlan) -> NDArray[np.float64]:
    """Choose where the curves are evaluated: evenly, and each of the first steps."""
    evenly = np.linspace(plan.begins, plan.ends, POINTS)
    if plan.range_steps is None:
        return evenly
    first = plan.begins + np.arange(POINTS) / plan.range_steps
    places: NDArray[np.float64] = np.union1d(evenly, first[first < plan.ends])
    return places
