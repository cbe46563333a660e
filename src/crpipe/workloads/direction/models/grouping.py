"""Pulses grouped by sensor: one row for each sensor that was hit in an event (a DOM vector).

In: blocks of events as the loader gives them. Out: arrays for tensors, events from most to fewest sensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.core.errors import DataError
from crpipe.events.batch import offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.batch import Events

SENSOR, TIME, CHARGE, AUXILIARY = range(4)
SENSOR_IDS = 1 << 16  # sensor ids are below
_BITS = 26  # for the number of a pulse in a block
PULSES_AT_ONCE = 1 << _BITS  # in one block, at most


@dataclass(frozen=True, slots=True)
class DomVectors:
    """D sensors of B events, event after event, the events with most sensors first; P pulses of them.

    order: [B] place of each event among the given ones. count: [B] its rows, at least 1: an event without
    pulses has one row without pulses. start: [B] reference time of the event in ns, of its first pulse in
    local coincidence, else of its first pulse. hit: [B] sensors hit, before any cut.
    sensor: [D]. many: [D] pulses of the sensor, before any cut.
    pulse: [P, 4] the first pulses of each sensor. slot: [P] = row K + k for the k-th pulse of the sensor in a
    row, from 0, of at most K.
    pulses_cut, doms_cut: share of the pulses and sensors of the block that are left out.
    """

    order: NDArray[np.int64]
    count: NDArray[np.int64]
    start: NDArray[np.float32]
    hit: NDArray[np.int64]
    sensor: NDArray[np.int64]
    many: NDArray[np.float32]
    pulse: NDArray[np.float32]
    slot: NDArray[np.int64]
    pulses_cut: float
    doms_cut: float


def group_by_sensor(events: Events, most_pulses: int, most_doms: int) -> DomVectors:
    """Give the first ``most_pulses`` pulses of each of the first ``most_doms`` sensors hit in each event.

    Example: pulses (sensor, time) (7, 10) (3, 20) (7, 30), most_pulses 1, most_doms 2: the rows (3; 20) of 1
    pulse and (7; 10) of 2 pulses; with most_doms 1 only (7; 10), because sensor 7 was hit first.
    """
    if len(events.items) > PULSES_AT_ONCE:
        raise DataError(
            f"{len(events.items)} pulses in one micro-batch, more than {PULSES_AT_ONCE}; lower "
            "load.batch_events"
        )
    owner = np.repeat(np.arange(len(events)), events.multiplicity)
    items = _in_time(events.items, owner)
    # Sorted numbers cell << _BITS | pulse: an order, with the pulses of a cell one after another.
    packed = owner * SENSOR_IDS
    packed |= items[:, SENSOR].astype(np.int64)
    packed <<= _BITS
    packed |= np.arange(len(items))
    packed.sort()
    cell, pulse = packed >> _BITS, packed & (PULSES_AT_ONCE - 1)
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    lengths = np.diff(begins, append=len(cell))
    cell = cell[begins]
    event = cell // SENSOR_IDS
    hit = np.bincount(event, minlength=len(events))
    kept = _hit_first(event, pulse[begins], hit, most_doms)
    rows = np.minimum(hit, most_doms)
    order = np.argsort(-rows, kind="stable")
    count = np.maximum(rows[order], 1)
    row = _rows(event, kept, rows, order, count)
    slot, chosen = _slots(row, begins, lengths, most_pulses)
    pulse, slot = pulse[chosen], slot[chosen]
    sensor, many = np.zeros(int(count.sum()), np.int64), np.zeros(int(count.sum()), np.float32)
    sensor[row[kept]], many[row[kept]] = (cell % SENSOR_IDS)[kept], lengths[kept]
    return DomVectors(
        order,
        count,
        _reference_times(items, events)[order],
        hit[order],
        sensor,
        many,
        items.take(pulse, axis=0),
        slot,
        (len(items) - len(pulse)) / max(len(items), 1),
        np.count_nonzero(~kept) / max(len(begins), 1),
    )


def _in_time(items: NDArray[np.float32], owner: NDArray[np.int64]) -> NDArray[np.float32]:
    """Order the pulses of each event by time, where a file does not."""
    time = items[:, TIME]
    if np.any((time[1:] < time[:-1]) & (owner[1:] == owner[:-1])):
        return items[np.lexsort((time, owner))]
    return items


def _hit_first(
    event: NDArray[np.int64], pulse: NDArray[np.int64], hit: NDArray[np.int64], most: int
) -> NDArray[np.bool_]:
    """Choose the sensors that are hit first in events with more than ``most``, and all in the others: [D].

    pulse: [D] number of the sensor's first pulse; pulses are in time within an event.
    """
    kept = np.ones(len(event), bool)
    if len(hit) and hit.max() > most:
        long = np.flatnonzero(hit[event] > most)
        packed = np.sort((event[long] << _BITS) | pulse[long])
        begins = offsets(np.bincount(event[long], minlength=len(hit)))
        last = np.zeros(len(hit), np.int64)
        many = np.flatnonzero(hit > most)
        last[many] = packed[begins[many] + most - 1]
        kept[long] = ((event[long] << _BITS) | pulse[long]) <= last[event[long]]
    return kept


def _rows(
    event: NDArray[np.int64],
    kept: NDArray[np.bool_],
    rows: NDArray[np.int64],
    order: NDArray[np.int64],
    count: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Find the row of each sensor in the output, where events are in another order: [D]; -1 for none."""
    row = np.full(len(event), -1)
    begins = np.empty(len(rows), np.int64)
    begins[order] = offsets(count)[:-1]
    shift = begins - offsets(rows)[:-1]
    row[kept] = np.arange(np.count_nonzero(kept)) + shift[event[kept]]
    return row


def _slots(
    row: NDArray[np.int64], begins: NDArray[np.int64], lengths: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.intp] | slice]:
    """Find the slot of each pulse, for pulses sensor after sensor, and choose those that have one."""
    number = np.arange(int(lengths.sum()))
    slot = number + np.repeat(row * most - begins, lengths)
    if (row >= 0).all() and (lengths <= most).all():
        return slot, slice(None)
    ends = np.where(row >= 0, begins + most, begins)
    return slot, np.flatnonzero(number < np.repeat(ends, lengths))


def _reference_times(items: NDArray[np.float32], events: Events) -> NDArray[np.float32]:
    """Give the time of the first pulse in local coincidence, else of the first pulse, else 0: [B]."""
    begins = events.offsets()
    coincident = np.append(np.flatnonzero(items[:, AUXILIARY] == 0), len(items))
    first = coincident[np.searchsorted(coincident, begins[:-1])]
    first = np.where(first < begins[1:], first, begins[:-1])
    times = np.zeros(len(events), np.float32)
    filled = events.multiplicity > 0
    times[filled] = items[first[filled], TIME]
    return times
