"""How good predicted directions are, in numbers, and in figures with the regression of the same events.

The network is blue, the regression orange, the truth grey; a dashed grey line is a random direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.ticker import NullFormatter

from crpipe.report import figure_style as style
from crpipe.workloads.common.binned import rows_in_bins, wide_cuts
from crpipe.workloads.common.figures import NULL_LINE, save_all, set_decimal_ticks, set_ticks
from crpipe.workloads.direction.layout import opening_angle, unit_vectors
from crpipe.workloads.direction.scoring import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.statistics.groups import Statistic

    Floats = NDArray[np.float64]

_TRUTH, _NETWORK, _REGRESSION = style.REAL, style.COLOURS[0], style.COLOURS[1]
_MARKED = (0.1, 0.25, 0.5, 0.75, 0.9)
_DEGREES = (0.1, 0.3, 1, 3, 10, 30, 90)
_FINEST = _DEGREES[0]
_COSINE = "cosine of the true zenith angle"
_BINS = 12
_FEWEST = 20  # events in a bin; fewer are too few for a 16 % quantile


@dataclass(frozen=True)
class Directions:
    """What one method predicted: unit vectors [N, 3], angles to the truth [N] in degrees."""

    name: str
    colour: str
    vectors: Floats
    angle: Floats


class Quantiles(NamedTuple):
    """Angles in bins of something else: its typical value, and quantiles of the angle, [B] each.

    median_below_deg, median_above_deg: 68 % interval of the median itself.
    """

    where: Floats
    p16_deg: Floats
    median_deg: Floats
    median_below_deg: Floats
    median_above_deg: Floats
    p84_deg: Floats


def score(truth: Events, prediction: Mapping[str, Any], folder: Path) -> dict[str, Statistic]:
    """Compare predicted directions with the true ones; plot figures into ``folder``.

    There are figures where the prediction has a baseline beside it, so none for the baseline itself.
    """
    if "baseline_zenith" in prediction:
        draw_all(truth, prediction, folder)
    return metrics.measure(truth.columns, prediction, truth.multiplicity)


def draw_all(truth: Events, prediction: Mapping[str, Any], folder: Path) -> list[Path]:
    """Plot every figure into ``folder``; return their paths."""
    true = unit_vectors(truth.columns["azimuth"], truth.columns["zenith"])
    methods = [
        _directions("network", _NETWORK, true, prediction, ""),
        _directions("regression", _REGRESSION, true, prediction, "baseline_"),
    ]
    figures: dict[str, Callable[[], Figure]] = {
        "angle": lambda: angle(methods),
        "dependence": lambda: dependence(methods, _conditions(truth, prediction)),
        "bias": lambda: bias(methods, true),
    }
    if "kappa" in prediction:
        figures["kappa"] = lambda: kappa(methods[0].angle, np.asarray(prediction["kappa"], np.float64))
    return save_all(figures, folder)


def angle(methods: list[Directions]) -> Figure:
    """Share of events that are closer to the truth than an angle, with quantiles marked."""
    figure = style.new_figure(3.8)
    axis = figure.subplots()
    for method in methods:
        ordered = np.sort(method.angle)
        steps = np.arange(1, len(ordered) + 1) / len(ordered)
        # The file must not grow with the events: 1,000 points are finer than a line is wide.
        shown = np.unique(np.linspace(0, len(ordered) - 1, 1000).astype(int))
        label = f"{method.name}: median {np.median(ordered):.1f}°, mean {ordered.mean():.1f}°"
        axis.plot(np.maximum(ordered[shown], _FINEST), steps[shown], color=method.colour, label=label)
        style.note(figure, "opening angle", method.name, angle_deg=ordered[shown], share_closer=steps[shown])
        marks = np.maximum(np.quantile(ordered, _MARKED), _FINEST)
        axis.plot(marks, _MARKED, "o", markersize=4, color=method.colour)
    angles = np.geomspace(_FINEST, 180, 400)
    axis.plot(
        angles, np.sin(np.deg2rad(angles) / 2) ** 2, label="random: median 90.0°, mean 90.0°", **NULL_LINE
    )
    axis.set(ylim=(0, 1.01), yticks=(0, *_MARKED, 1), ylabel="share of events closer than the angle")
    axis.set(title=f"opening angle of {len(methods[0].angle):,} held-out events")
    axis.set_xlabel("opening angle between predicted and true direction")
    _angle_axis(axis, "x")
    axis.legend(loc="upper left", title="points: 10, 25, 50, 75 and 90 % quantiles", alignment="left")
    return figure


def dependence(methods: list[Directions], conditions: Mapping[str, Floats]) -> Figure:
    """Median and central 68 % of the angle against what it depends on: one panel for each condition."""
    rows, columns = (1, len(conditions)) if len(conditions) < 4 else (2, 2)  # noqa: PLR2004 - a row holds three
    figure = style.new_figure(2.7 * rows + 0.3)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    lowest = 90.0
    for axis, (label, values) in zip(axes.flat, conditions.items(), strict=True):
        logarithmic = label != _COSINE
        cuts = wide_cuts(values, _FEWEST, _BINS, logarithmic=logarithmic)
        for method in methods:
            bands = quantiles(method.angle, values, cuts)
            lowest = min(lowest, bands.p16_deg.min(initial=lowest))
            _bands(axis, bands, method)
            style.note(figure, label, method.name, **bands._asdict())
        axis.axhline(90.0, **NULL_LINE)
        axis.set(xlabel=label, title="" if len(values) >= _FEWEST else f"fewer than {_FEWEST} events")
        if logarithmic:
            _log_axis(axis, values)
        else:
            axis.set(xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1))
    for axis in axes.flat:
        _angle_axis(axis, "y", lowest)
    for axis in axes[:, 0]:
        axis.set_ylabel("opening angle")
    handles, _ = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    title = f"opening angle of {len(methods[0].angle):,} held-out events"
    figure.suptitle(f"{title}; bands: errors of the medians; dashed: random", fontsize=9)
    return figure


def bias(methods: list[Directions], true: Floats) -> Figure:
    """Distribution of the z component, and the mean vectors: a network that collapsed shows in both."""
    figure = style.new_figure(3.2)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    events = len(true)
    edges = np.linspace(-1, 1, int(np.clip(events // 75, 10, 40)) + 1)
    share, _ = np.histogram(true[:, 2], edges)
    style.note(figure, "z component", "truth", low=edges[:-1], high=edges[1:], share=share / events)
    left.stairs(share / events, edges, fill=True, color=_TRUTH, alpha=0.25, label="truth")
    for method in methods:
        share, _ = np.histogram(method.vectors[:, 2], edges)
        left.stairs(share / events, edges, color=method.colour, linewidth=1.3, label=method.name)
        style.note(figure, "z component", method.name, low=edges[:-1], high=edges[1:], share=share / events)
    left.set(xlabel="z component of the direction (1: from straight above)", ylabel="share of events per bin")
    left.set(
        title=f"z component of {len(true):,} held-out events", xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1)
    )
    left.margins(y=0.2)
    left.legend(loc="upper center", ncols=3)
    sides = [(_TRUTH, true), *((each.colour, each.vectors) for each in methods)]
    for number, (colour, vectors) in enumerate(sides):
        mean, error = vectors.mean(axis=0), vectors.std(axis=0) / np.sqrt(events)
        length = np.linalg.norm(mean)
        places = np.arange(4) + 0.18 * (number - 1)
        spread = [*error, np.linalg.norm(mean * error) / length if length else 0.0]
        name = ("truth", *(each.name for each in methods))[number]
        components = ["x", "y", "z", "length"]
        style.note(figure, "mean direction", name, of=components, value=[*mean, length], error=spread)
        right.errorbar(places, [*mean, length], spread, fmt="o", markersize=4, linewidth=1.2, color=colour)
    right.axhline(0.0, color=style.REAL, linewidth=0.8)
    right.set_xticks(range(4), ["x", "y", "z", "length"])
    right.set(title="mean direction", ylabel="mean of the unit vectors")
    return figure


def kappa(angles: Floats, concentration: Floats) -> Figure:
    """Compare angles (in degrees) with what kappa expects: medians in bins, and shares inside of circles."""
    figure = style.new_figure(3.4)
    left, right = figure.subplots(1, 2)
    expected = np.rad2deg(metrics.expected_angle(0.5, concentration))
    bands = quantiles(angles, expected, wide_cuts(expected, _FEWEST, _BINS, logarithmic=True))
    style.note(figure, "observed against expected from kappa", "network", **bands._asdict())
    left.fill_between(bands.where, bands.p16_deg, bands.p84_deg, color=_NETWORK, alpha=0.15, linewidth=0)
    errors = bands.median_deg - bands.median_below_deg, bands.median_above_deg - bands.median_deg
    left.errorbar(bands.where, bands.median_deg, errors, fmt="o", markersize=3.5, linewidth=1, color=_NETWORK)
    ends = np.array([_FINEST, 180.0])
    left.plot(ends, ends, **NULL_LINE)
    left.set(title="observed median and central 68 %", xlabel="median expected from kappa")
    left.set(ylabel="observed opening angle")
    _angle_axis(left, "x", expected.min())
    _angle_axis(left, "y", bands.p16_deg.min(initial=expected.min()))
    shares = np.sort(metrics.shares_inside(np.deg2rad(angles), concentration))
    nominal = np.linspace(0, 1, 201)
    inside = np.searchsorted(shares, nominal, side="right") / len(shares)
    error = np.sqrt(nominal * (1 - nominal) / len(shares))
    right.plot([0, 1], [0, 1], **NULL_LINE)
    right.fill_between(nominal, inside - error, inside + error, color=_NETWORK, alpha=0.3, linewidth=0)
    right.plot(nominal, inside, color=_NETWORK)
    style.note(figure, "coverage", "network", expected=nominal, inside=inside, error=error)
    covered = float(np.mean(shares < metrics.COVERAGE))
    right.plot([metrics.COVERAGE], [covered], "o", markersize=4, color=_NETWORK)
    label = f"{100 * metrics.COVERAGE:.0f} % circles hold\n{100 * covered:.1f} % of the events"
    right.text(0.96, 0.05, label, ha="right")
    right.set(title="coverage", xlabel="share expected inside", ylabel="share of events inside")
    right.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    figure.suptitle(
        f"uncertainty of {len(angles):,} held-out events; dashed: perfect calibration", fontsize=9
    )
    return figure


def quantiles(angles: Floats, values: Floats, cuts: Floats) -> Quantiles:
    """Return quantiles of the angle in bins of ``values``; bins of fewer than 20 events are left out.

    The interval of the median follows from the binomial distribution of the events below it.
    """

    def shares(mine: NDArray[np.bool_]) -> NDArray[np.float64]:
        off = 0.5 / np.sqrt(np.count_nonzero(mine))
        return np.quantile(angles[mine], (0.16, 0.5, 0.5 - off, 0.5 + off, 0.84))

    return Quantiles(*rows_in_bins(values, cuts, _FEWEST, shares, 5))


def _directions(
    name: str, colour: str, true: Floats, prediction: Mapping[str, Any], prefix: str
) -> Directions:
    vectors = unit_vectors(prediction[f"{prefix}azimuth"], prediction[f"{prefix}zenith"])
    return Directions(name, colour, vectors, np.rad2deg(opening_angle(true, vectors)))


def _conditions(truth: Events, prediction: Mapping[str, Any]) -> dict[str, Floats]:
    conditions = {"pulses": truth.multiplicity, "sensors hit": prediction["doms"]}
    if "energy_gev" in truth.columns:
        conditions["energy [GeV]"] = truth.columns["energy_gev"]
    conditions = {name: np.maximum(values, 1) for name, values in conditions.items()}  # for logarithmic axes
    conditions[_COSINE] = np.cos(truth.columns["zenith"])
    return {name: np.asarray(values, np.float64) for name, values in conditions.items()}


def _bands(axis: Axes, bands: Quantiles, method: Directions) -> None:
    colour = method.colour
    axis.fill_between(
        bands.where, bands.median_below_deg, bands.median_above_deg, color=colour, alpha=0.4, linewidth=0
    )
    label = f"{method.name}, median"
    axis.plot(bands.where, bands.median_deg, "o-", markersize=3, color=colour, label=label)
    label = f"{method.name}, central 68 %"
    if colour == _NETWORK:
        axis.fill_between(
            bands.where, bands.p16_deg, bands.p84_deg, color=colour, alpha=0.12, linewidth=0, label=label
        )
    else:
        axis.plot(bands.where, bands.p16_deg, ":", linewidth=1.0, color=colour, label=label)
        axis.plot(bands.where, bands.p84_deg, ":", linewidth=1.0, color=colour)


def _log_axis(axis: Axes, values: Floats) -> None:
    """Make the horizontal axis logarithmic; name 2 and 5 too where there are few powers of ten."""
    if not np.isfinite(axis.dataLim.minposx):  # no bin has enough events
        axis.set_xlim(0.9 * values.min(), 1.1 * values.max())
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    if high < 50 * low:
        set_decimal_ticks(axis, "x", (low, high), (1, 2, 5))
    else:
        axis.xaxis.set_minor_formatter(NullFormatter())  # matplotlib names some up to four decades


def _angle_axis(axis: Axes, which: str, lowest: float = _FINEST) -> None:
    """Make one axis logarithmic in degrees, with round ticks; it starts at the one below ``lowest``."""
    first = max((each for each in _DEGREES[:-1] if each <= lowest), default=_FINEST)
    shown = [each for each in _DEGREES if each >= first]
    getattr(axis, f"set_{which}scale")("log")
    set_ticks(axis, which, shown, [f"{value:g}°" for value in shown])
    getattr(axis, f"set_{which}lim")(first, 180)
