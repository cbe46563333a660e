"""Counts of muons and events in bins, with errors that respect that muons of one event come together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]


@dataclass(frozen=True)
class BinnedValues:
    """Bins of one observable: edges [B + 1], value and error [B]."""

    edges: Floats
    value: Floats
    error: Floats

    @property
    def centre(self) -> Floats:
        """Middle of each bin; the geometric one, for all bins here grow by a factor."""
        return np.asarray(np.sqrt(self.edges[1:] * self.edges[:-1]))

    def over(self, other: BinnedValues) -> tuple[Floats, Floats]:
        """Ratio to another histogram and its error, for independent errors; nan where either is empty."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((self.value > 0) & (other.value > 0), self.value / other.value, np.nan)
            error = ratio * np.hypot(self.error / self.value, other.error / other.value)
        return ratio, error


def per_event(
    values: Floats, event: Index, edges: Floats, chosen: NDArray[np.bool_], weights: Floats
) -> BinnedValues:
    """Count muons in bins, per event; weights: [N], of all events; chosen: [N], those that count.

    The error is that of a sum over events: one event's muons in one bin are one random number, not many.
    """
    bins = np.searchsorted(edges, values, side="right") - 1
    inside = (bins >= 0) & (bins < len(edges) - 1)
    cells, counts = np.unique(event[inside] * (len(edges) - 1) + bins[inside], return_counts=True)
    column = cells % (len(edges) - 1)
    weighed = counts * weights[cells // (len(edges) - 1)]
    events = float(weights[chosen].sum()) or 1.0
    total = np.bincount(column, weighed, minlength=len(edges) - 1)
    squares = np.bincount(column, weighed**2, minlength=len(edges) - 1)
    return BinnedValues(edges, total / events, np.sqrt(squares) / events)


def mean_in_bins(values: Floats, where: Floats, edges: Floats, weights: Floats) -> BinnedValues:
    """Average one value per event in bins of a condition; nan for fewer than two events.

    The error is that of the effective number of events, (sum of weights)² / sum of squared weights.
    """
    bins = np.searchsorted(edges, where, side="right") - 1
    inside = (bins >= 0) & (bins < len(edges) - 1)
    bins, values, weights = bins[inside], values[inside], weights[inside]
    events = np.bincount(bins, minlength=len(edges) - 1)
    counts, sums, squares = (
        np.bincount(bins, weights * values**power, minlength=len(edges) - 1) for power in (0, 1, 2)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(events > 1, sums / counts, np.nan)
        effective = counts**2 / np.bincount(bins, weights**2, minlength=len(edges) - 1)
        variance = np.maximum(squares / counts - mean**2, 0.0) / (effective - 1)
    return BinnedValues(edges, mean, np.sqrt(variance))


def quantiles_in_bins(values: Floats, where: Floats, edges: Floats, shares: tuple[float, ...]) -> Floats:
    """Quantiles of values in bins of another one: [len(shares), B]; nan for fewer than 20."""
    bins = np.searchsorted(edges, where, side="right") - 1
    table = np.full((len(shares), len(edges) - 1), np.nan)
    for number in range(len(edges) - 1):
        mine = values[bins == number]
        if len(mine) >= 20:  # noqa: PLR2004 - a 16 % quantile of fewer is a coin's toss
            table[:, number] = np.quantile(mine, shares)
    return table
