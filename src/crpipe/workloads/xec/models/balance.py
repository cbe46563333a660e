"""Weights that make the distribution of an event column flat, from histograms of the training events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from crpipe.events.batch import Events


class Flattening:
    """Weighs events by the inverse of how often their values occur.

    The mean over training events is 1 for each column. Weights of several columns are multiplied: their mean
    is 1 where the columns do not depend on each other.
    """

    def __init__(self, histograms: Mapping[str, Any], columns: Sequence[str], most: float) -> None:
        """Take the histograms of ``columns``; ``most`` limits the weight of each column, over the mean."""
        self._weights = {name: _of_bins(histograms[name].counts, most) for name in columns}
        self._edges = {name: (histograms[name].low, histograms[name].high) for name in columns}

    def of(self, events: Events) -> NDArray[np.float32]:
        """Weigh each event, [N]; a value outside of a histogram counts as in the nearest bin."""
        found = np.ones(len(events))
        for name, weights in self._weights.items():
            low, high = self._edges[name]
            share = (events.columns[name].astype(np.float64) - low) / (high - low)
            at = np.clip(np.floor(share * len(weights)), 0, len(weights) - 1).astype(np.int64)
            found *= weights[at]
        return found.astype(np.float32)


def _of_bins(counts: NDArray[np.int64], most: float) -> NDArray[np.float64]:
    """Give the weight of each bin: all filled bins together weigh the same, but none above ``most``."""
    total, filled = counts.sum(), counts > 0
    if not total:
        return np.ones(len(counts))
    weights = np.ones(len(counts))
    weights[filled] = total / (filled.sum() * counts[filled])
    # Clipping lowers the mean, which is scaled back to 1; a few rounds settle it.
    for _ in range(100):
        mean = float((weights * counts).sum() / total)
        clipped = np.minimum(weights / mean, most)
        if np.allclose(clipped, weights, rtol=1e-12, atol=0):
            break
        weights = clipped
    return weights
