"""A gamma without a model: the sum of the light, its centre on the inner face, its depth and its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads import elementary
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, TIME, TIME_VALID
from crpipe.workloads.xec.sensors import INNER, INNER_RADIUS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.train.workload import Columns

    Floats = NDArray[np.float64]

LIGHT_CM_PER_NS = 29.9792458 / 1.65  # group velocity of the scintillation light in liquid xenon
DEEPEST_CM = 38.5  # of the xenon
_PITCH_AREA = 1.51 * 1.53  # cm^2 of the inner face for each of its sensors
_BLOCK = 128  # events at a time


def simple_reconstruction(events: Events, places: NDArray[np.floating[Any]]) -> Columns:
    """Estimate a gamma from sums over its sensors; finite for any event: {name: [N] float32}.

    photons_sum: all valid photons. u_cm, v_cm, w_cm: see ``centre``. gamma_time_ns: mean of the valid times,
    weighted by photons, each less the way of the light from that centre; 0 without a time.
    places: [4760, 6], as ``sensors.sensor_map``.
    """
    whole = events.items.reshape(-1, SENSORS, events.items.shape[1])
    found = [np.zeros((5, 0))]
    for first in range(0, len(whole), _BLOCK):
        block = whole[first : first + _BLOCK].astype(np.float64)
        photons = np.where(block[..., PHOTONS_VALID] > 0, block[..., PHOTONS], 0.0)
        u, v, w = centre(photons, places)
        time = _time(photons, block[..., TIME], block[..., TIME_VALID] > 0, point(u, v, w), places)
        found.append(np.stack([photons.sum(axis=1), u, v, w, time]))
    names = ("photons_sum", "u_cm", "v_cm", "w_cm", "gamma_time_ns")
    values = np.concatenate(found, axis=1).astype(np.float32)
    return dict(zip(names, values, strict=True))


def centre(photons: Floats, places: NDArray[np.floating[Any]]) -> tuple[Floats, Floats, Floats]:
    """Estimate where the light comes from: u, v, depth w, [N] each, in cm.

    photons: [N, 4760], 0 where not valid. u, v: mean over the inner face, weighted by the square of the
    photons; the middle of the face without light.

    w: a point at depth w sends the share A w / (4 pi r^3) of its photons to a small sensor of area A at the
    distance r. Over a wide face, (sum of photons)^2 / (sum of photons^2) is then 8 pi w^2 / A.
    """
    on_face = places[INNER.ids.ravel()]
    light = np.maximum(photons[:, INNER.ids.ravel()], 0.0)
    square = light**2
    total = square.sum(axis=1)
    weight = square / np.where(total > 0, total, 1.0)[:, None]
    v = INNER_RADIUS * elementary.arctan2(on_face[:, 1], -on_face[:, 0])
    sensors_lit = light.sum(axis=1) ** 2 / np.where(total > 0, total, 1.0)
    w = np.minimum(np.sqrt(_PITCH_AREA * sensors_lit / (8 * np.pi)), DEEPEST_CM)
    return weight @ on_face[:, 2], weight @ v, w


def point(u: Floats, v: Floats, w: Floats) -> Floats:
    """Turn u, v, w into x, y, z: [N, 3] in cm."""
    radius, angle = INNER_RADIUS + w, v / INNER_RADIUS
    return np.stack([-radius * np.cos(angle), radius * np.sin(angle), u], axis=-1)


def _time(
    photons: Floats,
    time: Floats,
    valid: NDArray[np.bool_],
    place: Floats,
    places: NDArray[np.floating[Any]],
) -> Floats:
    """Give the mean of the times of the light at its origin, weighted by photons: [N] in ns."""
    event, seen = np.nonzero(valid & (photons > 0))
    way = np.linalg.norm(place[event] - places[seen, :3], axis=1)
    weight = photons[event, seen]
    total = np.bincount(event, weight, len(place))
    moment = np.bincount(event, weight * (time[event, seen] - way / LIGHT_CM_PER_NS), len(place))
    return moment / np.where(total > 0, total, 1.0)
