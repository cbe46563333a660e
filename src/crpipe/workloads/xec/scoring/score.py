"""How good predictions are, in numbers, and in figures with the regression of the same events.

The network is blue, the regression orange; vertical bars are bootstrap errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.report import figure_style as style
from crpipe.workloads.common import elementary
from crpipe.workloads.common.figures import NULL_LINE, save_all, set_decimal_ticks
from crpipe.workloads.xec.scoring import dead, metrics
from crpipe.workloads.xec.scoring.metrics import FEWEST, EnergyCurve, Quantity, energy_curve, profile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.statistics.groups import Statistic
    from crpipe.train.workload import Measured
    from crpipe.workloads.common.binned import Profile
    from crpipe.workloads.xec.layout import Truth

    Floats = NDArray[np.float64]
    Columns = Mapping[str, Any]

_CURVES: dict[str, dict[str, Any]] = {
    "network": {"color": style.COLOURS[0], "marker": "o", "markersize": 4},
    "regression": {"color": style.COLOURS[1], "marker": "s", "markersize": 3.5},
}
_PREFIX = {"network": "", "regression": "baseline_"}
_MEV = 1e3
_LOGARITHMIC = 6  # from this ratio of the largest to the least resolution on
_COLOURS = (*style.COLOURS, "#b7791f")  # of quantities


@dataclass(frozen=True, slots=True)
class Judged:
    """One quantity, in the events in which it is known, [N] each.

    residuals: by method. conditions: by label of an axis. pulls, sigma: None without predicted uncertainties.
    """

    quantity: Quantity
    residuals: dict[str, Floats]
    conditions: dict[str, Floats]
    pulls: Floats | None
    sigma: Floats | None

    @property
    def events(self) -> int:
        """Count the events."""
        return len(self.residuals["network"])


def score(truth: Events, prediction: Columns, folder: Path, tasks: Collection[Truth]) -> dict[str, Measured]:
    """Compare predictions with the truth; plot figures into ``folder``.

    There are figures where the prediction has a baseline to compare with, so none for the baseline itself.
    """
    if "baseline_u_cm" in prediction:
        draw_all(truth.columns, prediction, folder, tasks)
    dead.draw(truth.columns, prediction, tasks, folder)
    curve = metrics.measure_curve(truth.columns, prediction) if "energy" in tasks else {}
    with_dead = dead.measure(truth.columns, prediction, tasks)
    return {**metrics.measure(truth.columns, prediction, tasks), **curve, **with_dead}


def draw_all(truth: Columns, prediction: Columns, folder: Path, tasks: Collection[Truth]) -> list[Path]:
    """Plot every figure into ``folder``; return their paths."""
    judged = [
        evaluated
        for task, quantities in metrics.QUANTITIES.items()
        for quantity in (quantities if task in tasks else ())
        if (evaluated := _judged(quantity, truth, prediction)) is not None
    ]
    figures: dict[str, Callable[[], Figure]] = {"residuals": lambda: residuals(judged)} if judged else {}
    for each in judged:
        figures[each.quantity.name] = lambda each=each: dependence(each)  # type: ignore[misc]
    curves = _curves(truth, prediction) if "energy" in figures else {}
    if curves:
        figures["energy_curve"] = lambda: energy_terms(curves)
    calibrated = [each for each in judged if each.pulls is not None]
    if calibrated:
        figures["calibration"] = lambda: calibration(calibrated)
    return save_all(figures, folder)


def residuals(judged: list[Judged]) -> Figure:
    """Distribution of the residuals: one panel for each quantity."""
    columns = min(4, len(judged))
    rows = -(-len(judged) // columns)
    figure = style.new_figure(2.3 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(judged) :]:
        axis.set_visible(False)
    for axis, each in zip(axes.flat, judged, strict=False):
        every = np.ones(each.events)
        widths = [each.quantity.width(values)(every) for values in each.residuals.values()]
        reach = 4 * max(widths[0], min(widths[-1], 3 * widths[0])) or 1.0
        edges = np.linspace(-reach, reach, int(np.clip(each.events // 40, 12, 60)) + 1)
        for (name, values), width in zip(each.residuals.items(), widths, strict=True):
            share, _ = np.histogram(values, edges)
            colour = _CURVES[name]["color"]
            axis.stairs(100 * share / each.events, edges, color=colour, linewidth=1.3, label=name)
            ends = {"low": edges[:-1], "high": edges[1:]}
            style.note(figure, each.quantity.title, name, **ends, percent=100 * share / each.events)
            height = 0.97 - 0.1 * list(_CURVES).index(name)
            label = f"{width:.3g} {each.quantity.unit}"
            axis.text(0.98, height, label, color=colour, ha="right", va="top", transform=axis.transAxes)
        axis.set(
            title=each.quantity.title, xlabel=f"predicted - true [{each.quantity.unit}]", xlim=(-reach, reach)
        )
        axis.margins(y=0.25)
    for axis in axes[:, 0]:
        axis.set_ylabel("events per bin [%]")
    _legend(figure, axes.flat[0] if len(judged[0].residuals) > 1 else axes.flat[-1], axes)
    figure.suptitle(f"residuals of {judged[0].events:,} held-out events; numbers: resolutions", fontsize=9)
    return figure


def dependence(judged: Judged) -> Figure:
    """Resolution and bias of one quantity, in bins of what is known of the gamma."""
    quantity = judged.quantity
    figure = style.new_figure(4.6)
    axes = figure.subplots(2, max(1, len(judged.conditions)), sharex="col", sharey="row", squeeze=False)
    statistics: tuple[tuple[str, Callable[[Floats], Statistic]], ...] = (
        ("resolution", quantity.width),
        ("bias", metrics.middle),
    )
    for row, (title, statistic) in zip(axes, statistics, strict=True):
        for axis, (label, condition) in zip(row, judged.conditions.items(), strict=True):
            for name, values in judged.residuals.items():
                binned = profile(condition, values, statistic)
                _points(axis, binned, name)
                style.note(figure, f"{title} against {label}", name, **binned._asdict())
            if title == "bias":
                axis.axhline(0.0, **NULL_LINE)
                axis.set_xlabel(label)
            if judged.events < FEWEST:
                axis.set_title(f"fewer than {FEWEST} events")
        row[0].set_ylabel(f"{title} [{quantity.unit}]")
    _widths_axis(axes[0])
    _legend(figure, axes[0, 0], axes)
    about = (
        "68 % half width about the median" if quantity.centred else "68 % of the residuals are closer to 0"
    )
    figure.suptitle(
        f"{quantity.title} of {judged.events:,} held-out events; resolution: {about}; bias: median",
        fontsize=9,
    )
    return figure


def energy_terms(curves: Mapping[str, EnergyCurve]) -> Figure:
    """Resolution in bins of energy, and the three terms fitted to it."""
    figure = style.new_figure(3.4)
    axis = figure.subplots()
    for name, curve in curves.items():
        terms = zip(curve.terms, curve.terms_error, strict=True)
        a, b, c = (_with_error(float(value), float(error)) for value, error in terms)
        label = f"{name}: {a} % / √E ⊕ {b} % ⊕ {c} % / E"
        bins = curve.bins
        points = {"energy_mev": _MEV * bins.where, "value": bins.value, "error": bins.error}
        style.note(figure, "energy resolution", name, **points)
        axis.errorbar(_MEV * bins.where, bins.value, bins.error, linestyle="", label=label, **_CURVES[name])
        energy = np.linspace(bins.where.min(), bins.where.max(), 200)
        axis.plot(_MEV * energy, curve.at(energy), color=_CURVES[name]["color"])
    axis.set(title="energy resolution, with fits (E in GeV)", xlabel="true energy [MeV]")
    axis.set_ylabel("68 % half width of\npredicted / true energy [%]")
    axis.set_ylim(0, 1.3 * max(float((each.bins.value + each.bins.error).max()) for each in curves.values()))
    axis.legend(loc="upper right")
    return figure


def calibration(judged: list[Judged]) -> Figure:
    """Residuals over the predicted sigma: their distribution, and their width for small and large sigma."""
    figure = style.new_figure(3.6)
    left, right = figure.subplots(1, 2)
    edges = np.linspace(-5, 5, int(np.clip(judged[0].events // 40, 10, 50)) + 1)
    step = edges[1] - edges[0]
    line = np.linspace(-5, 5, 201)
    left.fill_between(
        line, np.exp(-(line**2) / 2) / np.sqrt(2 * np.pi), color=style.REAL, alpha=0.2, linewidth=0
    )
    for colour, each in zip(_COLOURS, judged, strict=False):
        if each.pulls is None or each.sigma is None:
            continue
        share, _ = np.histogram(np.clip(each.pulls, -4.999, 4.999), edges)
        label = f"{each.quantity.title}: {metrics.within(each.pulls)(np.ones(each.events)):.2f}"
        left.stairs(share / each.events / step, edges, color=colour, linewidth=1.3, label=label)
        ends = {"low": edges[:-1], "high": edges[1:]}
        style.note(figure, "pulls", each.quantity.title, **ends, density=share / each.events / step)
        rank = 100 * np.argsort(np.argsort(each.sigma)) / each.events
        binned = profile(rank, each.pulls, metrics.within)
        style.note(figure, "width of the pulls", each.quantity.title, **binned._asdict())
        right.errorbar(binned.where, binned.value, binned.error, fmt="o-", markersize=3.5, color=colour)
    left.set(title="pulls; grey: unit Gaussian", xlim=(-5, 5), ylabel="density of events")
    left.set_xlabel("(predicted - true) / predicted sigma")
    right.axhline(1.0, **NULL_LINE)
    right.set(title="width of the pulls; dashed: ideal", xlim=(0, 100), ylabel="68 % of |pull| are below")
    right.set_xlabel("events by predicted sigma, smallest first [%]")
    right.set_ylim(0, max(2.0, 1.1 * right.dataLim.y1))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(judged)))
    figure.suptitle(f"predicted uncertainty of {judged[0].events:,} held-out events", fontsize=9)
    return figure


def _judged(quantity: Quantity, truth: Columns, prediction: Columns) -> Judged | None:
    """Choose the events that are known; None where there are none, or no predictions."""
    pairs = {
        name: metrics.known_residuals(quantity, truth, prediction, prefix) for name, prefix in _PREFIX.items()
    }
    if pairs["network"] is None or not pairs["network"][0].any():
        return None
    known = pairs["network"][0]
    residuals = {name: each[1] for name, each in pairs.items() if each is not None}
    conditions = {"true energy [MeV]": ("energy_gev", _MEV), "true depth w [cm]": ("w_cm", 1.0)}
    shown = {
        label: np.asarray(truth[name], np.float64)[known] * scale
        for label, (name, scale) in conditions.items()
        if name in truth and np.isfinite(np.asarray(truth[name])[known]).all()
    }
    pull = metrics.pulls(quantity, truth, prediction)
    sigma = prediction.get(f"{quantity.column}_sigma")
    return Judged(
        quantity,
        residuals,
        shown,
        None if pull is None else pull[known],
        None if sigma is None else np.asarray(sigma, np.float64)[known],
    )


def _curves(truth: Columns, prediction: Columns) -> dict[str, EnergyCurve]:
    curves = {name: energy_curve(truth, prediction, prefix) for name, prefix in _PREFIX.items()}
    return {name: curve for name, curve in curves.items() if curve is not None}


def _points(axis: Axes, binned: Profile, name: str) -> None:
    axis.errorbar(binned.where, binned.value, binned.error, linewidth=1.0, label=name, **_CURVES[name])


def _legend(figure: Figure, axis: Axes, axes: NDArray[Any]) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if not handles:
        handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))


def _widths_axis(axes: Sequence[Axes]) -> None:
    """Start a shared vertical axis at 0, or make it logarithmic where methods differ by much."""
    limits = [(axis.dataLim.y0, axis.dataLim.y1) for axis in axes if np.isfinite(axis.dataLim.y0)]
    if not limits:
        return
    low, high = min(each[0] for each in limits), max(each[1] for each in limits)
    if not 0 < _LOGARITHMIC * low < high:
        axes[0].set_ylim(0, 1.15 * high or 1.0)
        return
    axes[0].set_yscale("log")
    low, high = low / 1.3, high * 1.3
    set_decimal_ticks(axes[0], "y", (low, high), (1, 2, 5) if high < 100 * low else (1,))
    axes[0].set_ylim(low, high)


def _with_error(value: float, error: float) -> str:
    """Write a number and its error with the digits that the error leaves."""
    if error <= 0:
        return f"{value:.2g}"
    digits = max(0, int(np.ceil(1 - elementary.log10(error) - 1e-9)))
    return f"({value:.{digits}f} ± {error:.{digits}f})"
