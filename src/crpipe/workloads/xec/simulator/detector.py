"""The sensors of the simulator: places, areas, gains, and which are dead; the same in every file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads import elementary
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import MPPCS, sensor_map

if TYPE_CHECKING:
    from numpy.typing import NDArray

MPPC_SIDE_CM, PMT_RADIUS_CM = 1.2, 2.25
GAIN_SPREAD = 0.04  # of one sensor, unknown to the calibration
_SEED = 4760

# The xenon: between two cylinders, two ends and two sides that open outwards.
FRONT_CM, BACK_CM, END_RAD = 64.97, 106.27, np.radians(62.8)
_SIDE_CM, _SIDE_AT_CM, _SIDE_SLOPE = 35.15, 69.53, (46.84 - 35.15) / (102.95 - 69.53)


@dataclass(frozen=True, slots=True)
class Photosensors:
    """All sensors, [4760] each: centre (cm), normal into the xenon, area (cm2), gain.

    angle: about the axis, in rad. horizon: the angle up to which light along the inner face reaches it.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    z: NDArray[np.float32]
    nx: NDArray[np.float32]
    ny: NDArray[np.float32]
    nz: NDArray[np.float32]
    area: NDArray[np.float32]
    gain: NDArray[np.float32]
    angle: NDArray[np.float32]
    horizon: NDArray[np.float32]


@lru_cache(maxsize=1)
def photosensors() -> Photosensors:
    """Give the sensors."""
    places = sensor_map().T
    mppc = np.arange(SENSORS) < MPPCS
    area = np.where(mppc, MPPC_SIDE_CM**2, np.pi * PMT_RADIUS_CM**2)
    gain = 1 + GAIN_SPREAD * np.random.default_rng([_SEED, 0]).standard_normal(SENSORS)
    angle, horizon = around(places[0], places[1])
    columns = (*places, area, gain, angle, horizon)
    return Photosensors(*(np.ascontiguousarray(column, np.float32) for column in columns))


def around(x: NDArray[np.floating], y: NDArray[np.floating]) -> tuple[NDArray[np.floating], ...]:
    """Give the angle about the axis and the angle to the horizon of points, in rad.

    Two points see each other past the inner face where their angles differ by less than the sum of both
    horizons: the straight line between them then stays outside the cylinder.
    """
    return elementary.arctan2(y, -x), elementary.arccos(np.minimum(FRONT_CM / np.hypot(x, y), 1))


def dead_sensors(fraction: float) -> NDArray[np.int64]:
    """Name the dead sensors, in order; those of a smaller fraction are among those of a larger one."""
    order = np.random.default_rng([_SEED, 1]).permutation(SENSORS)
    return np.sort(order[: round(fraction * SENSORS)])


def in_xenon(places: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Say which places [..., 3], in cm, are in the xenon."""
    x, y, z = np.moveaxis(places, -1, 0)
    radius = np.hypot(x, y)
    inside = (radius > FRONT_CM) & (radius < BACK_CM) & (np.abs(elementary.arctan2(y, -x)) < END_RAD)
    found: NDArray[np.bool_] = inside & (np.abs(z) < _SIDE_CM + _SIDE_SLOPE * (radius - _SIDE_AT_CM))
    return found
