"""Micro-batches: one batch's events in groups whose items fit into the budget."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BITS = 6
PLACED = 2000  # events placed one by one, largest first; the small rest fills up what is left


def micro_batches(size: NDArray[np.integer[Any]], budget: int) -> list[NDArray[np.int64]]:
    """Split a batch of events with ``size`` items each, [N], into groups of about equal items.

    There are ceil(total / budget) groups, and a few more only where the events cannot be packed so tightly: a
    group of more than ``budget`` items is always one single event. Every event is in one group. The
    result depends on the arguments alone; each group is ascending, and groups are ordered by their first
    event. An empty batch gives one empty group.
    """
    items: NDArray[np.int64] = size.astype(np.int64)
    if items.sum() <= budget:
        return [np.arange(len(size))]
    alone = np.flatnonzero(items > budget)
    rest = np.flatnonzero(items <= budget)
    groups = [alone[i : i + 1] for i in range(len(alone))]
    groups += [rest[group] for group in _pack(items[rest], budget)]
    return sorted(groups, key=lambda group: int(group[0]))


def _pack(size: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Pack events of at most ``budget`` items each; try one group more until they fit."""
    count = max(1, -(-int(size.sum()) // budget))
    while count < len(size):
        owner = _place(size, count)
        if np.bincount(owner, weights=size, minlength=count).max() <= budget:
            groups = [np.flatnonzero(owner == group) for group in range(count)]
            return [group for group in groups if len(group)]
        count += max(1, count // 16)
    return list(np.arange(len(size))[:, None])


def _place(size: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose a group for each event, [N]: the largest to the lightest group so far, the rest in a row."""
    owner = np.empty(len(size), np.int64)
    order = np.argsort(-size, kind="stable")
    loads = [(0, group) for group in range(count)]
    for event in order[:PLACED]:
        load, group = loads[0]
        owner[event] = group
        heapq.heapreplace(loads, (load + int(size[event]), group))
    rest = np.sort(order[PLACED:])
    load_of = np.array([load for load, _ in sorted(loads, key=lambda pair: pair[1])])
    target = -(-int(size.sum()) // count)
    room_ends = np.cumsum(np.maximum(target - load_of, 0))
    owner[rest] = np.minimum(np.searchsorted(room_ends, offsets(size[rest])[:-1], side="right"), count - 1)
    return owner


def rounded(count: int, bits: int = _BITS) -> int:
    """Round up to a shape: a number of which all but the first ``bits`` binary digits are 0.

    A program for a matrix product, a compiled graph and a CUDA graph are each made for one shape; padding
    brings batches, which are all different, to few of them. With six digits there are 32 shapes from a power
    of two to the next, at most 3 % more: 1,000 → 1,008, 30,000 → 30,208.
    """
    step = 1 << max(count.bit_length() - bits, 0)
    return -(-count // step) * step
