"""Pulses grouped by sensor: one row for each sensor that was hit in an event (a DOM vector).

In: blocks of events as the loader gives them. Out: arrays for tensors, events from most to fewest sensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.core.errors import DataError
from crpipe.events.batch import Events, offsets
from crpipe.loading.microbatch import rounded
from crpipe.workloads.direction.options import FEATURES, PER_PULSE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


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
    """Return the first ``most_pulses`` pulses of each of the first ``most_doms`` sensors hit in each event.

    Example: pulses (sensor, time) (7, 10) (3, 20) (7, 30), most_pulses 1, most_doms 2: the rows (3; 20) of 1
    pulse and (7; 10) of 2 pulses; with most_doms 1 only (7; 10), because sensor 7 was hit first.
    """
    if len(events.items) > PULSES_AT_ONCE:
        raise DataError(
            f"{len(events.items)} pulses in one micro-batch, more than {PULSES_AT_ONCE}; lower "
            "load.batch_size"
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
    slot, selected = _slots(row, begins, lengths, most_pulses)
    pulse, slot = pulse[selected], slot[selected]
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
    """Return the time of the first pulse in local coincidence, else of the first pulse, else 0: [B]."""
    begins = events.offsets()
    coincident = np.append(np.flatnonzero(items[:, AUXILIARY] == 0), len(items))
    first = coincident[np.searchsorted(coincident, begins[:-1])]
    first = np.where(first < begins[1:], first, begins[:-1])
    times = np.zeros(len(events), np.float32)
    filled = events.multiplicity > 0
    times[filled] = items[first[filled], TIME]
    return times


# From DOM vectors to what a network sees: the one place where anything is scaled.
#
# It is part of the model, so it is exported with it. All features are of order one; absent pulses are 0.

_LENGTH_M, _TIME_NS = 500.0, 3000.0
_NEAR_M, _NEAR_NS = 150.0, 500.0  # of an event's own size
_LEAST_PE = 1e-3
_LN10 = math.log(10)
_NOISE = 1e-3  # weight of a sensor without a coincidence, where the centre of the light is sought


class Features(nn.Module):
    """Scales DOM vectors, and knows where each sensor is.

    places: [S, 3] in m. pulses_per_dom: K, as in their slots. shown: so many of them, the first ones, are in
    the features of a sensor.
    """

    places: Tensor

    def __init__(self, places: Tensor, pulses_per_dom: int, shown: int, *, absolute: bool) -> None:
        super().__init__()
        self.pulses_per_dom = pulses_per_dom
        self.shown = shown
        self.register_buffer("places", places)
        self.absolute = absolute

    @property
    def width(self) -> int:
        """Count the features of one sensor: eight of its own, and three for each pulse."""
        return FEATURES + PER_PULSE * self.shown

    def forward(self, doms: Mapping[str, Tensor], event: Tensor, start: Tensor, turn: Tensor) -> Tensor:
        """Return the features of D sensors of B events: [D, width].

        doms: sensor [D], many [D], pulse [P, 4] and slot [P], as in DomVectors. event: [D]. start: [B]
        reference time of the event, in ns. turn: [B] angle in rad by which it is turned about the vertical
        axis.

        The features: place in the detector, and from the centre of the event's light; time of the first pulse
        from the mean of all; number of pulses; time, charge and kind of each pulse.
        """
        sensor, slot, most = doms["sensor"], doms["slot"], self.pulses_per_dom
        position = _turned(self.places[sensor], turn[event])
        rows = places = sensor.shape[0] * self.shown
        if self.shown < most:  # later pulses go to one more place
            row, nth = slot // most, slot % most
            slot, places = torch.where(nth < self.shown, row * self.shown + nth, rows), rows + 1
        seen = position.new_zeros(places, 4).index_copy(0, slot, self.pulses(doms, event, start))
        seen = seen[:rows].view(sensor.shape[0], -1, 4)
        near = torch.cat([position / _NEAR_M, seen[:, 0, 3:]], dim=1)
        # Pulses in local coincidence are light, most others noise.
        weight = torch.where(seen[:, 0, 2] < 0, 1.0, _NOISE) * (doms["many"] > 0)
        near = near - _means(near, weight, event, start.shape[0])[event]
        many = doms["many"].log1p() / 3 - 1
        return torch.cat([position / _LENGTH_M, near, many[:, None], seen[:, :, :3].flatten(1)], dim=1)

    def pulses(self, doms: Mapping[str, Tensor], event: Tensor, start: Tensor) -> Tensor:
        """Return of each pulse time, log of the charge, kind, and time in finer units: [P, 4]."""
        _, time, charge, auxiliary = doms["pulse"].unbind(dim=1)
        late = time - start[event[doms["slot"] // self.pulses_per_dom]]
        shown = time / 10 if self.absolute else late
        scaled = [shown / _TIME_NS, charge.clamp_min(_LEAST_PE).log10() / 3, auxiliary - 0.5, late / _NEAR_NS]
        return torch.stack(scaled, dim=1)


def _turned(places: Tensor, turn: Tensor) -> Tensor:
    x, y, z = places.unbind(dim=1)
    cosine, sine = turn.cos(), turn.sin()
    return torch.stack([x * cosine - y * sine, x * sine + y * cosine, z], dim=1)


def _means(values: Tensor, weight: Tensor, event: Tensor, events: int) -> Tensor:
    """Return the weighted means of values [D, F] over the rows of each event: [B, F]."""
    sums = values.new_zeros(events, values.shape[1]).index_add(0, event, values * weight[:, None])
    return sums / values.new_zeros(events).index_add(0, event, weight).clamp_min(_NOISE)[:, None]


# An event in a few numbers, from the features of its sensors: what a physicist would look at first.

_LATE, _NEAR2 = 2.2, (220.0 / _NEAR_M) ** 2  # light so late after that of a sensor so near was scattered
_HUBER = 80.0 / _NEAR_M  # beyond, a distance from the fitted line counts linearly
_ITERATIONS = 8
_EARLY = (0.4, 1.2, 4.0)  # decay times of the weights of early light
_SOFT = 1e-2  # a vector of this length is half a unit vector
_LEAST = 1e-6
_FAR = 1e4  # later than any light
SUMMARY = 10 + 3 * 11


def summarise(x: Tensor, there: Tensor) -> Tensor:
    """Return a line fit and more of each event in a few numbers and vectors: [E, SUMMARY].

    x: [E, L, features] as from ``Features``; there: [E, L] false for padding. The line is that of
    scoring.line_fit, through the first pulses of the sensors alone. Lengths here are in 150 m, times in
    0.5 µs. No matrix product, which has few digits with train.precision bfloat16 or train.tf32.
    """
    many, pulses = x[..., 7], x[..., 8:].reshape(*x.shape[:2], -1, 3)
    is_light = (pulses[..., 0, 2] < 0) & there
    weight = torch.where(is_light, 1.0, _NOISE) * there * (many > -1)
    charge = ((3 * _LN10 * pulses[..., 1]).exp() * (pulses[..., 2] != 0)).sum(dim=2)
    position, time = x[..., 3:6], x[..., 6]
    on_time = weight * (charge + 1).log() * ~_late(position, time, is_light)
    simple = _line(position, time, weight)
    line = _line(position, time, on_time + _LEAST * weight)
    for _ in range(_ITERATIONS):
        line = _line(position, time, (on_time + _LEAST * weight) * (_HUBER / line.distance.clamp_min(_HUBER)))
    centre = _mean(position, weight)
    offset = position - centre[:, None]
    tensor = _mean((offset[..., :, None] * offset[..., None, :]).flatten(2), weight).view(-1, 3, 3)
    size = tensor.diagonal(dim1=1, dim2=2).sum(dim=1)
    shape = tensor / (size + _SOFT)[:, None, None]
    forward = _unit(line.velocity)
    begin = torch.where(is_light, time, _FAR).amin(dim=1, keepdim=True)
    since = time - torch.where(begin < _FAR, begin, torch.where(there, time, _FAR).amin(dim=1, keepdim=True))
    since = since.clamp(0, 50)
    early = [centre - _mean(position, weight * (since * (-1 / decay)).exp()) for decay in _EARLY]
    bright = [_mean(position, weight * each) - centre for each in ((charge + 1).log(), charge)]
    along = _product(shape, forward)
    axis = _product(shape, _product(shape, _product(shape, along)))
    speed = torch.linalg.vector_norm(line.velocity, dim=1)
    light, total = weight.sum(dim=1), (weight * charge).sum(dim=1)
    numbers = [
        light.clamp_min(_NOISE).log(),
        total.clamp_min(_NOISE).log(),
        ((weight * charge.square()).sum(dim=1).clamp_min(_LEAST).sqrt() / total.clamp_min(_NOISE)),
        speed.clamp_max(2.0),
        torch.linalg.vector_norm(simple.velocity, dim=1).clamp_max(2.0),
        (line.duration + _SOFT).log(),
        (_mean(line.distance.square()[..., None], on_time + _LEAST * weight)[:, 0] + _SOFT).log(),
        (size + _SOFT).log(),
        _mean(many[..., None], weight)[:, 0],
        on_time.sum(dim=1) / (weight * (charge + 1).log()).sum(dim=1).clamp_min(_LEAST),
    ]
    vectors = [forward, _unit(simple.velocity), *(_unit(each) for each in (*early, *bright, along, axis))]
    vectors += [early[1].clamp(-3, 3), _mean(x[..., :3], weight)]
    return torch.cat([torch.stack(numbers, dim=1), *vectors], dim=1)


class _Line(NamedTuple):
    """A moving plane of light: velocity [E, 3], variance of the times [E], distances of sensors [E, L]."""

    velocity: Tensor
    duration: Tensor
    distance: Tensor


def _line(position: Tensor, time: Tensor, weight: Tensor) -> _Line:
    offset = position - _mean(position, weight)[:, None]
    moment = time - _mean(time[..., None], weight)
    duration = _mean(moment.square()[..., None], weight)
    velocity = _mean(offset * moment[..., None], weight) / duration.clamp_min(_LEAST)
    apart = offset - velocity[:, None] * moment[..., None]
    return _Line(velocity, duration[:, 0], (apart.square().sum(dim=2) + _LEAST).sqrt())


def _late(position: Tensor, time: Tensor, is_light: Tensor) -> Tensor:
    """Return which sensors see light long after a sensor near to them: [E, L]."""
    x, y, z = ((axis[:, :, None] - axis[:, None]).square() for axis in position.unbind(dim=2))
    first = torch.where((x + y + z < _NEAR2) & is_light[:, None], time[:, None], _FAR).amin(dim=2)
    return time > first + _LATE


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of values [E, L, F] over the sensors of each event: [E, F]."""
    return (values * weight[..., None]).sum(dim=1) / weight.sum(dim=1, keepdim=True).clamp_min(1e-9)


def _product(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return matrices [E, 3, 3] times vectors [E, 3]."""
    return (matrices * vectors[:, None]).sum(dim=2)


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors [E, 3] of length 1, or less where they are too short to mean a direction."""
    return vectors / (torch.linalg.vector_norm(vectors, dim=1, keepdim=True) + _SOFT)


# DOM vectors as arrays of few shapes: events in padded groups; rows that count for nothing fill all up.
#
# A compiled graph and a CUDA graph are each made for one shape; batches of data are all different.

Number = TypeVar("Number", bound=np.generic)
_SHAPE_BITS = 4  # of all shapes: at most an eighth more
# Events of the groups in units of 1/32 of a batch, most sensors first: there lengths differ most.
_UNITS, _SIZES = 32, (1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4)
_LENGTH_BITS = 2  # of numbers of pulses: 1 2 3 4 6 8 12 16 ...
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
    unit = rounded(-(-len(count) // _UNITS), _SHAPE_BITS)
    unit = max(min(unit, _GROUP_ROWS // (max(_SIZES) * most)), 1)
    sizes = chain(_SIZES, repeat(max(_SIZES)))
    groups, first = [], 0
    while first < len(count):
        events = unit * next(sizes)
        groups.append(PaddedGroup(first, events, min(rounded(int(count[first]), _SHAPE_BITS), most)))
        first += events
    return groups


def padded_rows(groups: list[PaddedGroup], kept: NDArray[np.int64], last: int) -> Iterator[NDArray[np.int64]]:
    """Return the rows of each group: [E, L], those of its events first, then any up to ``last``.

    kept: [B] rows of each event. An event of padding has rows of no event.
    """
    begins = extended(np.cumsum(kept) - kept, sum(group.events for group in groups), int(kept.sum()))
    for first, events, length in groups:
        rows = begins[first : first + events, None] + np.arange(length)
        if rows[-1, -1] > last:  # the largest of all
            np.minimum(rows, last, out=rows)
        yield rows


def padded_arrays(doms: DomVectors, most_pulses: int, most_doms: int) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a batch, without its truth: see DirectionWorkload.collate.

    Rows of padding belong to the last event, where they have no weight. All pulses of padding are in one slot
    of the first such row.
    """
    groups = padded_groups(doms.count, most_doms)
    events, real = sum(group.events for group in groups), len(doms.count)
    rows, pulses = rounded(len(doms.sensor) + 1, _SHAPE_BITS), rounded(max(len(doms.pulse), 1), _SHAPE_BITS)
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


def pulse_arrays(slot: NDArray[np.int64], rows: int, most: int) -> dict[str, NDArray[np.int64]]:
    """Group sensors with about as many pulses, so that those of a group are padded to one length.

    slot: [P] row K + k of each pulse, as in DomVectors, with K ``most``. rows: D, with those of padding.

    alike_0, alike_1 ...: [S, L] pulses of the sensors of each group, for every length L up to ``most``; the
    first ``pulses_kept`` [all S] of a sensor are its own. pulses_place: [D] where each row is among all S. A
    row without pulses gets any one. Example: sensors of 1, 5 and 1 pulses are a group of 2 sensors with 1
    pulse, and one of 1 sensor with 6, of which the last is not its own; all others have no sensor.
    """
    begins, kept = np.zeros(rows, np.int64), np.bincount(slot // most, minlength=rows).clip(1)
    firsts = np.flatnonzero(slot % most == 0)
    begins[slot[firsts] // most] = firsts
    lengths = np.unique([min(rounded(number, _LENGTH_BITS), most) for number in range(1, most + 1)])
    group = np.searchsorted(lengths, kept)
    ordered = np.split(
        np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=len(lengths)))
    )
    arrays, counts, position = {}, [], np.empty(rows, np.int64)
    listed = 0
    for number, (length, members) in enumerate(zip(lengths, ordered, strict=False)):
        size = rounded(len(members), _SHAPE_BITS)
        position[members] = listed + np.arange(len(members))
        pulses = begins[members, None] + np.minimum(np.arange(length), kept[members, None] - 1)
        arrays[f"alike_{number}"] = extended(pulses, size)
        counts.append(extended(kept[members], size, 1))
        listed += size
    arrays["pulses_kept"] = extended(np.concatenate(counts), rounded(listed, _SHAPE_BITS), 1)
    return arrays | {"pulses_place": position}


def extended(values: NDArray[Number], length: int, fill: float = 0) -> NDArray[Number]:
    """Copy values [N, ...] with rows of ``fill`` after them: [length, ...]."""
    padded = np.empty((length, *values.shape[1:]), values.dtype)
    padded[: len(values)], padded[len(values) :] = values, fill
    return padded
