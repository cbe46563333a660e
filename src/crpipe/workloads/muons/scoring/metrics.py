"""How far generated events are from real ones of the same conditions, as named numbers with errors.

Distances are 0 for a perfect model and infinite statistics; what re-simulation reaches is the floor.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import spearmanr

from crpipe.core.errors import MissingExtra
from crpipe.workloads.common.errors import group_weights
from crpipe.workloads.muons.scoring import classify
from crpipe.workloads.muons.scoring.classify import FEWEST_GENERATED, FEWEST_GROUPS, FEWEST_MUONS
from crpipe.workloads.muons.scoring.sample import AXES, azimuth, log_energy, log_radius, radius

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from crpipe.workloads.muons.scoring.sample import Sample

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]
    Numbers = dict[str, float]
    Cell = Index | slice  # muons of a sample

_LOG = logging.getLogger(__name__)
REPLICAS = 20  # bootstrap samples: the error is itself good to 16 %
FEWEST_EVENTS = 100

CLASSIFIERS: dict[str, Callable[[Sample], classify.ClassifierRows]] = {
    "auc_muon": classify.muon_rows,
    "auc_event": classify.bundle_rows,
    "auc_multiplicity": classify.multiplicity_rows,
    "auc_full": classify.full_rows,
}
# Values of each muon, and how they are named.
_OBSERVABLES: dict[str, Callable[[NDArray[np.float32]], Floats]] = {
    "log_energy": log_energy,
    "radius_m": radius,
    "log_radius": log_radius,
}
_NONE = np.zeros(0, np.int64)
_BLOCK = 1 << 16  # values looked up at once: their places fit into a cache


def compare(real: Sample, generated: Sample, trained: Mapping[str, classify.ClassifierScores]) -> Numbers:
    """Measure everything; ``name`` with its error ``name_error`` (see docs/physics.md).

    Events of the two samples correspond: same conditions, in the same order. trained: what
    ``classifier_scores`` gave. What cannot be measured (too few muons, events or groups) is left out.
    """
    groups = group_weights(real.group, REPLICAS)
    numbers = marginal_distances(real, generated) | multiplicities(real, generated, groups)
    if groups.shape[1] >= FEWEST_GROUPS:
        numbers |= binned_distances(real, generated, groups)
    numbers["anisotropy"] = anisotropy(generated)
    for name, verdict in trained.items():
        numbers |= {name: verdict.auc(), f"{name}_error": verdict.error()}
    return {name: float(value) for name, value in numbers.items() if np.isfinite(value)}


def classifier_scores(real: Sample, generated: Sample) -> dict[str, classify.ClassifierScores]:
    """Train all classifiers that have enough to learn from; none, with a warning, without scikit-learn.

    At the end of a campaign the other numbers are worth more than an error.
    """
    try:
        classify.sklearn("ensemble")
    except MissingExtra as missing:
        _LOG.warning("the AUCs are left out: %s, then evaluate again", missing)
        return {}
    scores = {name: classify.compare(real, generated, rows) for name, rows in CLASSIFIERS.items()}
    return {name: verdict for name, verdict in scores.items() if verdict is not None}


def wasserstein(first: Floats, second: Floats, weights: Iterable[tuple[Floats, Floats]]) -> Floats:
    """Return the first Wasserstein distance of two samples under each pair of weights.

    It is the area between the two cumulative distributions; the values are sorted once for all weights.
    """
    order, steps = _sorted(first, second)
    distances = []
    for one, two in weights:
        if not (one.any() and two.any()):
            distances.append(np.nan)  # a bootstrap sample without any event of this bin
            continue
        density = np.concatenate([one / one.sum(), -two / two.sum()])
        distances.append(_area(density[order], steps))
    return np.array(distances)


def _sorted(first: Floats, second: Floats) -> tuple[Index, Floats]:
    """Sort the values of both samples: their places, and the steps from each value to the next one."""
    values = np.concatenate([first, second])
    order = np.argsort(values)
    values = values[order]
    return order, np.diff(values)


def _area(density: Floats, steps: Floats) -> float:
    """Return the area between two cumulative distributions; overwrites ``density``."""
    gap = np.cumsum(density, out=density)[:-1]
    return float(np.abs(gap, out=gap) @ steps)


@dataclass(frozen=True, slots=True)
class Weighing:
    """The weights of the rows of one cell, of both samples, under each bootstrap sample.

    factors: [1 + R, G], of the groups. groups: the group of each row. weights: of each row; None: all alike.
    """

    factors: Floats
    groups: tuple[Index, Index]
    weights: tuple[Floats, Floats] | None

    def distances(self, first: Floats, second: Floats) -> Floats:
        """Return what ``wasserstein`` gives under factor times weight, to the last bit: [1 + R].

        Where all weigh alike, all rows of a group have one density. It is looked up in the order of the
        values, in a table that fits into a cache; sums of whole numbers are exact in any order.
        """
        if self.weights is not None:
            (one, two), (ours, theirs) = self.groups, self.weights
            return wasserstein(first, second, ((row[one] * ours, row[two] * theirs) for row in self.factors))
        order, steps = _sorted(first, second)
        index, totals = self._places(order)
        del order
        density = np.empty(len(index))
        distances = []
        for row, ours, theirs in zip(self.factors, *totals, strict=True):
            if not (ours and theirs):
                distances.append(np.nan)  # a bootstrap sample without any event of this bin
                continue
            table = np.concatenate([row / ours, -row / theirs])
            for low in range(0, len(index), _BLOCK):
                table.take(index[low : low + _BLOCK], out=density[low : low + _BLOCK], mode="clip")
            distances.append(_area(density, steps))
        return np.array(distances)

    def _places(self, order: Index) -> tuple[NDArray[np.int32], list[Floats]]:
        """Return each row's place in a table of both samples' groups, in ``order``, and sums of factors."""
        count = self.factors.shape[1]
        one, two = (rows.astype(np.int32) for rows in self.groups)
        totals = [self.factors @ np.bincount(rows, minlength=count) for rows in (one, two)]
        two += np.int32(count)
        return np.concatenate([one, two])[order], totals


def binned_distances(real: Sample, generated: Sample, factors: Floats) -> Numbers:
    """Average distances between muons of equal conditions over all bins of conditions.

    factors: [1 + R, G] of the groups; the first row gives the values, the others the errors.
    """
    distances: dict[str, list[Floats]] = {f"w1_{name}": [] for name in _OBSERVABLES}
    correlations, empty = [], 0
    theirs_of = dict(generated.muons_by(generated.joint_bins))
    for number, ours in real.muons_by(real.joint_bins):
        theirs = theirs_of.pop(number, _NONE)
        if len(ours) < FEWEST_MUONS:
            continue
        if len(theirs) < FEWEST_GENERATED:
            empty += 1
            continue
        weighing = _weighing(factors, real, (real.event[ours], generated.event[theirs]))
        observables, correlation = [], []
        for side, muons in ((real, ours), (generated, theirs)):
            observed = {name: values(side.muons[muons]) for name, values in _OBSERVABLES.items()}
            observables.append(observed)
            correlation.append(spearmanr(observed["log_energy"], observed["radius_m"]).statistic)
        for name in _OBSERVABLES:
            distances[f"w1_{name}"].append(weighing.distances(*(each[name] for each in observables)))
        correlations.append(float(correlation[0]) - float(correlation[1]))
    numbers = {"bins": float(len(correlations)), "bins_empty": float(empty)}
    if correlations:
        numbers["spearman_difference"] = float(np.mean(np.abs(correlations)))
        for name, rows in distances.items():
            numbers |= _with_error(name, np.mean(rows, axis=0))
    return numbers


def _weighing(factors: Floats, real: Sample, events: tuple[Index, Index]) -> Weighing:
    """Weigh rows of the given events; generated events have the groups and weights of the real ones."""
    ours, theirs = events
    weights = None if real.alike else (real.weights[ours], real.weights[theirs])
    return Weighing(factors, (real.group[ours], real.group[theirs]), weights)


def marginal_distances(real: Sample, generated: Sample) -> Numbers:
    """Return distances of all muons, and of those in each bin of each condition."""
    numbers: Numbers = {}
    everything: list[tuple[str, Cell, Cell]] = [("all", slice(None), slice(None))]
    numbers |= _distances_in(everything, real, generated)
    for axis in AXES:
        theirs = dict(generated.muons_by(generated.axis_bins(axis)))
        ours = real.muons_by(real.axis_bins(axis))
        cells = ((axis.label(number), muons, theirs.pop(number, _NONE)) for number, muons in ours)
        numbers |= _distances_in(cells, real, generated)
    return numbers


def _distances_in(cells: Iterable[tuple[str, Cell, Cell]], real: Sample, generated: Sample) -> Numbers:
    numbers = {}
    for label, ours, theirs in cells:
        events = real.event[ours], generated.event[theirs]
        if len(events[0]) < FEWEST_MUONS or len(events[1]) < FEWEST_GENERATED:
            continue
        one_group = np.zeros(len(events[0]), np.int64), np.zeros(len(events[1]), np.int64)
        weights = real.weights[events[0]], generated.weights[events[1]]
        alike = real.alike and generated.alike
        weighing = Weighing(np.ones((1, 1)), one_group, None if alike else weights)
        for name in ("log_energy", "radius_m"):
            values = _OBSERVABLES[name]
            first, second = values(real.muons[ours]), values(generated.muons[theirs])
            numbers[f"w1_{name}/{label}"] = float(weighing.distances(first, second)[0])
    return numbers


def multiplicities(real: Sample, generated: Sample, factors: Floats) -> Numbers:
    """Compare multiplicities at equal conditions: distance of log10(N + 1), share of empty events, mean.

    factors: [1 + R, G] of the groups, as in ``binned_distances``.
    """
    distances, empty, ratios = [], [], []
    for number in np.unique(real.joint_bins):
        in_bin = np.flatnonzero(real.joint_bins == number)
        if len(in_bin) < FEWEST_EVENTS:
            continue
        one, two = real.multiplicity[in_bin], generated.multiplicity[in_bin]
        weighing = _weighing(factors, real, (in_bin, in_bin))
        distances.append(
            weighing.distances(real.log_multiplicity[in_bin], generated.log_multiplicity[in_bin])
        )
        events = real.weights[in_bin]
        empty.append(abs(_mean(one == 0, events) - _mean(two == 0, events)))
        if one.sum() >= FEWEST_MUONS:
            ratios.append((two * events).sum() / (one * events).sum())
    numbers = {
        "empty_share_real": _mean(real.multiplicity == 0, real.weights),
        "empty_share_generated": _mean(generated.multiplicity == 0, real.weights),
        "multiplicity_largest_real": float(real.multiplicity.max()),
        "multiplicity_largest_generated": float(generated.multiplicity.max()),
    }
    if distances:
        numbers |= _with_error("w1_log_multiplicity", np.mean(distances, axis=0))
        numbers["empty_share_difference"] = float(np.mean(empty))
    if real.multiplicity.any():
        ours, theirs = (
            factors @ np.bincount(real.group, each.multiplicity * real.weights, factors.shape[1])
            for each in (real, generated)
        )
        ratio = np.divide(theirs, ours, out=np.full(len(ours), np.nan), where=ours > 0)
        numbers |= _with_error("multiplicity_ratio", ratio)
    if ratios:
        numbers |= {"multiplicity_ratio_lowest": min(ratios), "multiplicity_ratio_highest": max(ratios)}
    return numbers


def anisotropy(sample: Sample) -> float:
    """Return the largest mean of cos and sin of one and two times the azimuth; 0 for isotropic bundles."""
    if not len(sample.muons):
        return float("nan")
    weights, angle = sample.weights[sample.event], azimuth(sample.muons)
    waves = [_mean(wave(order * angle), weights) for order in (1, 2) for wave in (np.cos, np.sin)]
    return float(np.max(np.abs(waves)))


def _mean(values: NDArray[Any], weights: Floats) -> float:
    """Average with weights; nan where they are all zero."""
    total = weights.sum()
    return float((values * weights).sum() / total) if total else float("nan")


def _with_error(name: str, values: Floats) -> Numbers:
    """Name a value and its spread over replicas; ``values`` holds the value itself first."""
    measured = values[1:][np.isfinite(values[1:])]
    error = float(np.std(measured, ddof=1)) if len(measured) > 1 else float("nan")
    return {name: float(values[0]), f"{name}_error": error}
