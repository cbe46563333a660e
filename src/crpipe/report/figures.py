"""Figures of the campaign so far: multiplicities, losses, speed, gradient norms, and evaluations."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from crpipe.core.text import number
from crpipe.report.evaluations import COLUMNS, evaluations, measures_of
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.report.figure_style import COLOURS, GENERATED, NEUTRAL, REAL, new_figure, note, save, style
from crpipe.report.series import (
    VALIDATION,
    chain_rows,
    is_loss,
    multiplicities,
    pick,
    pick_validation,
    pick_watched,
    smoothed,
    threshold_of,
    window_of,
)
from crpipe.report.summary import last_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.journal import Row
    from crpipe.report.evaluations import Evaluation, Measure
    from crpipe.report.series import MultiplicityCounts, Series

MOST_ROWS = 20_000
_UNEVEN = 20.0  # times the typical value, from which the largest one makes the axis logarithmic beyond it
MOST_PANELS = 24  # of the progress figure
_PANEL = 2.6  # inches
_BULK, _OUTLIERS, _ALL = "#2b6cb0", "#c05621", "#4a5568"
_ZERO = (0.35, 0.7)  # where a logarithmic axis shows the events without items
_COLUMN_COLOURS = {"values": GENERATED, "again": REAL, "baseline": NEUTRAL}


def plot_figures(campaign: Campaign) -> list[Path]:
    """Plot every figure of data and training for which there is data; return their paths."""
    folder = campaign.paths.figures()
    with style(), figures_of(_context(campaign)):
        made = [plot_multiplicity(campaign, folder / "multiplicity.svg"), *plot_training(campaign, folder)]
    return [path for path in made if path is not None]


def _context(campaign: Campaign) -> FigureContext:
    """Name the run and what its newest checkpoint was trained on."""
    receipt = last_receipt(campaign)
    if receipt is None:
        return FigureContext(f"run {campaign.paths.run}, no finished link")
    trained = f"{number(receipt.events)} events, {number(receipt.items)} {campaign.item}"
    return FigureContext(
        f"run {campaign.paths.run}, {receipt.range}, step {number(receipt.step)}; {trained} trained"
    )


def plot_multiplicity(campaign: Campaign, path: Path) -> Path | None:
    """Plot events by multiplicity before and after the split, and their weights where they have any.

    Return ``None`` while no range has been split.
    """
    histogram = multiplicities(campaign)
    if histogram is None:
        return None
    threshold = threshold_of(campaign)
    visible = histogram.visible(threshold)
    panels = 2 if visible.weights else 1
    figure = new_figure(3.6 * panels)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    _multiplicity(axes[0], visible, threshold)
    if visible.weights:
        _weighted(axes[1], visible, threshold)
    axes[-1].set_xlabel(f"multiplicity ({campaign.item} in one event)")
    return save(figure, path)


def plot_training(campaign: Campaign, folder: Path) -> list[Path]:
    """Plot ``losses.svg``, ``throughput.svg`` and ``gradients.svg`` into ``folder``, those that have data."""
    rows = chain_rows(campaign, MOST_ROWS)
    figures = {
        "losses": [
            ("loss", pick(rows, is_loss), False),
            *((label, lines, False) for label, lines in pick_validation(rows).items()),
            *((series.name.replace("/", ": "), [series], False) for series in pick_watched(rows)),
        ],
        "throughput": [
            ("events / s", pick(rows, "speed/events_per_s".__eq__), False),
            (f"{campaign.item} / s", pick(rows, "speed/items_per_s".__eq__), False),
        ],
        "gradients": [("gradient norm", pick(rows, _is_norm), True)],
    }
    filled = {name: [panel for panel in panels if panel[1]] for name, panels in figures.items()}
    return [save(_curves(panels, rows), folder / f"{name}.svg") for name, panels in filled.items() if panels]


def plot_progress(campaign: Campaign) -> list[Path]:
    """Plot ``progress.svg``: the evaluations' numbers over the chain; nothing while nothing was evaluated.

    When the evaluations hold no number at all, the figure says so.
    """
    found = list(reversed(list(evaluations(campaign))))
    if not found:
        return []
    measures = [each for each in measures_of(reversed(found)) if _has_number(found, each)][:MOST_PANELS]
    with style(), figures_of(_context(campaign)):
        rows = max(1, -(-len(measures) // 2))
        figure = new_figure(0.6 + 2.3 * rows)
        axes = list(figure.subplots(rows, 2, sharex=True, squeeze=False).flat)
        for axis, measure in zip(axes, measures, strict=False):
            _progress(axis, measure, found)
        for axis in axes[len(measures) :]:
            axis.set_visible(False)
        if not measures:
            figure.suptitle("the evaluations hold no numbers: too few held-out events for any metric")
        last = " (the last: outliers)" if campaign.has_outliers else ""
        pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
        named = {label: line for line, label in pairs}
        figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=len(COLUMNS))
        figure.supxlabel(f"links of the chain trained on, of {len(campaign.chain.names)}{last}")
        return [save(figure, campaign.paths.figures() / "progress.svg")]


def _has_number(found: Sequence[Evaluation], measure: Measure) -> bool:
    return any(one.number(column, measure.name) for one in found for column in COLUMNS)


def _progress(axis: Axes, measure: Measure, found: Sequence[Evaluation]) -> None:
    """Plot one number of every evaluated checkpoint, beside what the model is compared with."""
    for column, label in COLUMNS.items():
        points = [(one.link, *number) for one in found if (number := one.number(column, measure.name))]
        if points:
            links, values, errors = zip(*points, strict=True)
            bars = [error or 0.0 for error in errors]
            colour = _COLUMN_COLOURS[column]
            axis.errorbar(links, values, bars, color=colour, label=label, marker="o", markersize=3)
            note(axis.figure, measure.title, label, link=links, value=values, error=bars)
    if measure.ideal is not None:
        axis.axhline(measure.ideal, color="#a0aec0", linewidth=0.8, linestyle=":", zorder=0)
    axis.set_title("\n".join(filter(None, (measure.title, measure.direction))))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _is_norm(name: str) -> bool:
    return name.endswith(("/grad_norm_p50", "/grad_norm_max"))


def _curves(panels: Sequence[tuple[str, list[Series], bool]], rows: Sequence[Row]) -> Figure:
    window = window_of(rows)
    figure = new_figure(0.6 + _PANEL * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (label, lines, logarithmic) in zip(axes, panels, strict=True):
        for series, colour in zip(lines, COLOURS * len(lines), strict=False):
            held_out = series.name.startswith(VALIDATION)  # a mean over many events already
            mean = series if held_out else smoothed(series, window)
            axis.plot(series.steps, series.values, color=colour, alpha=0.25, linewidth=0.7)
            note(figure, label, series.name, step=series.steps, value=series.values, mean=mean.values)
            axis.plot(mean.steps, mean.values, color=colour, linewidth=1.5, label=_legend(series.name))
        axis.set_ylabel(textwrap.fill(label, 26))
        if logarithmic:
            axis.set_yscale("log")
        else:
            _focus(axis, lines, from_zero=not lines[0].name.startswith(VALIDATION))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        _mark_ranges(axis, rows)
        if len(lines) > 1:
            _legend_above(axis, 4)
    axes[-1].set_xlabel(f"training step over all ranges (thick: mean over {window} steps)")
    return figure


def _legend(name: str) -> str:
    return (
        name.removeprefix(VALIDATION)
        .removesuffix("/loss")
        .replace("/grad_norm_p50", ", median")
        .replace("/grad_norm_max", ", largest")
    )


def _legend_above(axis: Axes, columns: int) -> None:
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2)


def _focus(axis: Axes, lines: Sequence[Series], *, from_zero: bool) -> None:
    """Leave single spikes out of view: one of them would flatten the rest of the curve."""
    values = np.concatenate([series.values for series in lines])
    low, high = np.quantile(values, (0.002, 0.998))
    typical = float(np.median(np.abs(values)))
    if 0 < _UNEVEN * typical < max(abs(low), abs(high)):
        axis.set_yscale("asinh", linear_width=typical)
    margin = 0.1 * (high - low) or 1.0
    axis.set_ylim(min(low - margin, 0.0) if from_zero else low - margin, high + margin)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def _mark_ranges(axis: Axes, rows: Sequence[Row]) -> None:
    """Mark where a new range begins, unless the marks would be too dense."""
    starts = [after["step"] for before, after in pairwise(rows) if before["range"] != after["range"]]
    if len(starts) <= 30:  # noqa: PLR2004 - about 7 mm apart
        for step in starts:
            axis.axvline(step, color="#a0aec0", linewidth=0.6, zorder=0)


def _weighted(axis: Axes, histogram: MultiplicityCounts, threshold: int | None) -> None:
    """Plot the sums of the events' weights; events without items are in the panel above."""
    edges, weights = np.array(histogram.edges), np.array(histogram.weights)
    some = edges[:-1] > 0
    axis.stairs(weights[some], edges[np.concatenate([some, [True]])], color=_ALL)
    note(axis.figure, "weights", "all", low=edges[:-1], high=edges[1:], weight=weights)
    if threshold is not None:
        axis.axvline(threshold, color=_OUTLIERS, linestyle="--")
    axis.set_yscale("log")
    axis.set_ylabel("sum of weights in the bin")


def _multiplicity(axis: Axes, histogram: MultiplicityCounts, threshold: int | None) -> None:
    edges, events = np.array(histogram.edges), np.array(histogram.events)
    left, right = edges[:-1].copy(), edges[1:].copy()
    note(axis.figure, "multiplicity", "all", low=left, high=right, events=events)
    zero = left == 0
    left[zero], right[zero] = _ZERO
    above = edges[:-1] > (np.inf if threshold is None else threshold)
    for chosen, colour, label in (
        (~above, _BULK, "after: bulk (training, validation, test)"),
        (above, _OUTLIERS, "after: outliers (of the same parts)"),
    ):
        some = chosen & (events > 0)
        if some.any():
            widths = (right - left)[some]
            axis.bar(left[some], events[some], widths, align="edge", color=colour, alpha=0.55, label=label)
    axis.stairs(events[~zero], edges[np.concatenate([~zero, [True]])], color=_ALL, label="before: all events")
    if threshold is not None:
        axis.axvline(threshold, color=_OUTLIERS, linestyle="--", label=f"threshold {threshold:,}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(_ZERO[0] * 0.8, edges[-1])
    axis.set_ylim(0.5, None)  # shows a bin with one event, too
    ticks = 10.0 ** np.arange(0, np.floor(np.log10(edges[-1])) + 1)
    middle = float(np.sqrt(_ZERO[0] * _ZERO[1]))
    axis.set_xticks([middle, *ticks], ["0", *(f"$10^{{{n}}}$" for n in range(len(ticks)))])
    axis.set_ylabel("events in the bin")
    _legend_above(axis, 2)


# The figure of ``crpipe plan``: the learning rate of each phase over the whole campaign, before it runs.


POINTS = 1000
_SCHEDULE_PANEL = 1.9  # inches


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
        figure = new_figure(0.9 + _SCHEDULE_PANEL * len(plan.curves))
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
    for count, begin in enumerate(plan.rounds, 2):
        axis.axvline(begin, color="black", linewidth=0.6, linestyle=":")
        axis.text(begin, 0, f" round {count}", fontsize=8, verticalalignment="bottom")
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
