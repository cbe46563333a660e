"""What the detector records: photons become pulses, eight of them a trigger, and noise is added.

Pulses are kept as sorted integers, ``slot << 21 | time_ns``, where a slot is a sensor of an event, 64 slots
to a string: neighbours on a string are neighbouring slots, and the outermost two slots of a string are never
hit. So the question whether a neighbour has a pulse at about the same time is a search in a sorted list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.events.batch import cuts
from crpipe.workloads.direction.simulator.physics import PER_STRING, SENSORS, STRINGS, Light, delays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


PULSES_PER_SENSOR, LARGEST_PE = 38, 3000  # of one event: they bound an event to 200,000 pulses
JITTER_NS, MERGE_NS = 3.0, 5
EXPONENTIAL_SHARE = 0.25
NEIGHBOURS, COINCIDENCE_NS = (-2, -1, 1, 2), 1000
TRIGGER_SENSORS, TRIGGER_NS = 8, 5000
TRIGGER_AT_NS, BEFORE_NS, AFTER_NS = 9_880, 4_000, 6_000  # the window around the first and last coincidence
PHOTONS_AT_ONCE = 1 << 18

_TIME_BITS, _TIME_ZERO = 21, 1 << 18
_STRING_SLOTS, _OUTERMOST = 64, 2
_EVENT_SLOTS = STRINGS * _STRING_SLOTS


@dataclass(frozen=True, slots=True)
class Pulses:
    """M pulses: key [M] int64, sorted, and the number of photons in each [M]."""

    key: NDArray[np.int64]
    photons: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Recorded:
    """N events with their M pulses, event after event and by time.

    particle: [N], rows of the simulated particles. count: pulses in each [N]. sensor, time_ns, charge_pe,
    auxiliary: [M].
    """

    particle: NDArray[np.int64]
    count: NDArray[np.int64]
    sensor: NDArray[np.int16]
    time_ns: NDArray[np.int64]
    charge_pe: NDArray[np.float64]
    auxiliary: NDArray[np.bool_]

    def first(self, events: int) -> Recorded:
        """Keep the first few events."""
        pulses = int(self.count[:events].sum())
        return Recorded(
            self.particle[:events],
            self.count[:events],
            self.sensor[:pulses],
            self.time_ns[:pulses],
            self.charge_pe[:pulses],
            self.auxiliary[:pulses],
        )


def record(rng: np.random.Generator, light: Light, noise_hz: float) -> Iterator[Recorded]:
    """Detect the light of some particles; yield the events that trigger, in the order of their particles."""
    photons = rng.poisson(light.mean)
    hit = np.flatnonzero(photons)
    hit = hit[np.argsort(light.particle[hit], kind="stable")]
    particle, sensor, photons = light.particle[hit], light.sensor[hit], photons[hit]
    sample, weight = thinned(rng, particle * SENSORS + sensor, photons)
    starts = np.flatnonzero(np.diff(particle, prepend=-1))
    total = np.add.reduceat(sample, starts) if len(starts) else sample
    for first, last in cuts(total, len(total), PHOTONS_AT_ONCE):
        stop = starts[last] if last < len(starts) else len(particle)
        part = slice(starts[first], stop)
        many = np.repeat(np.arange(part.start, part.stop), sample[part])
        time = light.direct_ns[hit[many]] + delays(rng, light.distance_m[hit[many]])
        time += rng.normal(0, JITTER_NS, len(many))
        pulses = merged(
            pulse_keys(particle[many], sensor[many], np.floor(time).astype(np.int64)), weight[many]
        )
        yield _readout(rng, pulses, noise_hz)


def merged(key: NDArray[np.int64], photons: NDArray[np.float64]) -> Pulses:
    """Merge photons on the same sensor that follow each other within 5 ns into pulses."""
    order = np.argsort(key)
    key = key[order]
    first = np.flatnonzero(np.diff(key, prepend=-(1 << 62)) >= MERGE_NS)
    return Pulses(key[first], np.add.reduceat(photons[order], first) if len(first) else photons)


def coincident(key: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether one of the two sensors above or below each sorted pulse has one within 1 µs."""
    has_neighbour = np.zeros(len(key), np.bool_)
    padded = np.append(key, np.iinfo(np.int64).max)
    for step in NEIGHBOURS:
        near = key + step * (1 << _TIME_BITS)
        has_neighbour |= padded[np.searchsorted(key, near - COINCIDENCE_NS)] <= near + COINCIDENCE_NS
    return has_neighbour


def triggered(key: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the events in which eight sensors are in coincidence within 5 µs, and when: event, time [N].

    key: the pulses in coincidence, sorted. Of a sensor the first counts.
    """
    first = key[np.flatnonzero(np.diff(key >> _TIME_BITS, prepend=-1))]
    by_time = np.sort(_by_time(first))
    last = by_time[TRIGGER_SENSORS - 1 :]
    start = by_time[: len(last)][last - by_time[: len(last)] <= TRIGGER_NS]
    event, at = np.unique(start >> _TIME_BITS, return_index=True)
    return event, _time(start[at])


def charges(rng: np.random.Generator, photons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draw the charge of pulses of some photons each, in photoelectrons: a multiple of 0.05, plus 0.025.

    One photon gives a Gaussian around 1, or an exponential in a quarter of the cases.
    """
    count = len(photons)
    one = np.where(
        rng.random(count) < EXPONENTIAL_SHARE, 0.1 + rng.exponential(0.5, count), rng.normal(1.0, 0.3, count)
    )
    more = np.maximum(photons - 1, 0)
    charge = np.maximum(one, 0.1) + np.maximum(0.9 * more + 0.4 * np.sqrt(more) * rng.normal(size=count), 0)
    return np.round(0.05 * np.floor(charge / 0.05) + 0.025, 3)


def thinned(
    rng: np.random.Generator, group: NDArray[np.int64], photons: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return how many photons to follow, and for how many each of them counts.

    group: the sensor of an event of each entry. More than 38 photons on a sensor are replaced by about 38
    heavier ones, of at most 3000 photoelectrons together.
    """
    _, index = np.unique(group, return_inverse=True)
    total = np.bincount(index, weights=photons)[index]
    weight = np.maximum(np.minimum(total, LARGEST_PE) / PULSES_PER_SENSOR, 1)
    share = photons * (np.minimum(total, LARGEST_PE) / total) / weight
    return np.floor(share + rng.random(len(share))).astype(np.int64), weight


def _readout(rng: np.random.Generator, pulses: Pulses, noise_hz: float) -> Recorded:
    """Trigger on pulses, cut out each event's window, add noise, and mark what is not in coincidence."""
    close = pulses.key[coincident(pulses.key)]
    particle, begin = triggered(close)
    begin = begin - BEFORE_NS
    row, pulse = _rows(particle, close)
    end = np.zeros(len(particle), np.int64)
    np.maximum.at(end, row, _time(close[pulse]) + AFTER_NS)
    length = end - begin
    row, pulse = _rows(particle, pulses.key)
    since = _time(pulses.key[pulse]) - begin[row]
    inside = np.flatnonzero((since >= 0) & (since < length[row]))
    pulse, number = pulse[inside], rng.poisson(noise_hz * 1e-9 * SENSORS * length)
    dark = np.repeat(np.arange(len(particle)), number)
    at = np.floor(rng.random(len(dark)) * length[dark]).astype(np.int64)
    signal = pulse_keys(row[inside], _sensor(pulses.key[pulse]), since[inside])
    key = np.concatenate([signal, pulse_keys(dark, rng.integers(0, SENSORS, len(dark)), at)])
    photons = np.concatenate([pulses.photons[pulse], np.ones(len(dark))])
    order = np.argsort(key, kind="stable")
    key, charge = key[order], charges(rng, photons[order])
    auxiliary = ~coincident(key)
    by_time = np.argsort(_by_time(key), kind="stable")
    return Recorded(
        particle,
        np.bincount(_event(key), minlength=len(particle)),
        _sensor(key[by_time]).astype(np.int16),
        _time(key[by_time]) + TRIGGER_AT_NS - BEFORE_NS,
        charge[by_time],
        auxiliary[by_time],
    )


def _rows(particle: NDArray[np.int64], key: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the pulses of some particles: the row among the particles and that among the pulses, [M] each."""
    row = np.searchsorted(particle, _event(key))
    pulse = np.flatnonzero(np.append(particle, -1)[row] == _event(key))
    return row[pulse], pulse


def pulse_keys(
    event: NDArray[np.integer], sensor: NDArray[np.integer], time_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the keys of pulses, [M], before they are sorted."""
    string, below = np.divmod(sensor, PER_STRING)
    slot = event * _EVENT_SLOTS + string * _STRING_SLOTS + below + _OUTERMOST
    return slot << _TIME_BITS | np.clip(time_ns + _TIME_ZERO, 0, (1 << _TIME_BITS - 1) - 1)


def _event(key: NDArray[np.int64]) -> NDArray[np.int64]:
    return (key >> _TIME_BITS) // _EVENT_SLOTS


def _sensor(key: NDArray[np.int64]) -> NDArray[np.int64]:
    string, slot = np.divmod((key >> _TIME_BITS) % _EVENT_SLOTS, _STRING_SLOTS)
    return string * PER_STRING + slot - _OUTERMOST


def _time(key: NDArray[np.int64]) -> NDArray[np.int64]:
    return (key & ((1 << _TIME_BITS) - 1)) - _TIME_ZERO


def _by_time(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Leave the sensor out of keys: in this order, the pulses of an event are sorted by time."""
    return _event(key) << _TIME_BITS | key & ((1 << _TIME_BITS) - 1)
