"""The improved LineFit of IceCube (Aartsen et al., NIM A 736 (2014) 143): a fast estimate without a model.

A plane of light that moves through the detector with the velocity v: minimise, over v and the place at time
zero, the Huber loss of the distances between each pulse's sensor and the place that its time belongs to.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import cKDTree

from crpipe.events.batch import Events, cuts
from crpipe.workloads.direction.layout import azimuth_zenith

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Index = NDArray[np.int64]
    Times = NDArray[np.float32]

_FEWEST_SENSORS = 4  # with fewer in hard local coincidence, all pulses of the event count
# Published are 156 m, 778 ns and 153 m. On 2,800 simulated tracks and 1,200 cascades these give a median that
# is 8 % smaller and a mean that is 3 % smaller; on others of them, 2 % both. Weights by charge gain nothing.
_NEAR_M, _LATE_NS = 220.0, 1100.0  # a pulse so late after one so near is light that was scattered
_NEIGHBOURS = 192  # at most so many, the nearest: in IceCube without DeepCore's strings these are all
_HUBER_M = 80.0  # beyond, a distance counts linearly
_ITERATIONS = 10
_BLOCK = (128, 10_000)  # events and pulses at a time: tables that fit into a cache


def line_fit(events: Events, places: NDArray[np.floating[Any]]) -> tuple[Floats, Floats]:
    """Estimate where the neutrinos came from: azimuth and zenith, [N] each, in rad.

    events: items as in ``layout.PULSE``. places: [S, 3], positions of the sensors in m. Always finite: where
    the pulses have no direction (one sensor, one time), it is straight from above.
    """
    velocities = [np.zeros((3, 0))]
    for first, last in cuts(events.multiplicity, *_BLOCK):
        event, sensor, time = _chosen(events.part(first, last), places)
        velocities.append(_velocities(event, time, places.T[:, sensor].astype(np.float64), last - first))
    return azimuth_zenith(-np.concatenate(velocities, axis=1).T)


def _chosen(events: Events, places: NDArray[np.floating[Any]]) -> tuple[Index, Index, Times]:
    """Choose the pulses to fit: event, sensor and time, [H] each.

    Those in hard local coincidence where there are enough, and of these the ones that are not late.
    """
    event = np.repeat(np.arange(len(events)), events.multiplicity)
    sensor, time = events.items[:, 0].astype(np.int64), events.items[:, 1]
    cell = event * (len(places) + 1) + sensor
    shape = len(events), len(places) + 1
    selected = events.items[:, 3] == 0
    first = _first_times(cell[selected], time[selected], shape)
    few = np.count_nonzero(first < np.inf, axis=1) < _FEWEST_SENSORS
    if few.any():
        selected |= few[event]
        first = _first_times(cell[selected], time[selected], shape)
    selected &= time < _late(first, places)[cell]
    return event[selected], sensor[selected], time[selected]


def _first_times(cell: Index, time: Times, shape: tuple[int, int]) -> Times:
    """Return the time of the first pulse of each sensor of each event, infinite without one: [N, S + 1].

    The last column is a sensor that is never hit, which stands for a neighbour that is not there.
    """
    table = np.full(shape, np.inf, np.float32)
    np.minimum.at(table.reshape(-1), cell, time)
    return table


def _late(first: Times, places: NDArray[np.floating[Any]]) -> Times:
    """Return the time from which on a pulse is late, for each sensor that was hit: [N * (S + 1)].

    That is 1,100 ns after the first pulse of the sensor or of its neighbours within 220 m.
    """
    late = first.reshape(-1).copy()
    hit = np.flatnonzero(late < np.inf)
    event, sensor = np.divmod(hit, first.shape[1])
    near = _neighbours(places.tobytes(), str(places.dtype))[sensor] + (event * first.shape[1])[:, None]
    late[hit] = late[near].min(axis=1, initial=np.inf) + _LATE_NS
    return late


@lru_cache(maxsize=4)
def _neighbours(places: bytes, dtype: str) -> Index:
    """Find the sensors within 220 m of each one, itself among them: [S, K]; S where there are no more."""
    positions = np.frombuffer(places, dtype).reshape(-1, 3)
    _, near = cKDTree(positions).query(positions, range(1, _NEIGHBOURS + 1), distance_upper_bound=_NEAR_M)
    return near


def _velocities(event: Index, time: Times, positions: Floats, events: int) -> Floats:
    """Fit each event by iteratively reweighted least squares: velocities in m/ns, [3, N].

    event, time: [H], ordered by event; positions: [3, H].
    """

    def mean(values: Floats) -> Floats:
        return np.bincount(event, weight * values, events) / total

    weight = np.ones(len(event))
    total = np.maximum(np.bincount(event, weight, events), 1.0)
    from_mean = time - mean(time.astype(np.float64))[event]  # small numbers: nothing is lost in the squares
    velocity = np.zeros((3, events))
    for _ in range(_ITERATIONS):
        total = np.maximum(np.bincount(event, weight, events), 1e-300)
        moment = from_mean - mean(from_mean)[event]
        offset = positions - np.stack([mean(axis) for axis in positions])[:, event]
        spread = mean(moment**2)
        velocity = np.stack([mean(moment * axis) for axis in offset]) / np.where(spread > 0, spread, np.inf)
        distance = np.linalg.norm(offset - velocity[:, event] * moment, axis=0)
        weight = _HUBER_M / np.maximum(distance, _HUBER_M)
    return velocity
