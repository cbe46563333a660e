"""Cutting a stream of events into groups of a chosen size, the same however the stream came in."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.data.batch import Events, concatenate, offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray


def cuts(multiplicity: NDArray[Any], max_events: int, max_items: int) -> Iterator[tuple[int, int]]:
    """Yield intervals [first, last) of events: as many as fit both limits, or one larger event."""
    starts = offsets(multiplicity)
    first = 0
    while first < len(multiplicity):
        fits = int(np.searchsorted(starts, starts[first] + max_items, side="right")) - 1
        last = max(first + 1, min(fits, first + max_events))
        yield first, last
        first = last


def regroup(blocks: Iterable[Events], max_events: int, max_items: int) -> Iterator[Events]:
    """Cut a stream of blocks anew into the groups of ``cuts``; holds one group and one block."""
    held: list[Events] = []
    for block in blocks:
        if held and len(block) and block.multiplicity[0] > max_items:
            yield from _cut(concatenate(held), max_events, max_items)  # a giant event is never copied
            held = []
        held.append(block)
        if sum(map(len, held)) >= max_events or sum(len(part.items) for part in held) >= max_items:
            *whole, rest = _cut(concatenate(held), max_events, max_items)
            yield from whole
            held = [rest]
    if held:
        yield from _cut(concatenate(held), max_events, max_items)


def even_cuts(weights: NDArray[Any], parts: int) -> list[tuple[int, int]]:
    """Cut a sequence into at most ``parts`` intervals [first, last) of about equal weight."""
    ends = np.cumsum(weights)
    marks = ends[-1] * np.arange(1, parts) / parts if len(ends) else np.zeros(0)
    borders = np.unique([0, *(np.searchsorted(ends, marks) + 1), len(weights)])
    return [(int(first), int(last)) for first, last in pairwise(borders)]


def _cut(events: Events, max_events: int, max_items: int) -> Iterator[Events]:
    starts = events.offsets()
    for first, last in cuts(events.multiplicity, max_events, max_items):
        yield Events(
            {name: column[first:last] for name, column in events.columns.items()},
            events.multiplicity[first:last],
            events.items[starts[first] : starts[last]],
        )
