"""DOM vectors as arrays of few shapes: events in padded groups; rows that count for nothing fill all up.

A compiled graph and a CUDA graph are each made for one shape; batches of data are all different.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from crpipe.loading.shapes import rounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from crpipe.workloads.direction.models.grouping import DomVectors

Number = TypeVar("Number", bound=np.generic)
_BITS = 4  # of all shapes: at most an eighth more
# Events of the groups in units of 1/32 of a batch, most sensors first: there lengths differ most.
_UNITS, _SIZES = 32, (1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4)
_GROUP_ROWS = 1 << 15  # most rows of a group, unless its unit is one event


class PaddedGroup(NamedTuple):
    """Events one after another that are padded to one length. The last ones may be padding themselves."""

    first: int
    events: int
    length: int


def padded_groups(count: NDArray[np.int64], most: int) -> list[PaddedGroup]:
    """Cut B events, from most to fewest rows, into groups whose sizes depend on B and ``most`` alone.

    count: [B] rows of each event, at most ``most``. Example: 64 events are groups of
    2 2 2 4 4 4 4 4 6 6 6 6 6 8; of 41 events ten such groups hold 38, and the eleventh, of 6, the last three
    and three of padding.
    """
    unit = rounded(-(-len(count) // _UNITS), _BITS)
    unit = max(min(unit, _GROUP_ROWS // (max(_SIZES) * most)), 1)
    sizes = chain(_SIZES, repeat(max(_SIZES)))
    groups, first = [], 0
    while first < len(count):
        events = unit * next(sizes)
        groups.append(PaddedGroup(first, events, min(rounded(int(count[first]), _BITS), most)))
        first += events
    return groups


def padded_rows(groups: list[PaddedGroup], kept: NDArray[np.int64], last: int) -> Iterator[NDArray[np.int64]]:
    """Give the rows of each group: [E, L], those of its events first, then any up to ``last``.

    kept: [B] rows of each event. An event of padding has rows of no event.
    """
    begins = extended(np.cumsum(kept) - kept, sum(group.events for group in groups), int(kept.sum()))
    for first, events, length in groups:
        rows = begins[first : first + events, None] + np.arange(length)
        if rows[-1, -1] > last:  # the largest of all
            np.minimum(rows, last, out=rows)
        yield rows


def padded_arrays(doms: DomVectors, most_pulses: int, most_doms: int) -> dict[str, NDArray[np.generic]]:
    """Give the arrays of a batch, without its truth: see DirectionWorkload.collate.

    Rows of padding belong to the last event, where they have no weight. All pulses of padding are in one slot
    of the first such row.
    """
    groups = padded_groups(doms.count, most_doms)
    events, real = sum(group.events for group in groups), len(doms.count)
    rows, pulses = rounded(len(doms.sensor) + 1, _BITS), rounded(len(doms.pulse), _BITS)
    lengths = np.append(doms.count, rows - len(doms.sensor))
    arrays: dict[str, NDArray[np.generic]] = {
        "start": extended(doms.start, events),
        "order": extended(doms.order, events),
        "hit": extended(doms.hit, events),
        "counts": extended(np.ones(real, np.float32), events),
        "kept": extended(doms.count, events, 1),
        "sensor": extended(doms.sensor, rows),
        "many": extended(doms.many, rows),
        "event": np.repeat(np.append(np.arange(real), events - 1), lengths),
        "pulse": extended(doms.pulse, pulses),
        "slot": extended(doms.slot, pulses, len(doms.sensor) * most_pulses),
    }
    for number, places in enumerate(padded_rows(groups, doms.count, rows - 1)):
        arrays[f"rows_{number}"] = places
    return arrays


def extended(values: NDArray[Number], length: int, fill: float = 0) -> NDArray[Number]:
    """Copy values [N, ...] with rows of ``fill`` after them: [length, ...]."""
    made = np.empty((length, *values.shape[1:]), values.dtype)
    made[: len(values)], made[len(values) :] = values, fill
    return made
