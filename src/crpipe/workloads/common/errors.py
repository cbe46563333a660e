"""Errors of numbers from bootstrap samples: equal data give equal errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

_SEED = 0


def resamples(events: int, count: int, most: int | None = None) -> Iterator[NDArray[np.int64]]:
    """Yield the events of ``count`` bootstrap samples, drawn with replacement.

    most: events of one sample; of more, the error of so few is scaled down by ``spread``.
    """
    rng = np.random.default_rng(_SEED)
    for _ in range(count):
        yield rng.integers(events, size=_drawn(events, most))


def spread(replicas: ArrayLike, events: int, most: int | None = None) -> Floats:
    """Return the standard deviation over replicas [R, ...] that come from ``resamples``: [...]."""
    return np.std(np.asarray(replicas, np.float64), axis=0) * np.sqrt(_drawn(events, most) / events)


def _drawn(events: int, most: int | None) -> int:
    return events if most is None else min(events, most)


def finite_spread(replicas: Floats) -> Floats:
    """Return the standard deviation over replicas [R, ...]; those that are not finite do not count: [...]."""
    finite = np.isfinite(replicas)
    count = np.maximum(finite.sum(axis=0), 1)
    mean = np.where(finite, replicas, 0.0).sum(axis=0) / count
    square = np.where(finite, (replicas - mean) ** 2, 0.0).sum(axis=0) / count
    return np.where(finite.sum(axis=0) > 1, np.sqrt(square), np.nan)


def group_weights(group: NDArray[np.int64], count: int) -> Floats:
    """Return bootstrap weights of groups, which ``group`` numbers: [1 + count, G], the first row all ones.

    Weights from a Poisson distribution of mean 1 replace drawing with replacement, without copying or
    sorting anything again.
    """
    groups = int(group.max(initial=-1)) + 1
    drawn = np.random.default_rng(_SEED).poisson(1.0, (count, groups)).astype(np.float64)
    return np.concatenate([np.ones((1, groups)), drawn])


def scattered(values: Floats, errors: Floats, count: int) -> Floats:
    """Return values that scatter by their errors, [N] each, as Gaussians do: [count, N]."""
    return values + errors * np.random.default_rng(_SEED).normal(size=(count, len(values)))
