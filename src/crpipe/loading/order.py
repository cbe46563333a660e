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
BAND = 4  # pieces read beside each other where there are several folders, and up to three more
WINDOW_ITEMS = 1 << 24  # items shuffled together where batches are cut by items: 64 MiB for each item column


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """One epoch's events as a stream: pieces in reading order, shuffled inside windows, cut into batches.

    pieces: [P] piece numbers in reading order. With several folders a piece comes in slices, one after the
        other, with slices of other pieces between them.
    firsts: [P] the slice's first event inside its piece; 0 for whole pieces.
    starts: [P + 1] stream position at which each of these pieces or slices begins, and the end.
    windows: [V + 1] stream position at which each window begins, and the end.
    batches: [J + 1] stream position, in the shuffled stream, at which each batch begins, and the end.
    """

    seed: tuple[int, ...]
    epoch: int
    pieces: NDArray[np.int64]
    firsts: NDArray[np.int64]
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

    With several folders (``folders``: the folder of each piece) the pieces of each are spread evenly over the
    epoch. Without ``cost`` BAND consecutive pieces form a band, or a few more where BAND does not divide
    their number. They are read beside each other, and a window holds one slice of each: the k-th part of k
    pieces, so about as many events and items as one piece.
    With ``cost`` a window holds several pieces anyway.
    """

    def __init__(
        self,
        seed: tuple[int, ...],
        sizes: NDArray[np.int64],
        *,
        capacity: int,
        ranks: int,
        cost: NDArray[np.int64] | None = None,
        folders: NDArray[np.int64] | None = None,
    ) -> None:
        several = folders is not None and len(np.unique(folders)) > 1
        self._folders = folders if several else None
        self.in_slices = several and cost is None
        self._capacity = capacity
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
        random = _random(self._seed, epoch, 0)
        pieces = random.permutation(len(self._sizes))
        if self._folders is not None:
            pieces = _spread(pieces, self._folders, random)
        shares = _shares(self._total, self._batches)
        if self.in_slices:
            return self._sliced(epoch, pieces, shares)
        starts, firsts = offsets(self._sizes[pieces]), np.zeros(len(pieces), np.int64)
        # Derived from the total, not from the batches, so that the order is independent of the ranks.
        windows = np.append(_shares(self._total, self._fewest)[: -1 : self._window], self._total)
        if self._cost is None:
            return EpochOrder(self._seed, epoch, pieces, firsts, starts, windows, shares)
        stream = np.repeat(self._natural[pieces] - starts[:-1], self._sizes[pieces])
        cost = self._cost[stream + np.arange(starts[-1])]
        windows = np.searchsorted(offsets(cost)[:-1], windows)
        order = EpochOrder(self._seed, epoch, pieces, firsts, starts, windows, windows)
        for window, (low, high) in enumerate(itertools.pairwise(windows)):
            cost[low:high] = cost[low:high][order.permutation(window)]
        batches = _never_empty(np.searchsorted(offsets(cost)[:-1], shares))
        return EpochOrder(self._seed, epoch, pieces, firsts, starts, windows, batches)

    def _sliced(self, epoch: int, pieces: NDArray[np.int64], shares: NDArray[np.int64]) -> EpochOrder:
        """Cut each band's pieces into as many slices as it has pieces; the first slices of all, and so on."""
        numbers, firsts, sizes, rows = [], [], [], []
        for band in np.array_split(pieces, max(1, len(pieces) // BAND)):
            borders = np.arange(len(band) + 1)[:, None] * self._sizes[band] // len(band)
            numbers.append(np.tile(band, len(band)))
            firsts.append(borders[:-1].ravel())
            sizes.append(np.diff(borders, axis=0).ravel())
            rows.append(np.diff(borders.sum(1)))
        lengths = np.concatenate(sizes)
        used = lengths > 0
        return EpochOrder(
            self._seed,
            epoch,
            np.concatenate(numbers)[used],
            np.concatenate(firsts)[used],
            offsets(lengths[used]),
            _at_least(np.concatenate(rows), LEAST_WINDOW * self._capacity),
            shares,
        )

    def _window_size(self) -> int:
        """Shuffle over one whole piece at least: it is decoded as a whole anyway."""
        if self._cost is None:
            return int(self._sizes.max(initial=0))
        ends = offsets(self._cost)[self._natural]
        return max(WINDOW_ITEMS, int(np.diff(ends).max(initial=0)))


def item_costs(multiplicity: NDArray[np.uint32], batch_events: int, max_items: int) -> NDArray[np.int64]:
    """Return a cost for each event so that ``max_items`` pays for at most ``batch_events`` events: [N] int64.

    An event of more than ``max_items`` costs ``max_items``: it ends its batch, however large it is.
    """
    return np.clip(multiplicity.astype(np.int64), -(-max_items // batch_events), max_items)


def _spread(
    pieces: NDArray[np.int64], folders: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """Order shuffled pieces so that those of each folder are spread evenly.

    The i-th of a folder's n pieces lies at a random place in [i / n, (i + 1) / n): folders with equally many
    pieces take turns in random order.
    """
    places = random.random(len(pieces))
    owner = folders[pieces]
    for folder in np.unique(owner):
        members = np.flatnonzero(owner == folder)
        places[members] = (np.arange(len(members)) + places[members]) / len(members)
    return pieces[np.argsort(places, kind="stable")]


def _at_least(sizes: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Return the borders of consecutive parts joined until they hold ``least`` events.

    Only the last may hold fewer.
    """
    borders = [0]
    for end in np.cumsum(sizes).tolist():
        if end - borders[-1] >= least:
            borders.append(end)
    total = int(sizes.sum())
    return np.array(borders if borders[-1] == total else [*borders, total], np.int64)


def _shares(total: int, parts: int) -> NDArray[np.int64]:
    """Return the borders of ``parts`` equal shares of [0, total), each rounded up: [parts + 1]."""
    return -(-np.arange(parts + 1, dtype=np.int64) * total // max(parts, 1))


def _never_empty(borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move borders so that each batch has an event, as far as there are any: the first of its successor."""
    count = np.arange(len(borders))
    events = borders[-1]
    borders = np.maximum.accumulate(borders - count) + count
    fair: NDArray[np.int64] = np.minimum(borders, np.maximum(events - count[::-1], 0))
    return fair


def _random(seed: tuple[int, ...], *key: int) -> np.random.Generator:
    # The length goes first because SeedSequence pads with zeros: (1,) and (1, 0) must differ.
    return np.random.default_rng(np.random.SeedSequence([len(seed), *seed], spawn_key=key))
