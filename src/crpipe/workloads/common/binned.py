"""Numbers of many events in bins of something else that is known of them, and counts in bins, with errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]
    Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Profile:
    """A statistic in bins, [B] each.

    where: median of what the bins are of; value: the statistic; error: its error.
    """

    where: Floats
    value: Floats
    error: Floats


def profile(
    where: Floats, cuts: Floats, fewest: int, measure: Callable[[Mask], tuple[float, float]]
) -> Profile:
    """Return what ``measure`` gives for the events of each bin: a value and its error."""
    return Profile(*rows_in_bins(where, cuts, fewest, measure, 2))


def rows_in_bins(
    where: Floats, cuts: Floats, fewest: int, measure: Callable[[Mask], Iterable[float]], numbers: int
) -> Floats:
    """Return the median of ``where`` and ``numbers`` that are measured, for each bin: [1 + numbers, B].

    cuts: between the bins. Bins of fewer than ``fewest`` events are left out, so there may be none.
    """
    number = np.searchsorted(cuts, where, side="right")
    masks = [number == each for each in range(len(cuts) + 1) if np.count_nonzero(number == each) >= fewest]
    rows = [(np.median(where[mine]), *measure(mine)) for mine in masks]
    return np.array(rows, np.float64).reshape(-1, 1 + numbers).T


def even_cuts(values: Floats, fewest: int, most_bins: int) -> Floats:
    """Cut values into bins with equally many each, of ``fewest`` or more; equal values stay together."""
    bins = int(np.clip(len(values) // fewest, 1, most_bins))
    shares = np.linspace(0, 1, bins + 1)[1:-1] if len(values) else np.zeros(0)
    return np.unique(np.quantile(values, shares)) if len(shares) else shares


def wide_cuts(values: Floats, fewest: int, bins: int, *, logarithmic: bool) -> Floats:
    """Cut the range of values into bins of equal width, and join those of fewer than ``fewest`` events."""
    low, high = values.min(), np.nextafter(values.max(), np.inf)
    equal = (np.geomspace if logarithmic else np.linspace)(low, high, bins + 1)
    kept = [low]
    for edge in equal[1:-1]:
        rest = np.count_nonzero(values >= edge)
        if rest >= fewest and np.count_nonzero(values >= kept[-1]) - rest >= fewest:
            kept.append(edge)
    return np.array(kept[1:])


def quantiles_in_bins(
    values: Floats, where: Floats, edges: Floats, shares: tuple[float, ...], fewest: int
) -> Floats:
    """Return quantiles of values in bins of another one: [len(shares), B]; nan for fewer than ``fewest``."""
    bins = np.searchsorted(edges, where, side="right").astype(np.uint8)  # 0: below all edges
    order, ends = np.argsort(bins, kind="stable"), np.cumsum(np.bincount(bins, minlength=len(edges)))
    table = np.full((len(shares), len(edges) - 1), np.nan)
    for number in range(len(edges) - 1):
        mine = values[order[ends[number] : ends[number + 1]]]
        if len(mine) >= fewest:
            table[:, number] = np.quantile(mine, shares)
    return table


# Counts of items and events in bins, with errors that respect that the items of one event come together.

_BLOCK = 1 << 20  # values counted at once


@dataclass(frozen=True)
class GroupShares:
    """What each group adds to each bin; cells: group * number of bins + bin, sorted."""

    cells: Index
    values: Floats


@dataclass(frozen=True)
class BinnedValues:
    """Bins of one observable: edges [B + 1], value and error [B].

    parts: of the groups; with those of another histogram of the same groups, errors of differences are known.
    """

    edges: Floats
    value: Floats
    error: Floats
    parts: GroupShares | None = None

    @property
    def centre(self) -> Floats:
        """Middle of each bin; the geometric one, for all bins here grow by a factor."""
        return np.asarray(np.sqrt(self.edges[1:] * self.edges[:-1]))

    def times(self, factor: Floats) -> BinnedValues:
        """Multiply each bin by a number: [B]."""
        parts = self.parts
        if parts is not None:
            parts = GroupShares(parts.cells, parts.values * factor[parts.cells % len(self.value)])
        return BinnedValues(self.edges, self.value * factor, self.error * factor, parts)

    def spread_from(self, other: BinnedValues, factor: Floats) -> Floats:
        """Return the error of this minus ``factor`` [B] times the other one: [B].

        Where both know their parts, what a group adds to both is one random number.
        """
        if self.parts is None or other.parts is None:
            return np.asarray(np.hypot(self.error, factor * other.error))
        bins = len(self.value)
        cells = np.union1d(self.parts.cells, other.parts.cells)
        off = np.zeros(len(cells))
        off[np.searchsorted(cells, self.parts.cells)] = self.parts.values
        theirs = other.parts.values * np.nan_to_num(factor)[other.parts.cells % bins]
        off[np.searchsorted(cells, other.parts.cells)] -= theirs
        return np.asarray(np.sqrt(np.bincount(cells % bins, off**2, minlength=bins)))

    def over(self, other: BinnedValues) -> tuple[Floats, Floats]:
        """Ratio to another histogram and its error; nan where either is empty."""
        with np.errstate(divide="ignore", invalid="ignore"):
            filled = (self.value > 0) & (other.value > 0)
            ratio = np.where(filled, self.value / other.value, np.nan)
            error = np.where(filled, self.spread_from(other, ratio) / other.value, np.nan)
        return ratio, error

    def chi_square(self, other: BinnedValues) -> tuple[float, int]:
        """Return χ² of the difference to another histogram, and the number of bins that count."""
        spread = self.spread_from(other, np.ones(len(self.value)))
        valid = (spread > 0) & (self.value > 0) & (other.value > 0)
        off = (self.value - other.value)[valid] / spread[valid]
        return float(np.sum(off**2)), int(np.count_nonzero(valid))

    def shift_from(self, other: BinnedValues) -> tuple[float, float]:
        """Return the share by which this is above the other in all bins, and its error; nan without bins."""
        spread = self.spread_from(other, np.ones(len(self.value)))
        valid = (spread > 0) & (self.value > 0) & (other.value > 0)
        weight = (other.value[valid] / spread[valid]) ** 2
        if not weight.size:
            return float("nan"), float("nan")
        off = self.value[valid] / other.value[valid] - 1
        return float(np.sum(weight * off) / weight.sum()), float(1 / np.sqrt(weight.sum()))


def per_event(
    values: Floats, event: Index, edges: Floats, selected: Mask, weights: Floats, group: Index
) -> BinnedValues:
    """Count items in bins, per event; weights: [N], of all events; selected: [N], those that count.

    The error is that of a sum over groups, [N]: the items of one group (of one primary) in one bin are one
    random number, not many.
    """
    bins = len(edges) - 1
    sums = np.zeros((int(group.max(initial=-1)) + 1) * bins)
    for low in range(0, len(values), _BLOCK):
        # A table of all cells: to sort the items by cell would take much longer.
        index = np.searchsorted(edges, values[low : low + _BLOCK], side="right") - 1
        inside = (index >= 0) & (index < bins)
        mine = event[low : low + _BLOCK][inside]
        np.add.at(sums, group[mine] * bins + index[inside], weights[mine])
    cells = np.flatnonzero(sums)
    parts = GroupShares(cells, sums[cells] / (float(weights[selected].sum()) or 1.0))
    return BinnedValues(edges, *_summed(parts, bins), parts)


def _summed(parts: GroupShares, bins: int) -> tuple[Floats, Floats]:
    """Add up parts: values and errors, [B] each."""
    column = parts.cells % bins
    total = np.bincount(column, parts.values, minlength=bins).astype(np.float64)
    return total, np.sqrt(np.bincount(column, parts.values**2, minlength=bins))


def mean_in_bins(values: Floats, where: Floats, edges: Floats, weights: Floats, group: Index) -> BinnedValues:
    """Average one value per event in bins of a condition; nan for fewer than two groups of events.

    The error is that of a mean over groups: G / (G - 1) times the sum over groups of (the sum of weight times
    (value - mean))², over (the sum of weights)².
    """
    size = len(edges) - 1
    bins = np.searchsorted(edges, where, side="right") - 1
    inside = (bins >= 0) & (bins < size)
    bins, values, weights = bins[inside], values[inside], weights[inside]
    cells, cell_of = np.unique(group[inside] * size + bins, return_inverse=True)
    groups = np.bincount(cells % size, minlength=size)
    counts, sums = (np.bincount(bins, each, minlength=size) for each in (weights, weights * values))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(groups > 1, sums / counts, np.nan)
        off = np.bincount(cell_of, weights * (values - mean[bins]), minlength=len(cells))
        parts = GroupShares(cells, off * (np.sqrt(groups / (groups - 1)) / counts)[cells % size])
    return BinnedValues(edges, mean, _summed(parts, size)[1], parts)
