"""Numbers of many events in bins of something else that is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
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
    chosen = [number == each for each in range(len(cuts) + 1) if np.count_nonzero(number == each) >= fewest]
    rows = [(np.median(where[mine]), *measure(mine)) for mine in chosen]
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
