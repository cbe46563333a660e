"""How good generated bundles are, in numbers and figures: spectra, profiles, maps, classifiers, displays.

Real events are bands or grey lines, generated ones points or orange lines; below, their ratio with its error.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.patches import StepPatch
from matplotlib.ticker import NullFormatter

from crpipe.events.layout import WEIGHT
from crpipe.report import figure_context as context
from crpipe.report import figure_style as style
from crpipe.statistics.groups import group_numbers
from crpipe.workloads.common import elementary
from crpipe.workloads.common.binned import BinnedValues, mean_in_bins, per_event, quantiles_in_bins
from crpipe.workloads.common.figures import save_all
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.scoring import classify, metrics
from crpipe.workloads.muons.scoring.classify import judges
from crpipe.workloads.muons.scoring.sample import METRICS, Sample, energy_text, log_energy, log_radius, radius

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import nn

    from crpipe.events.batch import Events
    from crpipe.statistics.classifier import Judge
    from crpipe.train.workload import Generates, Measured

    Chosen = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_GLANCE_EVENTS = 1000
_GLANCE_MUONS = 100  # of one event: a glance during training must not wait for outliers


def score(truth: Events, prediction: Events, folder: Path) -> dict[str, Measured]:
    """Compare generated events with the real ones of the same conditions; plot figures into ``folder``."""
    real, generated = pair_of(truth, prediction)
    judged = judges(real, generated, classify.OWN)
    draw_all(real, generated, judged, folder)
    return metrics.compare(real, generated, judged) | classify.kept(judged)


def score_given(truth: Events, prediction: Events, folder: Path) -> dict[str, Measured]:
    """Compare events generated with the true multiplicities; plot what classifiers saw into ``folder``."""
    real, generated = pair_of(truth, prediction)
    judged = judges(real, generated, classify.GIVEN)
    save_all({"classifiers_given": lambda: classifiers(judged)}, folder)
    return metrics.compare_given(real, generated, judged) | classify.kept(judged)


def pair_of(truth: Events, prediction: Events) -> tuple[Sample, Sample]:
    """Return both as the metrics look at them; event i of one belongs to event i of the other."""
    weight = truth.columns.get(WEIGHT)
    real = sample_of(truth, weight)
    # halves of the truth have weights of their own, generated events those of the real ones
    return real, sample_of(prediction, prediction.columns.get(WEIGHT, weight), real.group)


def sample_of(
    events: Events, weight: NDArray[Any] | None = None, group: NDArray[np.int64] | None = None
) -> Sample:
    """Return what the metrics look at; rows of one primary make one group.

    group: those of the events, where they are known.
    """
    if group is None:
        group = group_numbers([events.columns[name] for name in BUNDLES.group])
    return Sample(events.columns, events.multiplicity, events.items, group, weight)


def histograms(
    workload: Generates, model: nn.Module, events: Events, generator: torch.Generator
) -> dict[str, NDArray[np.float64]]:
    """Return distributions of a few events, real and generated, for a glance during training."""
    shown = events.part(0, min(len(events), _GLANCE_EVENTS))
    drawn = workload.multiplicities(model, shown, generator)
    generated = workload.generate(model, shown, np.minimum(drawn, _GLANCE_MUONS), generator)
    real = sample_of(shown)
    names = ("log10_energy_gev", "cos_zenith", "log10_mass_number", "depth_m")
    samples = {f"condition/{name}": column for name, column in zip(names, real.conditions.T, strict=True)}
    samples |= {"log10_multiplicity/real": real.log_multiplicity}
    samples |= {"log10_multiplicity/generated": elementary.log10(drawn + 1.0)}
    for name, sample in (("real", real), ("generated", sample_of(generated))):
        early = np.arange(len(sample.event)) - sample.first[sample.event] < _GLANCE_MUONS
        samples[f"log10_muon_energy_gev/{name}"] = log_energy(sample.muons[early])
        samples[f"log10_radius_m/{name}"] = log_radius(sample.muons[early])
    return {name: values for name, values in samples.items() if len(values)}


# A few events seen along the axis, real above and generated below.

_SHOWN_EVENTS = 4
_SHOWN_MUONS = (10, 150)


def displays(real: Sample, generated: Sample) -> Figure:
    """A few events seen along the axis: the same conditions, real above and generated below."""
    events = _shown_events(real, generated)
    figure = style.new_figure(4.4)
    if not len(events):
        figure.text(0.5, 0.5, "no event has enough muons on both sides to show", ha="center")
        return figure
    grid = figure.subplots(2, len(events), squeeze=False)
    for axes, event in zip(grid.T, events, strict=True):
        reach = max(np.quantile(radius(side.of(event)), 0.98) for side in (real, generated))
        for axis, side in zip(axes, (real, generated), strict=True):
            muons = side.of(event)
            logs = log_energy(muons).clip(0.0)
            dots = axis.scatter(
                muons[:, 1], muons[:, 2], c=logs, s=6 + 4 * logs**1.5, vmin=0, vmax=5, alpha=0.8
            )
            points = {"x_m": muons[:, 1], "y_m": muons[:, 2], "energy_gev": muons[:, 0]}
            style.note(figure, f"event {event}", "real" if side is real else "generated", **points)
            axis.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach), title=f"{len(muons)} muons")
        axes[0].set_title(f"{_conditions(real, event)}\n{axes[0].get_title()}")
        axes[1].set_xlabel("x [m]")
    for axis, name in zip(grid[:, 0], ("real", "generated"), strict=True):
        axis.set_ylabel(f"{name}\ny [m]")
    figure.colorbar(dots, ax=grid, label="log10(E / GeV)", shrink=0.8)
    return figure


def _shown_events(real: Sample, generated: Sample) -> NDArray[np.int64]:
    """Choose events that have enough muons on both sides to see a shape, spread over multiplicities."""
    low, high = _SHOWN_MUONS
    counts = np.minimum(real.multiplicity, generated.multiplicity).astype(np.int64)
    able = np.flatnonzero((counts >= low) & (np.maximum(real.multiplicity, generated.multiplicity) <= high))
    able = able[np.argsort(counts[able], kind="stable")]
    return able[np.linspace(0, len(able) - 1, _SHOWN_EVENTS).astype(int)] if len(able) else able


def _conditions(sample: Sample, event: int) -> str:
    energy_gev, zenith, mass, depth = (
        float(sample.columns[name][event]) for name in ("energy_gev", "zenith_rad", "mass_number", "depth_m")
    )
    return f"{energy_text(energy_gev)}, A = {mass:.0f}\n{np.rad2deg(zenith):.0f}°, {depth / 1e3:.2f} km"


_RATIO = (0.5, 1.5)
_ENERGY_GEV = np.geomspace(1.0, 1e6, 25)
_RADIUS_M = np.geomspace(0.3, 300.0, 22)
_PRIMARY_GEV = np.geomspace(1e3, 1e9, 25)
_DEPTH_M = np.linspace(1000.0, 2800.0, 10)
_ZERO = 0.35  # place of events without muons on an axis that has no zero
_SHOWN_DECADES = 1e-8  # of the largest value; smaller ones are below the panel
_FEWEST = 20  # muons in a bin: a 16 % quantile of fewer is a coin's toss
_LABEL = 28  # letters of a label in one line
TITLES = {each.name: each.title.removeprefix("AUC of ") for each in METRICS}


class Band(NamedTuple):
    """Events between two values of one condition."""

    column: str
    low: float
    high: float
    label: str

    def of(self, sample: Sample) -> Chosen:
        """Choose its events: [N]."""
        values = np.asarray(sample.columns[self.column])
        return (values >= self.low) & (values < self.high)


_ENERGY_BANDS = (
    Band("energy_gev", 0.0, 1e5, "$E_0$ < 100 TeV"),
    Band("energy_gev", 1e5, 1e7, "100 TeV ≤ $E_0$ < 10 PeV"),
    Band("energy_gev", 1e7, np.inf, "$E_0$ ≥ 10 PeV"),
)
_DEPTH_BANDS = (
    Band("depth_m", 0.0, 1600.0, "depth < 1.6 km"),
    Band("depth_m", 1600.0, 2200.0, "1.6 km ≤ depth < 2.2 km"),
    Band("depth_m", 2200.0, np.inf, "depth ≥ 2.2 km"),
)


def draw_all(real: Sample, generated: Sample, judged: Mapping[str, Judge], folder: Path) -> list[Path]:
    """Plot every figure into ``folder``; return their paths."""
    figures: dict[str, Callable[[], Figure]] = {
        "lateral": lambda: lateral(real, generated),
        "energy": lambda: energy(real, generated),
        "energy_radius": lambda: energy_radius(real, generated),
        "multiplicity_energy": lambda: multiplicity_energy(real, generated),
        "multiplicity": lambda: multiplicity(real, generated),
        "empty": lambda: empty(real, generated),
        "classifiers": lambda: classifiers(judged),
        "displays": lambda: displays(real, generated),
    }
    return save_all(figures, folder)


def lateral(real: Sample, generated: Sample) -> Figure:
    """Muons per area against the distance from the axis, in bands of primary energy."""
    area = np.pi * np.diff(_RADIUS_M**2)
    figure = _muon_spectra((real, generated), radius, _RADIUS_M, 1.0 / area)
    _label(figure, "distance from the axis [m]", "muons per event and area [1/m²]")
    return figure


def energy(real: Sample, generated: Sample) -> Figure:
    """Muons per logarithm of their energy, in bands of primary energy."""
    width = np.diff(elementary.log10(_ENERGY_GEV))
    figure = _muon_spectra((real, generated), _energy_gev, _ENERGY_GEV, 1.0 / width)
    _label(figure, "muon energy [GeV]", "muons per event and decade of energy")
    return figure


def energy_radius(real: Sample, generated: Sample) -> Figure:
    """Median and central 68 % of the radius against the muon energy, in bands of depth."""
    figure, tops, bottoms = _panels(len(_DEPTH_BANDS))
    edges = _ENERGY_GEV
    centre = np.sqrt(edges[1:] * edges[:-1])
    for band, top, bottom in zip(_DEPTH_BANDS, tops, bottoms, strict=True):
        tables = []
        for sample in (real, generated):
            muons = sample.muons[band.of(sample)[sample.event]]
            values = radius(muons), _energy_gev(muons)
            tables.append(quantiles_in_bins(*values, edges, (0.16, 0.5, 0.84), _FEWEST))
        ours, theirs = tables
        for name, (low, middle, high) in (("real", ours), ("generated", theirs)):
            shares = {"p16": low, "median": middle, "p84": high}
            style.note(figure, band.label, name, low_gev=edges[:-1], high_gev=edges[1:], **shares)
        top.fill_between(centre, ours[0], ours[2], color=style.REAL, alpha=0.25, linewidth=0)
        top.plot(centre, ours[1], color=style.REAL, label="real: median, 68 %")
        top.plot(centre, theirs[1], "o", markersize=3, color=style.GENERATED, label="generated: median, 68 %")
        for edge in (theirs[0], theirs[2]):
            top.plot(centre, edge, ":", color=style.GENERATED)
        _log_log(top, band.label)
        _ratio(bottom, centre, theirs[1] / ours[1], np.zeros(len(centre)))
    _label(figure, "muon energy [GeV]", "distance from the axis [m]")
    return figure


def _energy_gev(muons: NDArray[np.float32]) -> Floats:
    return muons[:, 0].astype(np.float64)


def multiplicity_energy(real: Sample, generated: Sample) -> Figure:
    """Mean multiplicity against the primary energy, in bands of depth."""
    figure, tops, bottoms = _panels(len(_DEPTH_BANDS))
    for band, top, bottom in zip(_DEPTH_BANDS, tops, bottoms, strict=True):
        ours, theirs = (_mean_multiplicity(sample, band.of(sample)) for sample in (real, generated))
        _log_log(top, _compare(top, bottom, ours, theirs, band.label))
    _label(figure, "primary energy [GeV]", "mean multiplicity")
    return figure


def multiplicity(real: Sample, generated: Sample) -> Figure:
    """Share of events by multiplicity, with the tail; events without muons are at the left."""
    figure, tops, bottoms = _panels(1)
    edges = _multiplicity_edges(max(real.multiplicity.max(initial=0), generated.multiplicity.max(initial=0)))
    ours, theirs = (_multiplicity_shares(sample, edges) for sample in (real, generated))
    _log_log(tops[0], _compare(tops[0], bottoms[0], ours, theirs, "all events"))
    bottoms[0].set_xticks([_ZERO, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
    _label(figure, "multiplicity", "share of events per unit of multiplicity")
    return figure


def empty(real: Sample, generated: Sample) -> Figure:
    """Probability of no muon at all over primary energy and depth: real, generated, difference."""
    figure = style.new_figure(2.8)
    axes = figure.subplots(1, 3, sharey=True)
    ours, theirs = _empty_share(real), _empty_share(generated)
    shown: list[tuple[str, Floats, dict[str, Any]]] = [
        ("P(no muon), real", ours, {"cmap": "viridis", "vmin": 0, "vmax": 1}),
        ("P(no muon), generated", theirs, {"cmap": "viridis", "vmin": 0, "vmax": 1}),
        ("generated minus real", theirs - ours, {"cmap": "RdBu_r", "vmin": -0.1, "vmax": 0.1}),
    ]
    lows, depths = np.meshgrid(_PRIMARY_GEV[:-1], _DEPTH_M[:-1], indexing="ij")
    for axis, (title, table, options) in zip(axes, shown, strict=True):
        corner = {"from_gev": lows.ravel(), "from_depth_m": depths.ravel()}
        style.note(figure, title, title, **corner, value=table.ravel())
        mesh = axis.pcolormesh(_PRIMARY_GEV, _DEPTH_M / 1e3, table.T, **options)
        axis.set(xscale="log", title=title, xlabel="primary energy [GeV]")
        axis.grid(visible=False)
        figure.colorbar(mesh, ax=axis)
    axes[0].set_ylabel("depth [km]")
    axes[0].invert_yaxis()
    return figure


def classifiers(judged: Mapping[str, Judge]) -> Figure:
    """Held-out scores of each classifier, and its learning curve: AUC 0.5 when it cannot separate them."""
    figure = style.new_figure(4.0)
    axes = figure.subplots(2, max(len(judged), 1), squeeze=False, sharex="row", height_ratios=(3, 2))
    edges = np.linspace(0.0, 1.0, 31)
    for (top, bottom), (name, judge) in zip(axes.T, judged.items(), strict=False):
        for real, colour, label in ((True, style.REAL, "real"), (False, style.GENERATED, "generated")):
            mine = judge.rows.real == real
            share, _ = np.histogram(judge.scores[mine], edges, weights=judge.rows.weight[mine])
            share = share / (share.sum() or 1.0)
            top.stairs(share, edges, color=colour, label=label)
            style.note(figure, TITLES[name], label, low=edges[:-1], high=edges[1:], share=share)
        top.set(title="\n".join(textwrap.wrap(TITLES[name], _LABEL)), xlabel="classifier score")
        curve = judge.curve
        bottom.errorbar(curve.groups, curve.auc, curve.error, fmt="o", markersize=3, color=style.GENERATED)
        words = "converged" if curve.converged else "still learning"
        bottom.axhline(curve.limit, color=style.GENERATED, linestyle=":", label=words)
        bottom.axhline(0.5, color=style.REAL, linewidth=0.8)
        floor = context.floor(name)
        if floor is not None:
            bottom.axhspan(floor[0] - floor[1], floor[0] + floor[1], color=style.REAL, alpha=0.25)
        bottom.set(
            xscale="log", xlabel="groups that it learned from", title=f"limit {curve.limit:.3f}, {words}"
        )
        bottom.xaxis.set_minor_formatter(NullFormatter())  # two decades have no room for more
        points = {"groups": curve.groups, "auc": curve.auc, "error": curve.error}
        style.note(figure, TITLES[name], "learning curve", **points)
    axes[0, 0].set_ylabel("share of held-out rows")
    axes[1, 0].set_ylabel("AUC")
    if judged:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _muon_spectra(
    samples: tuple[Sample, Sample],
    values: Callable[[NDArray[np.float32]], Floats],
    edges: Floats,
    scale: Floats,
) -> Figure:
    figure, tops, bottoms = _panels(len(_ENERGY_BANDS))
    for band, top, bottom in zip(_ENERGY_BANDS, tops, bottoms, strict=True):
        spectra = []
        for sample in samples:
            events = band.of(sample)
            mine = events[sample.event]
            counts = per_event(
                values(sample.muons[mine]), sample.event[mine], edges, events, sample.weights, sample.group
            )
            spectra.append(counts.times(scale))
        _log_log(top, _compare(top, bottom, spectra[0], spectra[1], band.label))
    return figure


def _panels(columns: int) -> tuple[Figure, list[Axes], list[Axes]]:
    """Start a figure of ``columns`` panels, each with a ratio below."""
    figure = style.new_figure(4.4)
    grid = figure.subplots(2, columns, sharex="col", sharey="row", squeeze=False, height_ratios=(5, 2))
    for axis in grid[1]:
        axis.axhline(1.0, color=style.REAL, linewidth=0.8)
        axis.set_ylim(*_RATIO)
    return figure, list(grid[0]), list(grid[1])


def _log_log(axis: Axes, title: str = "") -> None:
    """Make the axes logarithmic that have something to show."""
    axis.set_title(title)
    if axis.dataLim.x1 > 0:
        axis.set_xscale("log")
    if axis.dataLim.y1 > 0:
        axis.set_yscale("log")


def _focus(axes: list[Axes]) -> None:
    """End a shared logarithmic axis near points and steps: an error bar that reaches to 0 has no end."""
    lines = [np.asarray(line.get_ydata(), np.float64) for axis in axes for line in axis.get_lines()]
    steps = [patch.get_data()[0] for axis in axes for patch in axis.patches if isinstance(patch, StepPatch)]
    values = np.concatenate([*lines, *steps, []])
    values = values[np.isfinite(values) & (values > 0)]
    if values.size and axes[0].get_yscale() == "log":
        axes[0].set_ylim(max(values.min(), _SHOWN_DECADES * values.max()) / 2, 3 * values.max())


def _label(figure: Figure, horizontal: str, vertical: str) -> None:
    axes = figure.axes
    columns = len(axes) // 2
    for axis in axes[columns:]:
        axis.set_xlabel(horizontal)
    _focus(list(axes[:columns]))
    axes[0].set_ylabel(textwrap.fill(vertical, _LABEL))
    axes[columns].set_ylabel("generated / real", fontsize=8)
    figure.align_ylabels([axes[0], axes[columns]])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _compare(top: Axes, bottom: Axes, real: BinnedValues, generated: BinnedValues, name: str) -> str:
    """Plot a real histogram as steps with an error band, a generated one as points, and their ratio.

    Return the panel's title: its name, and the chance of such deviations between equal samples.
    """
    for curve, histogram in (("real", real), ("generated", generated)):
        ends = {"low": histogram.edges[:-1], "high": histogram.edges[1:]}
        style.note(top.figure, name, curve, **ends, value=histogram.value, error=histogram.error)
    low, high = real.value - real.error, real.value + real.error
    filled = np.where(real.value > 0, real.value, np.nan)
    top.stairs(filled, real.edges, baseline=None, color=style.REAL, label="real")
    top.stairs(high, real.edges, baseline=low, fill=True, color=style.REAL, alpha=0.25)
    shown = generated.value > 0
    options: dict[str, Any] = {"fmt": "o", "markersize": 3, "linewidth": 1, "color": style.GENERATED}
    top.errorbar(
        generated.centre[shown], generated.value[shown], generated.error[shown], label="generated", **options
    )
    compared = generated.over(real)
    _ratio(bottom, real.centre, *compared.values())
    return f"{name}\np = {compared.chances()[0]:.2g}" if np.any(real.value > 0) else name


def _ratio(axis: Axes, centre: Floats, ratio: Floats, error: Floats) -> None:
    """Plot ratios with their errors; an arrow marks one outside the panel."""
    inside = (ratio >= _RATIO[0]) & (ratio <= _RATIO[1])
    options: dict[str, Any] = {"fmt": "o", "markersize": 3, "linewidth": 1, "color": style.GENERATED}
    axis.errorbar(centre[inside], ratio[inside], error[inside], **options)
    style.mark_outside(axis, centre, ratio, style.GENERATED, _RATIO)


def _mean_multiplicity(sample: Sample, chosen: Chosen) -> BinnedValues:
    values = np.asarray(sample.multiplicity, np.float64)[chosen]
    where = np.asarray(sample.columns["energy_gev"])[chosen]
    groups = int(sample.group.max(initial=-1)) + 1
    return mean_in_bins(values, where, _PRIMARY_GEV, sample.weights[chosen], sample.group[chosen], groups)


def _multiplicity_edges(largest: int) -> Floats:
    """Return each multiplicity below 10 its own bin, the first one for 0, and the tail bins that grow."""
    single = np.sqrt(np.arange(1.0, 10.0) * np.arange(2.0, 11.0))
    tail = np.unique(np.round(np.geomspace(10, max(largest, 20), 25))) + 0.5
    return np.concatenate([[0.5 * _ZERO, 2.0 * _ZERO], single, tail])


def _multiplicity_shares(sample: Sample, edges: Floats) -> BinnedValues:
    placed = np.where(sample.multiplicity == 0, _ZERO, sample.multiplicity).astype(np.float64)
    every = np.arange(len(sample))
    counts = per_event(placed, every, edges, every >= 0, sample.weights, sample.group)
    width = np.maximum(np.diff(np.floor(edges)), 1.0)  # multiplicities in a bin
    return counts.times(1.0 / width)


def _empty_share(sample: Sample) -> Floats:
    """Share of events without muons in bins of primary energy and depth; nan where there is no event."""
    where = np.asarray(sample.columns["energy_gev"]), np.asarray(sample.columns["depth_m"])
    bins = (_PRIMARY_GEV, _DEPTH_M)
    empty = np.asarray(sample.multiplicity) == 0
    events, _, _ = np.histogram2d(*where, bins, weights=sample.weights)
    none, _, _ = np.histogram2d(*where, bins, weights=sample.weights * empty)
    with np.errstate(invalid="ignore"):
        return np.where(events > 0, none / events, np.nan)
