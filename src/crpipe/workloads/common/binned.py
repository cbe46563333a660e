"""Numbers of many events in bins of something else that is known of them, and counts in bins, with errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crpipe.statistics.groups import sums_by_group
from crpipe.statistics.ratios import Bins, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]
    Mask = NDArray[np.bool_]


class Profile(NamedTuple):
    """A statistic in bins, [B] each.

    where: median of what the bins are of; value: the statistic; error: its error.
    """

    where: Floats
    value: Floats
    error: Floats


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
class BinnedValues:
    """Bins of one observable: edges [B + 1], and what each group of events adds to them."""

    edges: Floats
    side: Side

    @cached_property
    def value(self) -> Floats:
        """The mean in each bin, [B]; nan where nothing is averaged over."""
        return self.side.mean

    @cached_property
    def error(self) -> Floats:
        """The error of each mean, [B]: that of a mean over groups; nan for fewer than two of them."""
        groups = np.count_nonzero(self.side.under, axis=0)
        off = np.sqrt(np.sum(self.side.deviations(np.nan_to_num(self.value)) ** 2, axis=0))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(groups > 1, off * np.sqrt(groups / (groups - 1)), np.nan)

    @property
    def centre(self) -> Floats:
        """Middle of each bin; the geometric one, for all bins here grow by a factor."""
        return np.asarray(np.sqrt(self.edges[1:] * self.edges[:-1]))

    def times(self, factor: Floats) -> BinnedValues:
        """Multiply each bin by a number: [B]."""
        return BinnedValues(self.edges, Side(self.side.over * factor, self.side.under))

    def over(self, other: BinnedValues) -> Bins:
        """Compare with another histogram of the same groups: ratios to it."""
        return Bins(tuple(map(str, self.centre)), other.side, self.side)


def per_event(
    values: Floats, event: Index, edges: Floats, selected: Mask, weights: Floats, group: Index
) -> BinnedValues:
    """Count items in bins, per event; weights: [N], of all events; selected: [N], those that count.

    The items of one group, [N], (of one primary) in one bin are one random number, not many.
    """
    bins, groups = len(edges) - 1, int(group.max(initial=-1)) + 1
    over = np.zeros((groups, bins))
    for low in range(0, len(values), _BLOCK):
        index = np.searchsorted(edges, values[low : low + _BLOCK], side="right") - 1
        mine = event[low : low + _BLOCK]
        over += sums_by_group(group[mine], groups, index, bins, weights[mine])
    events = np.bincount(group[selected], weights[selected], minlength=groups)
    return BinnedValues(edges, Side(over, np.repeat(events[:, None], bins, axis=1)))


def mean_in_bins(
    values: Floats, where: Floats, edges: Floats, weights: Floats, group: Index, groups: int
) -> BinnedValues:
    """Average one value per event in bins of a condition; weights, group: [N]; groups: of all events."""
    bins = len(edges) - 1
    index = np.searchsorted(edges, where, side="right") - 1
    sums = (sums_by_group(group, groups, index, bins, each) for each in (weights * values, weights))
    return BinnedValues(edges, Side(*sums))
