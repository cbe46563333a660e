"""What a hidden sensor would have seen, from the sensors around it: two averages to compare a model with."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads.xec.scoring.baseline import centre, point
from crpipe.workloads.xec.sensors import FACE_IDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

NEAR_CM = 20.0
_SHALLOWEST_CM = 1.0  # nearer to the face, a sensor is not a point, and the centre is not known well enough
_LEAST_COSINE = 0.02  # light that is scattered reaches sensors that do not face the centre
_BLOCK = 64  # events at a time
_HIDDEN = 2048  # hidden sensors at a time: each has up to 550 neighbours


def neighbour_average(
    photons: NDArray[Any], valid: NDArray[Any], hidden: Flags, places: NDArray[np.floating[Any]]
) -> NDArray[np.float32]:
    """Estimate hidden sensors by the mean photons of the sensors within 20 cm on the same face.

    photons, valid, hidden: [N, 4760]; neighbours count where they are valid and not hidden. Give one
    estimate for each hidden sensor, in the order of ``np.nonzero(hidden)``; 0 without a neighbour.
    places: [4760, 6], as ``sensors.sensor_map``.
    """
    found = [np.zeros(0, np.float32)]
    for first in range(0, len(hidden), _BLOCK):
        mine = slice(first, first + _BLOCK)
        shown = _shown(photons[mine], valid[mine], hidden[mine])
        found.append(_average(shown, hidden[mine], np.ones(shown.shape), places))
    return np.concatenate(found)


def solid_angle_average(
    photons: NDArray[Any], valid: NDArray[Any], hidden: Flags, places: NDArray[np.floating[Any]]
) -> NDArray[np.float32]:
    """Estimate hidden sensors as ``neighbour_average`` does, for light from the centre of the event.

    The sum of the neighbours' photons, times the ratio of the solid angles, its own to all of theirs, as seen
    from ``baseline.centre`` of the sensors that are not hidden: for Poisson counts, the most likely value.
    """
    found = [np.zeros(0, np.float32)]
    for first in range(0, len(hidden), _BLOCK):
        mine = slice(first, first + _BLOCK)
        shown = _shown(photons[mine], valid[mine], hidden[mine])
        u, v, w = centre(shown.filled(0.0), places)
        offset = point(u, v, np.maximum(w, _SHALLOWEST_CM))[:, None] - places[:, :3]
        distance = np.linalg.norm(offset, axis=2)
        cosine = np.einsum("nsi,si->ns", offset, places[:, 3:]) / distance
        found.append(_average(shown, hidden[mine], np.maximum(cosine, _LEAST_COSINE) / distance**2, places))
    return np.concatenate(found)


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
    found = np.zeros(len(event), np.float32)
    for first in range(0, len(event), _HIDDEN):
        mine = slice(first, first + _HIDDEN)
        cells = near[number[mine]] + light.shape[1] * event[mine, None]
        total = weight.take(cells).sum(axis=1)
        expected = light.take(cells).sum(axis=1) / np.where(total > 0, total, np.inf)
        found[mine] = share[event[mine], number[mine]] * expected
    return found


@lru_cache(maxsize=2)
def _near(places: bytes) -> NDArray[np.int64]:
    """Find the sensors within 20 cm of each one on its face: [4760, K], 4760 where there are no more.

    Each sensor is among its own; where it is hidden, that does not count.
    """
    positions = np.frombuffer(places).reshape(-1, 3)
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(positions)
    for ids in FACE_IDS.values():
        for each in ids:
            apart = np.linalg.norm(positions[ids] - positions[each], axis=1)
            found[each] = ids[apart <= NEAR_CM]
    near = np.full((len(positions), max(map(len, found))), len(positions), np.int64)
    for each, ids in zip(near, found, strict=True):
        each[: len(ids)] = ids
    return near
