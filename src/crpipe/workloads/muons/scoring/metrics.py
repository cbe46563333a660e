"""How far generated events are from real ones of the same conditions, as statistics and tables in bins.

What a bundle looks like is judged with the true multiplicities, how many muons there are with those that the
generator drew.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from crpipe.statistics.distances import Values, frechet, kernel, separation, wasserstein
from crpipe.statistics.groups import of_events, sums_by_group
from crpipe.statistics.ratios import Bins, Side
from crpipe.workloads.muons.scoring.classify import FEWEST_MUONS
from crpipe.workloads.muons.scoring.sample import CORE_M, FEWEST_EVENTS, SUMMARIES, Sample, energy_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from crpipe.statistics.classifier import Judge
    from crpipe.train.workload import Measured

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]
    Pair = tuple[Sample, Sample]  # real, generated

_DECADES_GEV = 10.0 ** np.arange(3, 11)  # of the primary
_HALVES_GEV = 10.0 ** np.arange(0, 6.5, 0.5)  # half decades of the muon
_CLASSES = np.array([3, 10, 100, 1000])  # muons of a bundle: where a class begins
_CLASS_NAMES = ("3 to 9 muons", "10 to 99 muons", "100 to 999 muons", "1,000 muons or more")


def compare(real: Sample, generated: Sample, judged: Mapping[str, Judge]) -> dict[str, Measured]:
    """Measure how many muons there are, in events with their own multiplicities.

    Events of the two samples correspond, in this order. What cannot be measured is left out.
    """
    pair = real, generated
    measured: dict[str, Measured] = {name: judge.statistic for name, judge in judged.items()}
    if not real.multiplicity.any():
        return measured
    labels, decades = _primary_decades(pair)
    counts = [np.asarray(side.multiplicity, np.float64) for side in pair]
    measured["mean_multiplicity"] = _table("ratio", labels, pair, decades, counts)
    measured["no_muon"] = _table("difference", labels, pair, decades, [count == 0 for count in counts])
    measured["spectrum"] = _spectrum(pair, labels, decades)
    return measured


def compare_given(real: Sample, generated: Sample, judged: Mapping[str, Judge]) -> dict[str, Measured]:
    """Measure what bundles look like, in events generated with the true multiplicities."""
    pair = real, generated
    measured: dict[str, Measured] = {name: judge.statistic for name, judge in judged.items()}
    if not (real.multiplicity.any() and generated.multiplicity.any()):
        return measured
    classes = [np.searchsorted(_CLASSES, side.multiplicity, side="right") - 1 for side in pair]
    columns = [dict(zip(SUMMARIES, side.summaries.T, strict=True)) for side in pair]
    for name, column in (("leading", "log_leading"), ("correlation", "correlation")):
        measured[name] = _table("difference", _CLASS_NAMES, pair, classes, [each[column] for each in columns])
    for name, column in (("spread_energy", "mean_log_energy"), ("spread_radius", "mean_log_radius")):
        squares = [_squares(each[column], own) for each, own in zip(columns, classes, strict=True)]
        measured[name] = _table("ratio", _CLASS_NAMES, pair, classes, squares)
    labels, decades = _primary_decades(pair)
    inside = [side.count_within(CORE_M) for side in pair]
    measured["core"] = _table(
        "ratio", labels, pair, decades, inside, [np.asarray(side.multiplicity, np.float64) for side in pair]
    )
    return measured | _distances(pair, decades)


def _distances(pair: Pair, cells: list[Index]) -> dict[str, Measured]:
    real, generated = pair
    measured: dict[str, Measured] = {}
    for name in ("log_energy", "log_radius"):
        ours, theirs = (
            Values(*side.values(name), side.weights, cell) for side, cell in zip(pair, cells, strict=True)
        )
        measured[f"w1_{name}"] = wasserstein(ours, theirs, real.group)
    both = np.flatnonzero(np.minimum(real.multiplicity, generated.multiplicity) >= FEWEST_MUONS)
    if len(both) < FEWEST_EVENTS:
        return measured
    features = real.summaries[both], generated.summaries[both]
    known = real.group[both], real.weights[both]
    measured["fpd"] = of_events(frechet(*features, *known), both)
    measured["kpd"] = of_events(kernel(*features, *known), both)
    for number, name in enumerate(SUMMARIES):
        columns = features[0][:, number], features[1][:, number]
        measured[f"separation/{name}"] = of_events(separation(*columns, *known), both)
    return measured


def _primary_decades(pair: Pair) -> tuple[tuple[str, ...], list[Index]]:
    """Number the decade of the primary energy of each event, [N] for both samples; name the decades."""
    bins = [
        np.clip(np.searchsorted(_DECADES_GEV, side.columns["energy_gev"], side="right"), 0, len(_DECADES_GEV))
        for side in pair
    ]
    names = [energy_text(edge) for edge in _DECADES_GEV]
    inner = [f"E0 {low} to {high}" for low, high in pairwise(names)]
    return (f"E0 below {names[0]}", *inner, f"E0 above {names[-1]}"), bins


def _table(
    kind: Literal["ratio", "difference"],
    labels: tuple[str, ...],
    pair: Pair,
    bins: list[Index],
    values: list[Floats],
    under: list[Floats] | None = None,
) -> Bins:
    """Average one value of each event in bins; under: what it is averaged over, [N], in place of events."""
    groups, sides = int(pair[0].group.max()) + 1, []
    for number, (side, index) in enumerate(zip(pair, bins, strict=True)):
        over = side.weights * values[number]
        below = side.weights if under is None else side.weights * under[number]
        sums = (sums_by_group(pair[0].group, groups, index, len(labels), each) for each in (over, below))
        sides.append(Side(*sums))
    real, generated = sides
    return Bins(labels, real, generated, kind)


def _spectrum(pair: Pair, labels: tuple[str, ...], decades: list[Index]) -> Bins:
    """Count muons per event in half decades of their energy, for each decade of the primary energy."""
    groups, sides = int(pair[0].group.max()) + 1, []
    halves = len(_HALVES_GEV) - 1
    for side, decade in zip(pair, decades, strict=True):
        over = np.zeros((groups, len(labels) * halves))
        for first, part in side.blocks():
            half = np.searchsorted(_HALVES_GEV, part.muons[:, 0], side="right") - 1
            event = part.event + first
            cell = np.where((half >= 0) & (half < halves), decade[event] * halves + half, -1)
            weights = side.weights[event]
            over += sums_by_group(pair[0].group[event], groups, cell, over.shape[1], weights)
        under = sums_by_group(pair[0].group, groups, decade, len(labels), side.weights)
        sides.append(Side(over, np.repeat(under, halves, axis=1)))
    ends = [energy_text(edge) for edge in _HALVES_GEV]
    names = [f"{low} to {high}" for low, high in pairwise(ends)]
    real, generated = sides
    return Bins(tuple(f"muons of {name}, {label}" for label in labels for name in names), real, generated)


def _squares(values: Floats, classes: Index) -> Floats:
    """Return the squares of values about the mean of their class, [N]: their mean is the variance."""
    result = np.zeros(len(values))
    for each in range(len(_CLASSES)):
        inside = classes == each
        count = np.count_nonzero(inside)
        if count > 1:
            result[inside] = (values[inside] - values[inside].mean()) ** 2 * count / (count - 1)
    return result
