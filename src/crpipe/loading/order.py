"""The order of events in an epoch: a pure function of the seed, the epoch and the shards' sizes.

Sizes of the pieces (row groups) come in; reading order, shuffle windows and batch borders come out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.events.batch import offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_WINDOW = 2  # batches shuffled together, at least
WINDOW_ITEMS = 1 << 24  # items shuffled together where batches are cut by items: 64 MiB for each item column


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """One epoch's events as a stream: pieces in reading order, shuffled inside windows, cut into batches.

    pieces: [P] piece numbers in reading order.
    starts: [P + 1] stream position at which each of these pieces begins, and the end.
    windows: [V + 1] stream position at which each window begins, and the end.
    batches: [J + 1] stream position, in the shuffled stream, at which each batch begins, and the end.
    """

    seed: tuple[int, ...]
    epoch: int
    pieces: NDArray[np.int64]
    starts: NDArray[np.int64]
    windows: NDArray[np.int64]
    batches: NDArray[np.int64]

    def permutation(self, window: int) -> NDArray[np.int64]:
        """Shuffle one window: the position in it, before the shuffle, of each of its events after it."""
        events = int(self.windows[window + 1] - self.windows[window])
        return _random(self.seed, self.epoch, 1 + window).permutation(events)


class Order:
    """Every epoch's order, for all ranks together: rank r takes batches [r, r + 1) · batches_per_rank.

    The order of the events is the same for any number of ranks; only the batches' borders differ.

    Without ``cost`` a batch holds ``capacity`` events at most, and all batches are equal to within one event.
    With ``cost`` (one value per event, in the order of the pieces, none above ``capacity``) a batch starts
    with the first event that begins in its equal share of the epoch's total cost, so that all its events but
    the last stay below ``capacity``. Either way the number of batches is the same in every epoch and on every
    rank, and a batch is empty only when there are fewer events than batches on all ranks together.
    """

    def __init__(
        self,
        seed: tuple[int, ...],
        sizes: NDArray[np.int64],
        *,
        capacity: int,
        ranks: int,
        cost: NDArray[np.int64] | None = None,
    ) -> None:
        self._seed = seed
        self._sizes = sizes
        self._cost = cost
        self._natural = offsets(sizes)
        self._total = int(sizes.sum() if cost is None else cost.sum())
        self.batches_per_rank = -(-self._total // (capacity * ranks))
        self._batches = self.batches_per_rank * ranks
        self._fewest = -(-self._total // capacity)
        self._window = max(LEAST_WINDOW, -(-self._window_size() // capacity))

    def epoch(self, epoch: int) -> EpochOrder:
        """Compute the order of one epoch."""
        pieces = _random(self._seed, epoch, 0).permutation(len(self._sizes))
        starts = offsets(self._sizes[pieces])
        shares = _shares(self._total, self._batches)
        # Derived from the total, not from the batches, so that the order is independent of the ranks.
        windows = np.append(_shares(self._total, self._fewest)[: -1 : self._window], self._total)
        if self._cost is None:
            return EpochOrder(self._seed, epoch, pieces, starts, windows, shares)
        stream = np.repeat(self._natural[pieces] - starts[:-1], self._sizes[pieces])
        cost = self._cost[stream + np.arange(starts[-1])]
        windows = np.searchsorted(offsets(cost)[:-1], windows)
        order = EpochOrder(self._seed, epoch, pieces, starts, windows, windows)
        for window, (low, high) in enumerate(itertools.pairwise(windows)):
            cost[low:high] = cost[low:high][order.permutation(window)]
        batches = _never_empty(np.searchsorted(offsets(cost)[:-1], shares))
        return EpochOrder(self._seed, epoch, pieces, starts, windows, batches)

    def _window_size(self) -> int:
        """Shuffle over one whole piece at least: it is decoded as a whole anyway."""
        if self._cost is None:
            return int(self._sizes.max(initial=0))
        ends = offsets(self._cost)[self._natural]
        return max(WINDOW_ITEMS, int(np.diff(ends).max(initial=0)))


def item_costs(multiplicity: NDArray[np.uint32], batch_events: int, max_items: int) -> NDArray[np.int64]:
    """Give each event a cost so that ``max_items`` pays for at most ``batch_events`` events: [N] int64.

    An event of more than ``max_items`` costs ``max_items``: it ends its batch, however large it is.
    """
    return np.clip(multiplicity.astype(np.int64), -(-max_items // batch_events), max_items)


def _shares(total: int, parts: int) -> NDArray[np.int64]:
    """Borders of ``parts`` equal shares of [0, total), each rounded up to a whole number: [parts + 1]."""
    return -(-np.arange(parts + 1, dtype=np.int64) * total // max(parts, 1))


def _never_empty(borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give each batch one event at least, as far as there are events: an empty one takes its successor's."""
    count = np.arange(len(borders))
    events = borders[-1]
    borders = np.maximum.accumulate(borders - count) + count
    fair: NDArray[np.int64] = np.minimum(borders, np.maximum(events - count[::-1], 0))
    return fair


def _random(seed: tuple[int, ...], *key: int) -> np.random.Generator:
    # The length goes first because SeedSequence pads with zeros: (1,) and (1, 0) must differ.
    return np.random.default_rng(np.random.SeedSequence([len(seed), *seed], spawn_key=key))
