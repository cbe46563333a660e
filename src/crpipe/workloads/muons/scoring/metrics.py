"""How far generated events are from real ones of the same conditions, as named numbers with errors.

Distances are 0 for a perfect model and infinite statistics; what re-simulation reaches is the floor.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import spearmanr

from crpipe.core.errors import MissingExtra
from crpipe.workloads.muons.scoring import classify
from crpipe.workloads.muons.scoring.declared import FEWEST_GENERATED, FEWEST_GROUPS, FEWEST_MUONS
from crpipe.workloads.muons.scoring.sample import AXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from crpipe.workloads.muons.scoring.sample import Sample

    Floats = NDArray[np.float64]
    Numbers = dict[str, float]

_LOG = logging.getLogger(__name__)
_SEED = 0  # equal predictions give equal numbers
REPLICAS = 20  # bootstrap samples: the error is itself good to 16 %
FEWEST_EVENTS = 100

CLASSIFIERS: dict[str, Callable[[Sample], classify.Table]] = {
    "auc_muon": classify.muon_rows,
    "auc_event": classify.bundle_rows,
    "auc_multiplicity": classify.multiplicity_rows,
    "auc_full": classify.full_rows,
}
# Values of each muon, and how they are named.
_OBSERVABLES: dict[str, Callable[[Sample], Floats]] = {
    "log_energy": lambda sample: sample.log_energy,
    "radius_m": lambda sample: sample.radius,
    "log_radius": lambda sample: sample.log_radius,
}


def compare(real: Sample, generated: Sample, trained: Mapping[str, classify.Verdict]) -> Numbers:
    """Measure everything; ``name`` with its error ``name_error`` (see docs/physics.md).

    Events of the two samples correspond: same conditions, in the same order. ``trained``: what ``verdicts``
    gave. What cannot be measured (too few muons, events or groups) is left out.
    """
    groups = group_weights(real.group)
    weights = groups[:, real.group] * real.weights
    numbers = marginal_distances(real, generated) | multiplicities(real, generated, weights)
    if groups.shape[1] >= FEWEST_GROUPS:
        numbers |= binned_distances(real, generated, weights)
    numbers["anisotropy"] = anisotropy(generated)
    for name, verdict in trained.items():
        numbers |= {name: verdict.auc(), f"{name}_error": verdict.error()}
    return {name: float(value) for name, value in numbers.items() if np.isfinite(value)}


def verdicts(real: Sample, generated: Sample) -> dict[str, classify.Verdict]:
    """Train all classifiers that have enough to learn from; none, with a warning, without scikit-learn.

    At the end of a campaign the other numbers are worth more than an error.
    """
    try:
        classify.sklearn("ensemble")
    except MissingExtra as missing:
        _LOG.warning("the AUCs are left out: %s, then evaluate again", missing)
        return {}
    found = {name: classify.compare(real, generated, rows) for name, rows in CLASSIFIERS.items()}
    return {name: verdict for name, verdict in found.items() if verdict is not None}


def group_weights(group: NDArray[np.int64]) -> Floats:
    """Give bootstrap weights of the groups: [1 + REPLICAS, G], the first row all ones.

    Weights from a Poisson distribution of mean 1 replace drawing with replacement, without copying or
    sorting anything again.
    """
    groups = int(group.max(initial=-1)) + 1
    drawn = np.random.default_rng(_SEED).poisson(1.0, (REPLICAS, groups)).astype(np.float64)
    return np.concatenate([np.ones((1, groups)), drawn])


def wasserstein(first: Floats, second: Floats, weights: Iterator[tuple[Floats, Floats]]) -> Floats:
    """Give the first Wasserstein distance of two samples under each pair of weights.

    It is the area between the two cumulative distributions; the values are sorted once for all weights.
    """
    values = np.concatenate([first, second])
    order = np.argsort(values)
    steps = np.diff(values[order])
    distances = []
    for one, two in weights:
        if not (one.any() and two.any()):
            distances.append(np.nan)  # a bootstrap sample without any event of this bin
            continue
        density = np.concatenate([one / one.sum(), -two / two.sum()])
        distances.append(np.abs(np.cumsum(density[order])[:-1]) @ steps)
    return np.array(distances)


def binned_distances(real: Sample, generated: Sample, weights: Floats) -> Numbers:
    """Average distances between muons of equal conditions over all bins of conditions.

    weights: [1 + R, N] of the events; the first row gives the values, the others the errors.
    """
    distances: dict[str, list[Floats]] = {f"w1_{name}": [] for name in _OBSERVABLES}
    correlations, empty = [], 0
    real_bins, generated_bins = real.joint_bins[real.event], generated.joint_bins[generated.event]
    for number in np.unique(real_bins):
        ours, theirs = np.equal(real_bins, number), np.equal(generated_bins, number)
        if np.count_nonzero(ours) < FEWEST_MUONS:
            continue
        if np.count_nonzero(theirs) < FEWEST_GENERATED:
            empty += 1
            continue
        for name, values in _OBSERVABLES.items():
            pairs = ((row[real.event[ours]], row[generated.event[theirs]]) for row in weights)
            distances[f"w1_{name}"].append(wasserstein(values(real)[ours], values(generated)[theirs], pairs))
        correlations.append(_correlation(real, ours) - _correlation(generated, theirs))
    numbers = {"bins": float(len(correlations)), "bins_empty": float(empty)}
    if correlations:
        numbers["spearman_difference"] = float(np.mean(np.abs(correlations)))
        for name, rows in distances.items():
            numbers |= _with_error(name, np.mean(rows, axis=0))
    return numbers


def marginal_distances(real: Sample, generated: Sample) -> Numbers:
    """Give distances of all muons, and of those in each bin of each condition."""
    numbers = {}
    cells = [("all", real.event >= 0, generated.event >= 0)]
    for axis in AXES:
        one, two = real.axis_bins(axis)[real.event], generated.axis_bins(axis)[generated.event]
        bins = range(len(axis.edges) + 1)
        cells += [(axis.label(number), one == number, two == number) for number in bins]
    for label, ours, theirs in cells:
        if np.count_nonzero(ours) < FEWEST_MUONS or np.count_nonzero(theirs) < FEWEST_GENERATED:
            continue
        for name in ("log_energy", "radius_m"):
            values = _OBSERVABLES[name]
            first, second = values(real)[ours], values(generated)[theirs]
            pair = real.weights[real.event[ours]], generated.weights[generated.event[theirs]]
            numbers[f"w1_{name}/{label}"] = float(wasserstein(first, second, iter([pair]))[0])
    return numbers


def multiplicities(real: Sample, generated: Sample, weights: Floats) -> Numbers:
    """Compare multiplicities at equal conditions: distance of log10(N + 1), share of empty events, mean."""
    distances, empty, ratios = [], [], []
    for number in np.unique(real.joint_bins):
        chosen = real.joint_bins == number
        if np.count_nonzero(chosen) < FEWEST_EVENTS:
            continue
        one, two = real.multiplicity[chosen], generated.multiplicity[chosen]
        pairs = ((row[chosen], row[chosen]) for row in weights)
        logs = real.log_multiplicity[chosen], generated.log_multiplicity[chosen]
        distances.append(wasserstein(*logs, pairs))
        events = real.weights[chosen]
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
        sums = [float((each.multiplicity * real.weights).sum()) for each in (generated, real)]
        numbers["multiplicity_ratio"] = sums[0] / sums[1] if sums[1] else float("nan")
    if ratios:
        numbers |= {"multiplicity_ratio_lowest": min(ratios), "multiplicity_ratio_highest": max(ratios)}
    return numbers


def anisotropy(sample: Sample) -> float:
    """Give the largest mean of cos and sin of one and two times the azimuth; 0 for isotropic bundles."""
    if not len(sample.azimuth):
        return float("nan")
    weights = sample.weights[sample.event]
    waves = [_mean(wave(order * sample.azimuth), weights) for order in (1, 2) for wave in (np.cos, np.sin)]
    return float(np.max(np.abs(waves)))


def _mean(values: NDArray[Any], weights: Floats) -> float:
    """Average with weights; nan where they are all zero."""
    total = weights.sum()
    return float((values * weights).sum() / total) if total else float("nan")


def _correlation(sample: Sample, muons: NDArray[np.bool_]) -> float:
    return float(spearmanr(sample.log_energy[muons], sample.radius[muons]).statistic)


def _with_error(name: str, values: Floats) -> Numbers:
    """Name a value and its spread over replicas; ``values`` holds the value itself first."""
    measured = values[1:][np.isfinite(values[1:])]
    error = float(np.std(measured, ddof=1)) if len(measured) > 1 else float("nan")
    return {name: float(values[0]), f"{name}_error": error}
