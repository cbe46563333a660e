"""Figures of the campaign so far: multiplicities, losses, speed, gradient norms, and how good it gets."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from crpipe.report.evaluations import ERROR, FLOOR, METRICS, evaluations
from crpipe.report.figure_style import GENERATED, REAL, new_figure, save, style
from crpipe.report.series import (
    WINDOW_STEPS,
    chain_rows,
    is_gap,
    is_loss,
    multiplicities,
    pick,
    smoothed,
    threshold_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from crpipe.config.loading import Config
    from crpipe.report.evaluations import Evaluation
    from crpipe.report.series import MultiplicityCounts, Series
    from crpipe.report.status.journal_tail import Row

MOST_ROWS = 20_000
_PANEL = 2.6  # inches
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568")
_BULK, _OUTLIERS, _ALL = "#2b6cb0", "#c05621", "#4a5568"
_ZERO = (0.35, 0.7)  # where the events without muons stand on an axis that has no zero


def draw_figures(config: Config) -> list[Path]:
    """Draw every figure of data and training for which there is data; return their paths."""
    folder = config.paths().figures()
    with style():
        drawn = [draw_multiplicity(config, folder / "multiplicity.svg"), *draw_training(config, folder)]
    return [path for path in drawn if path is not None]


def draw_multiplicity(config: Config, path: Path) -> Path | None:
    """Draw events by multiplicity before and after the split; ``None`` while no range has been split."""
    histogram = multiplicities(config)
    if histogram is None:
        return None
    figure = new_figure(3.6)
    threshold = threshold_of(config)
    _multiplicity(figure.add_subplot(), histogram.visible(threshold), threshold)
    return save(figure, path)


def draw_training(config: Config, folder: Path) -> list[Path]:
    """Draw ``losses.svg``, ``throughput.svg`` and ``gradients.svg`` into ``folder``, those that have data."""
    rows = chain_rows(config, MOST_ROWS)
    figures = {
        "losses": [
            ("loss", pick(rows, is_loss), False),
            ("Wasserstein gap", pick(rows, is_gap), False),
        ],
        "throughput": [
            ("events / s", pick(rows, "speed/events_per_s".__eq__), False),
            ("muons / s", pick(rows, "speed/muons_per_s".__eq__), False),
        ],
        "gradients": [("gradient norm", pick(rows, _is_norm), True)],
    }
    filled = {name: [panel for panel in panels if panel[1]] for name, panels in figures.items()}
    return [save(_curves(panels, rows), folder / f"{name}.svg") for name, panels in filled.items() if panels]


def draw_progress(config: Config) -> list[Path]:
    """Draw ``progress.svg``: the evaluations' numbers over the chain; nothing while nothing was evaluated.

    Evaluations on so few events that they give none of the numbers make a figure that says so.
    """
    told = list(reversed(list(evaluations(config))))
    if not told:
        return []
    names = [name for name in METRICS if any(name in item.numbers for item in told)]
    with style():
        rows = max(1, -(-len(names) // 2))
        figure = new_figure(0.6 + 2.2 * rows)
        axes = list(figure.subplots(rows, 2, sharex=True, squeeze=False).flat)
        for axis, name in zip(axes, names, strict=False):
            _progress(axis, name, told)
        for axis in axes[len(names) :]:
            axis.set_visible(False)
        if not names:
            figure.suptitle("too few validation events for any metric")
        links = len(config.all_ranges()) + 1
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        figure.supxlabel(f"links of the chain trained on, of {links} (the last: outliers)")
        return [save(figure, config.paths().figures() / "progress.svg")]


def _progress(axis: Axes, name: str, told: Sequence[Evaluation]) -> None:
    """Draw one metric of every evaluated checkpoint, and that of a second simulation where there is one."""
    for prefix, colour, label in (("", GENERATED, "generated"), (FLOOR, REAL, "simulated again")):
        some = [item for item in told if prefix + name in item.numbers]
        if some:
            values = [item.numbers[prefix + name] for item in some]
            errors = [item.numbers.get(prefix + name + ERROR, 0.0) for item in some]
            places = [item.place for item in some]
            axis.errorbar(places, values, errors, color=colour, label=label, marker="o", markersize=3)
    axis.set_title(METRICS[name])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _is_norm(name: str) -> bool:
    return name.endswith(("/grad_norm_p50", "/grad_norm_max"))


def _curves(panels: Sequence[tuple[str, list[Series], bool]], rows: Sequence[Row]) -> Figure:
    figure = new_figure(0.6 + _PANEL * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (label, lines, logarithmic) in zip(axes, panels, strict=True):
        for series, colour in zip(lines, _COLOURS * len(lines), strict=False):
            mean = smoothed(series)
            axis.plot(series.steps, series.values, color=colour, alpha=0.25, linewidth=0.7)
            axis.plot(mean.steps, mean.values, color=colour, linewidth=1.5, label=_legend(series.name))
        axis.set_ylabel(label)
        if logarithmic:
            axis.set_yscale("log")
        else:
            _focus(axis, lines)
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        _mark_ranges(axis, rows)
        if len(lines) > 1:
            _legend_above(axis, 4)
    axes[-1].set_xlabel(f"training step over all ranges (thick: mean over {WINDOW_STEPS} steps)")
    return figure


def _legend(name: str) -> str:
    return (
        name.removesuffix("/loss")
        .replace("/grad_norm_p50", ", median")
        .replace("/grad_norm_max", ", largest")
    )


def _legend_above(axis: Axes, columns: int) -> None:
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2)


def _focus(axis: Axes, lines: Sequence[Series]) -> None:
    """Leave single spikes out of view: a loss that once left its band would flatten all the rest."""
    values = np.concatenate([series.values for series in lines])
    low, high = np.quantile(values, (0.002, 0.998))
    margin = 0.1 * (high - low) or 1.0
    axis.set_ylim(min(low - margin, 0.0), high + margin)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def _mark_ranges(axis: Axes, rows: Sequence[Row]) -> None:
    """Draw a line where a new range begins, unless there are too many to tell apart."""
    starts = [after["step"] for before, after in pairwise(rows) if before["range"] != after["range"]]
    if len(starts) <= 30:  # noqa: PLR2004 - about 7 mm apart
        for step in starts:
            axis.axvline(step, color="#a0aec0", linewidth=0.6, zorder=0)


def _multiplicity(axis: Axes, histogram: MultiplicityCounts, threshold: int) -> None:
    edges, events = np.array(histogram.edges), np.array(histogram.events)
    left, right = edges[:-1].copy(), edges[1:].copy()
    zero = left == 0
    left[zero], right[zero] = _ZERO
    above = edges[:-1] > threshold
    for chosen, colour, label in (
        (~above, _BULK, "after: bulk (training and validation)"),
        (above, _OUTLIERS, "after: outliers"),
    ):
        some = chosen & (events > 0)
        if some.any():
            widths = (right - left)[some]
            axis.bar(left[some], events[some], widths, align="edge", color=colour, alpha=0.55, label=label)
    axis.stairs(events[~zero], edges[np.concatenate([~zero, [True]])], color=_ALL, label="before: all events")
    axis.axvline(threshold, color=_OUTLIERS, linestyle="--", label=f"threshold {threshold:,}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(_ZERO[0] * 0.8, edges[-1])
    axis.set_ylim(0.5, None)  # a bin of one event is a bar, too
    ticks = 10.0 ** np.arange(0, np.floor(np.log10(edges[-1])) + 1)
    middle = float(np.sqrt(_ZERO[0] * _ZERO[1]))
    axis.set_xticks([middle, *ticks], ["0", *(f"$10^{{{n}}}$" for n in range(len(ticks)))])
    axis.set_xlabel("multiplicity (muons in one event)")
    axis.set_ylabel("events in the bin")
    _legend_above(axis, 2)
