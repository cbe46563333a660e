"""Distances between two samples, extrapolated to any number of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array, csr_array

from crpipe.statistics.groups import Statistic, folds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]

FEWEST = 10  # events of a cell
_LOOKED_AT = 1_000_000  # values of a sample from which the grid is made
_AT_ONCE = 1 << 20
_GRID = 200  # values between which a distribution is interpolated
_BLOCK = 500  # events among which a kernel is computed
_BLOCKS = 20  # at most


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one sample: [M], with the event of each, in order; weight and cell of each event, [N]."""

    values: NDArray[Any]
    event: NDArray[Any]
    weight: Floats
    cell: Index


def wasserstein(real: Values, generated: Values, group: Index) -> Statistic:
    """Return the first Wasserstein distance of two samples at equal conditions, averaged over conditions.

    group: of each event, [N]. Distances are taken among events of one cell, from 0; a cell needs FEWEST
    events with values on both sides of both halves. Less what falls with 1 / N, the distance is still not
    below the true one on average: two equal samples are some distance apart.
    """
    pair = real, generated
    some = [side.values[:: 1 + len(side.values) // _LOOKED_AT] for side in pair]
    grid = np.unique(np.quantile(np.concatenate(some), np.linspace(0, 1, _GRID)))
    cells, width = max(int(side.cell.max(initial=0)) for side in pair) + 1, len(grid)
    counts = [_counts(side, cells, grid) for side in pair]
    steps, half = np.diff(grid), folds(group, 2, 1)
    filled = [np.bincount(side.event, minlength=len(group)) > 0 for side in pair]
    events = [
        np.bincount(side.cell[full & (half == number)], minlength=cells)
        for side, full in zip(pair, filled, strict=True)
        for number in (0, 1)
    ]
    enough = np.min(events, axis=0) >= FEWEST

    def distance(weights: Floats) -> float:
        sides = [(weights @ each).reshape(cells, width) for each in counts]
        totals = [side.sum(axis=1) for side in sides]
        used = enough & (totals[0] > 0) & (totals[1] > 0)
        if not used.any():
            return float("nan")
        first, second = (side[used] / total[used, None] for side, total in zip(sides, totals, strict=True))
        gap = np.abs(np.cumsum(first - second, axis=1))
        return float(np.mean((gap[:, :-1] + gap[:, 1:]) @ steps / 2)) if width > 1 else 0.0

    return halved(distance, group)


def _counts(side: Values, cells: int, grid: Floats) -> csr_array:
    """Count values between the points of the grid, by cell, for each event: [N, cells * grid]."""
    table = csr_array((len(side.cell), cells * len(grid)))
    for low in range(0, len(side.values), _AT_ONCE):
        index = np.searchsorted(grid, side.values[low : low + _AT_ONCE], side="left")
        event = side.event[low : low + _AT_ONCE]
        column = side.cell[event] * len(grid) + np.minimum(index, len(grid) - 1)
        table = table + coo_array((side.weight[event], (event, column)), shape=table.shape).tocsr()
    return table


def halved(distance: Statistic, group: Index) -> Statistic:
    """Remove what falls with 1 / N from a distance: two times it, less its mean over two halves.

    group: [N]; the halves are made of whole groups.
    """
    first = 2.0 * (folds(group, 2, 1) == 0)

    def extrapolated(weights: Floats) -> float:
        halves = [distance(weights * each) for each in (first, 2.0 - first)]
        return 2 * distance(weights) - float(np.mean(halves))

    return extrapolated


def frechet(real: Floats, generated: Floats, group: Index, weight: Floats) -> Statistic:
    """Return the Fréchet distance of two samples of features, [N, F] each; group, weight: of each event, [N].

    The squared distance of the means plus tr(A + B - 2 (A B)^(1/2)) of the covariances, of features divided
    by the largest real one (Kansal et al. 2211.10295), extrapolated to any number of events.
    """
    scale = np.maximum(np.abs(real).max(axis=0, initial=0.0), 1e-12)
    count = real.shape[1]
    upper = np.triu_indices(count)
    order = np.argsort(group, kind="stable")
    _, starts = np.unique(group[order], return_index=True)
    first = order[starts]  # an event of each group: all of them count alike
    sums = []
    for side in (real / scale, generated / scale):
        moments = np.concatenate(
            [np.ones((len(side), 1)), side, side[:, upper[0]] * side[:, upper[1]]], axis=1
        )
        sums.append(np.add.reduceat((moments * weight[:, None])[order], starts, axis=0))

    def distance(weights: Floats) -> float:
        means, covariances = [], []
        for side in sums:
            total = weights[first] @ side
            if total[0] < 2:  # noqa: PLR2004 - one event has no covariance
                return float("nan")
            mean = total[1 : count + 1] / total[0]
            square = np.empty((count, count))
            square[upper] = total[count + 1 :] / total[0]
            square.T[upper] = square[upper]
            means.append(mean)
            covariances.append((square - np.outer(mean, mean)) * total[0] / (total[0] - 1))
        return frechet_of(*means, *covariances)

    return halved(distance, group)


def frechet_of(one: Floats, two: Floats, first: Floats, second: Floats) -> float:
    """Return the Fréchet distance of two Gaussians: means one, two [F], covariances first, second [F, F]."""
    values, vectors = np.linalg.eigh(first)
    root = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    inner = np.linalg.eigvalsh(root @ second @ root)
    cross = float(np.sqrt(np.maximum(inner, 0.0)).sum())
    return float(np.sum((one - two) ** 2) + np.trace(first) + np.trace(second) - 2 * cross)


def kernel(real: Floats, generated: Floats, group: Index, weight: Floats) -> Statistic:
    """Return the kernel distance of two samples of features, [N, F] each; group, weight: of each event, [N].

    The squared maximum mean discrepancy, without bias, of the kernel (x.y / F + 1)^4 of features divided by
    the largest real one (Kansal et al. 2211.10295); the mean over blocks of events, of pairs of two groups.
    """
    scale = np.maximum(np.abs(real).max(axis=0, initial=0.0), 1e-12)
    blocks = np.array_split(np.random.default_rng(0).permutation(len(real)), max(1, len(real) // _BLOCK))
    kernels = []
    for block in blocks[:_BLOCKS]:
        ours, theirs = real[block] / scale, generated[block] / scale
        parts = [
            (left @ right.T / ours.shape[1] + 1) ** 4
            for left, right in ((ours, ours), (theirs, theirs), (ours, theirs))
        ]
        apart = group[block][:, None] != group[block]
        table = (parts[0] + parts[1] - parts[2] - parts[2].T) * apart
        kernels.append((block, table, apart.astype(np.float64)))

    def distance(weights: Floats) -> float:
        total = pairs = 0.0
        for block, table, apart in kernels:
            each = weights[block] * weight[block]
            total += float(each @ table @ each)
            pairs += float(each @ apart @ each)
        return total / pairs if pairs > 0 else float("nan")

    return distance


def separation(real: Floats, generated: Floats, group: Index, weight: Floats, bins: int = 40) -> Statistic:
    """Return the separation power of two samples of one feature: 0 equal, 1 apart; all [N].

    Half the sum of (p - q)² / (p + q) over bins with equally many real events, extrapolated to any number of
    events (2410.21611).
    """
    edges = np.unique(np.quantile(real, np.linspace(0, 1, bins + 1)[1:-1]))
    ours, theirs = (np.searchsorted(edges, side, side="right") for side in (real, generated))

    def distance(weights: Floats) -> float:
        each = weights * weight
        sides = [np.bincount(side, each, minlength=len(edges) + 1) for side in (ours, theirs)]
        if not each.sum() > 0:
            return float("nan")
        first, second = (side / side.sum() for side in sides)
        total = first + second
        return float(np.sum((first - second)[total > 0] ** 2 / total[total > 0]) / 2)

    return halved(distance, group)
