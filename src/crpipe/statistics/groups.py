"""Events come in groups (rows of one cause): errors are those of a sum over groups, not over events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The value of a number when event i of N counts weights[i] times: [N] -> float. It is called with ones, and
# with the weights of bootstrap samples; nan where it is not defined.
Statistic = Callable[["NDArray[np.float64]"], float]

REPLICAS = 200  # bootstrap samples: an error is itself known to 5 %
_SEED = 0  # equal predictions give equal numbers


def group_numbers(columns: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Number the different rows of the columns, [N] each, in ascending order: [N]."""
    order = np.lexsort(list(columns)[::-1])
    starts = np.zeros(len(order), np.int64)
    for column in columns:
        ordered = column[order]
        starts[1:] |= ordered[1:] != ordered[:-1]
    group = np.empty_like(starts)
    group[order] = np.cumsum(starts)
    return group


def effective_groups(group: NDArray[np.int64], weight: NDArray[Any] | None = None) -> float:
    """Count the groups of one weight that know as much: (sum w)² / sum w² (Kish 1965).

    group: of each event, [N] from 0. weight: of each event, [N]; None: all groups count.
    """
    if weight is None or not np.any(weight):
        return float(group.max(initial=-1) + 1)
    sums = np.bincount(group, np.asarray(weight / np.max(weight), np.float64))
    return float(sums.sum() ** 2 / np.sum(sums**2))


def bootstrap_weights(groups: int, replicas: int = REPLICAS) -> NDArray[np.float64]:
    """Draw how often each group counts in each bootstrap sample: [1 + replicas, groups], the first row ones.

    Weights from a Poisson distribution of mean 1 replace drawing with replacement, without copying or
    sorting anything again.
    """
    drawn = np.random.default_rng(_SEED).poisson(1.0, (replicas, groups)).astype(np.float64)
    return np.concatenate([np.ones((1, groups)), drawn])


def bootstrapped(
    statistics: Mapping[str, Statistic], group: NDArray[np.int64], replicas: int = REPLICAS
) -> dict[str, NDArray[np.float64]]:
    """Return each statistic of the sample itself and of bootstrap samples of its groups: [1 + replicas] each.

    group: the group of each event, [N], from 0. Equal calls draw equal samples: what two methods reach on the
    same events can be subtracted replica by replica.
    """
    values: dict[str, list[float]] = {name: [] for name in statistics}
    for row in bootstrap_weights(int(group.max(initial=-1)) + 1, replicas):
        weights = row[group]
        for name, statistic in statistics.items():
            values[name].append(float(statistic(weights)))
    return {name: np.array(each) for name, each in values.items()}


def error_of(replicas: NDArray[np.float64], groups: float) -> float:
    """Return the error of a number from what ``bootstrapped`` returned; nan without two finite replicas.

    groups: of weighted events, as many of one weight as know as much.
    """
    drawn = replicas[1:][np.isfinite(replicas[1:])]
    if len(drawn) < 2 or groups < 2:  # noqa: PLR2004 - one value has no spread
        return float("nan")
    # A sample of G groups scatters less about itself than about the truth.
    return float(np.std(drawn, ddof=1) * np.sqrt(groups / (groups - 1)))


def value_and_error(statistic: Statistic, group: NDArray[np.int64]) -> tuple[float, float]:
    """Return a statistic of events of the given groups, [N] from 0, and its error."""
    replicas = bootstrapped({"": statistic}, group)[""]
    return float(replicas[0]), error_of(replicas, int(group.max(initial=-1)) + 1)


def folds(group: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Deal the groups out to ``count`` folds, equally many each, by chance: the fold of each event, [N]."""
    names, index = np.unique(group, return_inverse=True)
    dealt = np.arange(len(names)) % count
    return np.random.default_rng([_SEED, seed]).permutation(dealt)[index]


def halves(group: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Divide events into two samples that share no group: places [M], places [M], and which pair it is [M].

    group: of each event, [N]. Groups are paired by their size, and the events that one has more are left out:
    event i of the one and of the other sample belong to one pair.
    """
    sizes = np.bincount(group)
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(sizes[order], kind="stable")]
    pairs = rng.permuted(order[: len(order) // 2 * 2].reshape(-1, 2), axis=1)
    counts: NDArray[np.int64] = np.minimum(sizes[pairs[:, 0]], sizes[pairs[:, 1]])
    by_group = np.argsort(group, kind="stable")
    starts = np.cumsum(sizes) - sizes
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first, second = (by_group[np.repeat(starts[side], counts) + inside] for side in pairs.T)
    return first, second, np.repeat(np.arange(len(pairs)), counts)


def sums_by_group(
    group: NDArray[np.int64], groups: int, bins: NDArray[np.int64], count: int, values: NDArray[Any]
) -> NDArray[np.float64]:
    """Add up values in bins, group by group: [groups, count].

    group, bins, values: of each of M items; a bin below 0 or from ``count`` on is left out.
    """
    inside = (bins >= 0) & (bins < count)
    cells = group[inside] * count + bins[inside]
    weights = np.asarray(np.broadcast_to(values, bins.shape))
    sums = np.bincount(cells, weights[inside], minlength=groups * count)
    return sums.astype(np.float64).reshape(groups, count)


# Statistics of one value per event.


def mean(values: NDArray[Any], weight: NDArray[Any] | None = None) -> Statistic:
    """Average values, [N]; weight: of each event, [N], on top of how often it counts."""
    return ratio(
        values if weight is None else values * weight, np.ones(len(values)) if weight is None else weight
    )


def ratio(over: NDArray[Any], under: NDArray[Any]) -> Statistic:
    """Divide two sums over events, [N] each; nan where the second is 0."""
    top, bottom = np.asarray(over, np.float64), np.asarray(under, np.float64)

    def divided(weights: NDArray[np.float64]) -> float:
        total = float(weights @ bottom)
        return float(weights @ top) / total if total else float("nan")

    return divided


def quantile(values: NDArray[Any], share: float) -> Statistic:
    """Take the value below which a share of the events is; linear between neighbours, as numpy's: [N].

    It is nan where any value is.
    """
    order = np.argsort(values, kind="stable")
    ordered = np.asarray(values, np.float64)[order]
    if len(ordered) and np.isnan(ordered[-1]):
        return lambda _: float("nan")

    def taken(weights: NDArray[np.float64]) -> float:
        counts = weights[order]
        ends = np.cumsum(counts)
        total = ends[-1] if len(ends) else 0.0
        if total <= 0:
            return float("nan")
        # The events at places floor and floor + 1 of the sample in which each is repeated.
        rank = share * (total - 1)
        low = int(np.searchsorted(ends, np.floor(rank), side="right"))
        high = int(np.searchsorted(ends, np.floor(rank) + 1, side="right"))
        last = len(ordered) - 1
        below, above = ordered[min(low, last)], ordered[min(high, last)]
        return float(below + (above - below) * (rank - np.floor(rank)))

    return taken


def derived(formula: Callable[..., float], *parts: Statistic) -> Statistic:
    """Apply a formula to other statistics."""
    return lambda weights: formula(*(part(weights) for part in parts))


def vector_mean_length(vectors: NDArray[np.float64]) -> Statistic:
    """Return the length of the mean of vectors, [N, D]; nan without any weight."""

    def length(weights: NDArray[np.float64]) -> float:
        total = weights.sum()
        return float(np.linalg.norm(weights @ vectors) / total) if total > 0 else float("nan")

    return length


def of_events(statistic: Statistic, index: NDArray[np.integer[Any]]) -> Statistic:
    """Use a statistic of some events, at the places ``index``, as one of all."""
    return lambda weights: statistic(weights[index])
