"""Estimates without a model: the centre of the light, and what hidden sensors would have seen."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads.common import elementary
from crpipe.workloads.xec.sensors import FACE_IDS, INNER, INNER_RADIUS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

LIGHT_CM_PER_NS = 29.9792458 / 1.65  # group velocity of the scintillation light in liquid xenon
DEEPEST_CM = 38.5  # of the xenon
PITCH_AREA_CM2 = 1.51 * 1.53  # of the inner face for each of its sensors


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
    w = np.minimum(np.sqrt(PITCH_AREA_CM2 * sensors_lit / (8 * np.pi)), DEEPEST_CM)
    return weight @ on_face[:, 2], weight @ v, w


def point(u: Floats, v: Floats, w: Floats) -> Floats:
    """Turn u, v, w into x, y, z: [N, 3] in cm."""
    radius, angle = INNER_RADIUS + w, v / INNER_RADIUS
    return np.stack([-radius * np.cos(angle), radius * np.sin(angle), u], axis=-1)


# What a hidden sensor would have seen, from the sensors around it: two averages to compare a model with.

NEAR_CM = 20.0
_SHALLOWEST_CM = 1.0  # nearer to the face, a sensor is not a point, and the centre is not known well enough
_LEAST_COSINE = 0.02  # light that is scattered reaches sensors that do not face the centre
_EVENTS_AT_ONCE = 64  # events at a time
_HIDDEN = 2048  # hidden sensors at a time: each has up to 550 neighbours


def neighbour_average(
    photons: NDArray[Any], valid: NDArray[Any], hidden: Flags, places: NDArray[np.floating[Any]]
) -> NDArray[np.float32]:
    """Estimate hidden sensors by the mean photons of the sensors within 20 cm on the same face.

    photons, valid, hidden: [N, 4760]; neighbours count where they are valid and not hidden. Return one
    estimate for each hidden sensor, in the order of ``np.nonzero(hidden)``; 0 without a neighbour.
    places: [4760, 6], as ``sensors.sensor_map``.
    """
    parts = [np.zeros(0, np.float32)]
    for first in range(0, len(hidden), _EVENTS_AT_ONCE):
        mine = slice(first, first + _EVENTS_AT_ONCE)
        shown = _shown(photons[mine], valid[mine], hidden[mine])
        parts.append(_average(shown, hidden[mine], np.ones(shown.shape), places))
    return np.concatenate(parts)


def solid_angle_average(
    photons: NDArray[Any], valid: NDArray[Any], hidden: Flags, places: NDArray[np.floating[Any]]
) -> NDArray[np.float32]:
    """Estimate hidden sensors as ``neighbour_average`` does, for light from the centre of the event.

    The sum of the neighbours' photons, times the ratio of the solid angles, its own to all of theirs, as seen
    from ``baseline.centre`` of the sensors that are not hidden: for Poisson counts, the most likely value.
    """
    parts = [np.zeros(0, np.float32)]
    for first in range(0, len(hidden), _EVENTS_AT_ONCE):
        mine = slice(first, first + _EVENTS_AT_ONCE)
        shown = _shown(photons[mine], valid[mine], hidden[mine])
        u, v, w = centre(shown.filled(0.0), places)
        offset = point(u, v, np.maximum(w, _SHALLOWEST_CM))[:, None] - places[:, :3]
        distance = np.linalg.norm(offset, axis=2)
        cosine = np.einsum("nsi,si->ns", offset, places[:, 3:]) / distance
        parts.append(_average(shown, hidden[mine], np.maximum(cosine, _LEAST_COSINE) / distance**2, places))
    return np.concatenate(parts)


def _shown(photons: NDArray[Any], valid: NDArray[Any], hidden: Flags) -> Any:
    """Mask what is hidden or not valid."""
    return np.ma.masked_array(np.asarray(photons, np.float64), hidden | (np.asarray(valid) == 0))


def _average(
    shown: Any, hidden: Flags, share: Floats, places: NDArray[np.floating[Any]]
) -> NDArray[np.float32]:
    """Estimate by the neighbours' photons per share, times the own share.

    share: [N, 4760], > 0: the light expected in each sensor, in any unit.
    """
    near = _near(np.ascontiguousarray(places[:, :3], np.float64).tobytes())
    # One more sensor, without light, stands for a neighbour that is not there.
    light, weight = (np.pad(each, ((0, 0), (0, 1))) for each in (shown.filled(0.0), share * ~shown.mask))
    event, number = np.nonzero(hidden)
    estimates = np.zeros(len(event), np.float32)
    for first in range(0, len(event), _HIDDEN):
        mine = slice(first, first + _HIDDEN)
        cells = near[number[mine]] + light.shape[1] * event[mine, None]
        total = weight.take(cells).sum(axis=1)
        expected = light.take(cells).sum(axis=1) / np.where(total > 0, total, np.inf)
        estimates[mine] = share[event[mine], number[mine]] * expected
    return estimates


@lru_cache(maxsize=2)
def _near(places: bytes) -> NDArray[np.int64]:
    """Find the sensors within 20 cm of each one on its face: [4760, K], 4760 where there are no more.

    Each sensor is among its own; where it is hidden, that does not count.
    """
    positions = np.frombuffer(places).reshape(-1, 3)
    neighbours: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(positions)
    for ids in FACE_IDS.values():
        for sensor in ids:
            apart = np.linalg.norm(positions[ids] - positions[sensor], axis=1)
            neighbours[sensor] = ids[apart <= NEAR_CM]
    near = np.full((len(positions), max(map(len, neighbours))), len(positions), np.int64)
    for row, ids in zip(near, neighbours, strict=True):
        row[: len(ids)] = ids
    return near
