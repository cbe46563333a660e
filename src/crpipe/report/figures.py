"""Figures of the campaign so far: multiplicities, losses, speed, gradient norms, and evaluations."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator, StrMethodFormatter

from crpipe.campaign.records import Receipt
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import compact, number, shorten
from crpipe.report.evaluations import COLUMNS, Evaluation, MetricRow, evaluations
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.report.figure_style import (
    COLOURS,
    GENERATED,
    MARK,
    NEUTRAL,
    REAL,
    inline_svg,
    new_figure,
    note,
    page_figure,
    page_style,
    save,
    style,
)
from crpipe.report.series import (
    VALIDATION,
    chain_rows,
    is_loss,
    multiplicities,
    pick,
    pick_validation,
    pick_watched,
    smoothed,
    smoothing,
    threshold_of,
    window_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.journal import Row
    from crpipe.report.series import MultiplicityCounts, Series

MOST_ROWS = 20_000
PAGE_ROWS = 1500  # points of a curve on the page
RATE = "learning_rate"
_LABEL, _LABELS = 30, 72  # characters of a name on the page, and of all names in one line
_UNEVEN = 20.0  # times the typical value, from which the largest one makes the axis logarithmic beyond it
MOST_PANELS = 24  # of the progress figure
_PANEL = 2.6  # inches
_BULK, _OUTLIERS, _ALL = NEUTRAL, GENERATED, REAL
_PARTS = (
    "before: all events",
    "after: bulk (training, validation, test)",
    "after: outliers (of the same parts)",
)
_ZERO = (0.35, 0.7)  # where a logarithmic axis shows the events without items
_COLUMN_COLOURS = {"values": GENERATED, "again": REAL, "halves": REAL, "baseline": NEUTRAL}


def plot_figures(campaign: Campaign) -> list[Path]:
    """Plot every figure of data and training for which there is data; return their paths."""
    folder = campaign.paths.figures()
    with style(), figures_of(_context(campaign)):
        paths = [plot_multiplicity(campaign, folder / "multiplicity.svg"), *plot_training(campaign, folder)]
    return [path for path in paths if path is not None]


def _context(campaign: Campaign) -> FigureContext:
    """Name the run and what its newest checkpoint was trained on."""
    files = (campaign.paths.receipt(name) for name in reversed(campaign.chain.names))
    receipt = next((receipt for path in files if (receipt := Receipt.read_if_any(path))), None)
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


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the training: what its vertical axis shows, and its curves."""

    label: str
    curves: list[Series]
    logarithmic: bool = False


def training_panels(rows: Sequence[Row], item: str) -> dict[str, list[Panel]]:
    """Collect the charts by subject, those for which there is data."""
    rates = pick(rows, lambda name: name == RATE or name.endswith(f"/{RATE}"))
    subjects = {
        "losses": [
            Panel("loss", pick(rows, is_loss)),
            *(Panel(label, curves) for label, curves in pick_validation(rows).items()),
            *(Panel(series.name.replace("/", ": "), [series]) for series in pick_watched(rows)),
        ],
        "rates": [Panel("learning rate, times that of each phase", rates)],
        "throughput": [
            Panel("events / s", pick(rows, "speed/events_per_s".__eq__)),
            Panel(f"{item} / s", pick(rows, "speed/items_per_s".__eq__)),
        ],
        "gradients": [Panel("gradient norm", pick(rows, _is_norm), logarithmic=True)],
    }
    return {
        name: filled
        for name, panels in subjects.items()
        if (filled := [panel for panel in panels if panel.curves])
    }


def plot_training(campaign: Campaign, folder: Path) -> list[Path]:
    """Plot ``losses.svg``, ``throughput.svg`` and ``gradients.svg`` into ``folder``, those that have data."""
    rows = chain_rows(campaign, MOST_ROWS)
    figures = training_panels(rows, campaign.item)
    return [
        save(_curves(figures[name], rows), folder / f"{name}.svg")
        for name in ("losses", "throughput", "gradients")
        if name in figures
    ]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the page: its name there, its heading, and the figure as SVG."""

    name: str
    title: str
    svg: str


def page_charts(campaign: Campaign) -> Iterator[Chart]:
    """Plot what the page shows of the training and of the multiplicities, each as a small figure."""
    rows = chain_rows(campaign, PAGE_ROWS)
    subjects = training_panels(rows, campaign.item)
    rates = [series for panel in subjects.get("rates", ()) for series in panel.curves]
    if all(len(set(series.values)) == 1 for series in rates):
        subjects.pop("rates", None)
    subjects["throughput"] = subjects.get("throughput", [])[-1:]
    window = window_of(rows)
    for name in ("losses", "rates", "throughput"):
        for index, panel in enumerate(subjects.get(name, ())):
            with page_style():
                figure, axis = page_figure()
                _plot_panel(axis, panel, rows, window, small=True)
                axis.set_xlabel(f"training step{smoothing(window)}")
                title = panel.label[0].upper() + panel.label[1:]
                yield Chart(f"{name}-{index}" if index else name, title, inline_svg(figure, panel.label))
    histogram, threshold = multiplicities(campaign), threshold_of(campaign)
    if histogram is not None:
        label = f"multiplicity ({shorten(campaign.item, _LABEL)} in one event)"
        with page_style():
            figure, axis = page_figure()
            _multiplicity(axis, histogram.visible(threshold), threshold, small=True)
            axis.set_xlabel(_words(label))
            yield Chart("multiplicity", "Multiplicity", inline_svg(figure, label))


def plot_progress(campaign: Campaign) -> list[Path]:
    """Plot ``progress.svg``: the evaluations' numbers over the chain; nothing while nothing was evaluated."""
    newest = list(evaluations(campaign))
    if not newest:
        return []
    with style(), figures_of(_context(campaign)):
        return [save(progress_figure(campaign, newest), campaign.paths.figures() / "progress.svg")]


def progress_figure(campaign: Campaign, newest: Sequence[Evaluation]) -> Figure:
    """Plot the numbers of evaluations, newest first, over the chain, in the style of the block around it.

    When the evaluations hold no number at all, the figure says so.
    """
    # Each number once, those of the newest evaluation first.
    by_name = {row.name: row for one in newest for row in one.shown()}
    has_number = {name for one in newest for name, row in one.rows.items() if row.numbers}
    measures = [row for name, row in by_name.items() if name in has_number][:MOST_PANELS]
    rows = max(1, -(-len(measures) // 2))
    figure = new_figure(0.6 + 2.3 * rows)
    axes = list(figure.subplots(rows, 2, sharex=True, squeeze=False).flat)
    for axis, measure in zip(axes, measures, strict=False):
        _progress(axis, measure, newest[::-1])
    for axis in axes[len(measures) :]:
        axis.set_visible(False)
    if not measures:
        figure.suptitle("the evaluations hold no numbers: too few held-out events for any metric")
    last = " (the last: outliers)" if campaign.has_outliers else ""
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    named = {label: line for line, label in pairs}
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=len(COLUMNS))
    figure.supxlabel(f"links of the chain trained on, of {len(campaign.chain.names)}{last}")
    return figure


def _progress(axis: Axes, row: MetricRow, evaluated: Sequence[Evaluation]) -> None:
    """Plot one number of every evaluated checkpoint, beside what the model is compared with."""
    for column, label in COLUMNS.items():
        rows = [(one.link, one.rows[row.name].numbers) for one in evaluated if row.name in one.rows]
        points = [(link, *numbers[column]) for link, numbers in rows if column in numbers]
        if points:
            links, values, errors = zip(*points, strict=True)
            bars = [error or 0.0 for error in errors]
            colour = _COLUMN_COLOURS[column]
            axis.errorbar(links, values, bars, color=colour, label=label, marker="o", markersize=3)
            note(axis.figure, row.title, label, link=links, value=values, error=bars)
    if row.ideal is not None:
        axis.axhline(row.ideal, color=MARK, linewidth=0.8, linestyle=":", zorder=0)
    axis.set_title(_words("\n".join(filter(None, (row.title, row.direction)))))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _is_norm(name: str) -> bool:
    return name.endswith(("/grad_norm_p50", "/grad_norm_max"))


def _curves(panels: Sequence[Panel], rows: Sequence[Row]) -> Figure:
    window = window_of(rows)
    figure = new_figure(0.6 + _PANEL * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        _plot_panel(axis, panel, rows, window)
        axis.set_ylabel(textwrap.fill(_words(panel.label), 26))
    axes[-1].set_xlabel(f"training step over all ranges{smoothing(window)}")
    return figure


def _plot_panel(axis: Axes, panel: Panel, rows: Sequence[Row], window: int, *, small: bool = False) -> None:
    """Plot each curve thin, and its mean over some steps thick.

    A single value is a dot. small: for the page, where long names are cut.
    """
    held_out = panel.curves[0].name.startswith(VALIDATION)
    for series, colour in zip(panel.curves, COLOURS * len(panel.curves), strict=False):
        # A validation is a mean over many events already; one of learning rates would hide where they change.
        mean = series if held_out or series.name.endswith(RATE) else smoothed(series, window)
        axis.plot(series.steps, series.values, color=colour, alpha=0.25, linewidth=0.7)
        note(axis.figure, panel.label, series.name, step=series.steps, value=series.values, mean=mean.values)
        marker = "o" if len(mean.steps) == 1 else "none"
        label = _words(shorten(_legend(series.name), _LABEL) if small else _legend(series.name))
        axis.plot(mean.steps, mean.values, color=colour, linewidth=1.5, marker=marker, label=label)
    if panel.logarithmic:
        axis.set_yscale("log")
    else:
        _focus(axis, panel.curves, from_zero=not held_out)
    axis.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _mark_ranges(axis, rows)
    if len(panel.curves) > 1:
        longest = max(len(_legend(series.name)) for series in panel.curves)
        _legend_above(axis, max(1, _LABELS // (min(longest, _LABEL) + 6)) if small else 4)


def _words(text: str) -> str:
    """Write a text of a file or a workload so that a dollar in it begins no formula."""
    return text.replace("$", r"\$")


def _legend(name: str) -> str:
    return (
        name.removeprefix(VALIDATION)
        .removesuffix("/loss")
        .removesuffix(f"/{RATE}")
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
        _limit_uneven(axis, low, high, typical)
    else:
        margin = 0.1 * (high - low) or 1.0
        axis.set_ylim(min(low - margin, 0.0) if from_zero else low - margin, high + margin)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def _limit_uneven(axis: Axes, low: float, high: float, typical: float) -> None:
    """Limit an axis that is linear up to ``typical`` and logarithmic beyond; mark 0 and powers of ten.

    Marks are a tenth of the axis apart. Values of one sign have an axis of that sign.
    """
    ends = np.arcsinh(np.array([min(low, 0.0), max(high, 0.0)]) / typical)
    apart = 0.1 * (ends[1] - ends[0])
    bottom, top = typical * np.sinh(ends + apart * np.sign(ends))
    first = math.ceil(math.log10(typical * math.sinh(apart)))
    powers = 10.0 ** np.arange(first, math.log10(max(-bottom, top)), math.ceil(apart / math.log(10)))
    axis.set_yticks([tick for tick in (*-powers[::-1], 0.0, *powers) if bottom <= tick <= top])
    axis.minorticks_off()
    axis.set_ylim(bottom, top)


def _mark_ranges(axis: Axes, rows: Sequence[Row]) -> None:
    """Mark where a new range begins, unless the marks would be too dense, and the link on the outliers.

    Its losses jump: its events are unlike all before.
    """
    starts = [after["step"] for before, after in pairwise(rows) if before["range"] != after["range"]]
    if len(starts) <= 30:  # noqa: PLR2004 - about 7 mm apart
        for step in starts:
            axis.axvline(step, color=MARK, linewidth=0.6, zorder=0)
    steps = [row["step"] for row in rows if row["range"] == OUTLIERS]
    if steps:
        axis.axvspan(steps[0], steps[-1], color=_OUTLIERS, alpha=0.12, linewidth=0, zorder=0)
        inside = axis.get_xaxis_transform()
        axis.text(steps[-1], 0.98, "outliers", transform=inside, ha="right", va="top", color=_OUTLIERS)


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


def _multiplicity(
    axis: Axes, histogram: MultiplicityCounts, threshold: int | None, *, small: bool = False
) -> None:
    """Plot the bins of all events, and below and above the threshold; ``small``: for the page."""
    labels = ("_all", "bulk", "outliers") if small else _PARTS  # no room for a legend of all
    edges, events = np.array(histogram.edges), np.array(histogram.events)
    left, right = edges[:-1].copy(), edges[1:].copy()
    note(axis.figure, "multiplicity", "all", low=left, high=right, events=events)
    zero = left == 0
    left[zero], right[zero] = _ZERO
    above = edges[:-1] > (np.inf if threshold is None else threshold)
    for part, colour, label in ((~above, _BULK, labels[1]), (above, _OUTLIERS, labels[2])):
        some = part & (events > 0)
        if some.any():
            widths = (right - left)[some]
            axis.bar(left[some], events[some], widths, align="edge", color=colour, alpha=0.55, label=label)
    axis.stairs(events[~zero], edges[np.concatenate([~zero, [True]])], color=_ALL, label=labels[0])
    if threshold is not None:
        axis.axvline(threshold, color=_OUTLIERS, linestyle="--", label=f"threshold {threshold:,}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(_ZERO[0] * 0.8, edges[-1])
    axis.set_ylim(0.5, None)  # shows a bin with one event, too
    ticks = 10.0 ** np.arange(0, np.floor(np.log10(edges[-1])) + 1)
    middle = float(np.sqrt(_ZERO[0] * _ZERO[1]))
    powers = [compact(tick) if small else f"$10^{{{n}}}$" for n, tick in enumerate(ticks)]
    axis.set_xticks([middle, *ticks], ["0", *powers])
    if small:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axis.set_ylabel("events in the bin")
    _legend_above(axis, 4 if small else 2)


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
    ranges_before: int
    ranges_after: int
    horizon: int
    rounds: tuple[int, ...]
    range_steps: float | None


def plot_rates(plan: RatePlan, path: Path) -> Path:
    """Plot one panel for each phase; the warm-up is to scale where the steps of a range are known."""
    ranges = np.linspace(plan.ranges_before, plan.ranges_after, POINTS)
    steps = np.full(POINTS, 1e15)  # after any warm-up
    per_range = plan.range_steps
    if per_range is not None:
        first = plan.ranges_before + np.arange(POINTS) / per_range  # each of the first steps
        ranges = np.union1d(ranges, first[first < plan.ranges_after])
        steps = ranges * per_range
    with style():
        figure = new_figure(0.9 + _SCHEDULE_PANEL * len(plan.curves))
        axes = figure.subplots(len(plan.curves), sharex=True, squeeze=False)[:, 0]
        for axis, curve in zip(axes, plan.curves, strict=True):
            shares = zip(steps, ranges / plan.horizon, strict=True)
            rates = [curve.rate * curve.factor(int(step), share) for step, share in shares]
            axis.plot(ranges, rates, color=NEUTRAL)
            note(figure, curve.phase, curve.kind, ranges=ranges, learning_rate=rates)
            for count, begin in enumerate(plan.rounds, 2):
                axis.axvline(begin, color="black", linewidth=0.6, linestyle=":")
                axis.text(begin, 0, f" round {count}", fontsize=8, verticalalignment="bottom")
            if plan.ranges_before < plan.horizon < plan.ranges_after:
                axis.axvline(plan.horizon, color="black", linewidth=0.6, linestyle="--")
                axis.text(plan.horizon, curve.rate / 2, " train.schedule.horizon_ranges", fontsize=8)
            axis.set_title(f"{curve.phase}: {curve.kind}, {curve.rate:g} at most", loc="left")
            axis.set_ylabel("learning rate")
            axis.set_ylim(0, curve.rate * 1.08 if curve.rate else None)
            axis.set_xlim(plan.ranges_before, plan.ranges_after)
        axes[-1].set_xlabel("ranges trained on, all rounds")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        if per_range is not None:
            top = axes[0].secondary_xaxis("top", (lambda x: x * per_range, lambda x: x / per_range))
            top.set_xlabel(f"steps, about {per_range:,.0f} in a range")
        elif any(curve.warms_up for curve in plan.curves):
            figure.suptitle(
                "without the warm-up: how long it is, in ranges, is known once a range is split", fontsize=9
            )
        return save(figure, path)
