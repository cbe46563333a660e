"""Which share of the light of a deposit each sensor sees: solid angle and absorption, in blocks of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads import elementary
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import MPPCS
from crpipe.workloads.xec.simulator.detector import (
    MPPC_SIDE_CM,
    PMT_RADIUS_CM,
    around,
    photosensors,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.xec.simulator.gammas import Deposits

PHOTONS_PER_GEV = 46e6 * 0.15  # 46 photons per keV, of which the sensors detect 15 %
ABSORPTION_CM = 70.0
NEAR_CM = 6.0, 20.0  # of an MPPC and of a PMT: nearer than this, area * cos / d^2 is more than 1 % off
_EDGE = 32  # points on the edge of a disc
_NEAR2 = np.square(np.where(np.arange(SENSORS) < MPPCS, *NEAR_CM)).astype(np.float32)


def mean_photons(deposits: Deposits) -> NDArray[np.float32]:
    """Give the photons that each sensor detects in the mean: [N, 4760]."""
    place = deposits.place.astype(np.float32)
    weight = (PHOTONS_PER_GEV * deposits.energy_gev).astype(np.float32)
    found = np.zeros((len(place), SENSORS), np.float32)
    every = np.arange(SENSORS)
    for each in range(place.shape[1]):
        found += weight[:, each, None] * shares(place[:, each, None], every)
    return found


def shares(place: NDArray[np.float32], sensor: NDArray[np.int64]) -> NDArray[np.float32]:
    """Give the share of the light from places [..., 3], in cm, that reaches sensors [...]; both broadcast."""
    all_ = photosensors()
    x, y, z = (place[..., 0] - all_.x[sensor], place[..., 1] - all_.y[sensor], place[..., 2] - all_.z[sensor])
    square = x * x + y * y + z * z
    height = x * all_.nx[sensor] + y * all_.ny[sensor] + z * all_.nz[sensor]
    angle, horizon = around(place[..., 0], place[..., 1])
    seen = (height > 0) & (np.abs(angle - all_.angle[sensor]) < horizon + all_.horizon[sensor])
    distance = np.sqrt(square)
    solid = all_.area[sensor] * height / (square * distance)
    near = np.nonzero(seen & (square < _NEAR2[sensor]))
    which = np.broadcast_to(sensor, square.shape)[near]
    solid[near] = solid_angle(x[near], y[near], z[near], which)
    result: NDArray[np.float32] = solid * np.exp(distance * np.float32(-1 / ABSORPTION_CM)) * seen
    return result * np.float32(0.25 / np.pi)


def solid_angle(
    x: NDArray[np.float32], y: NDArray[np.float32], z: NDArray[np.float32], sensor: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Give the solid angle of sensors [M] from points x, y, z [M], in cm from their centres, before them."""
    all_ = photosensors()
    nx, ny, nz = all_.nx[sensor], all_.ny[sensor], all_.nz[sensor]
    height = (x * nx + y * ny + z * nz).astype(np.float64)
    beside = np.sqrt(np.maximum(x * x + y * y + z * z - height**2, 0))
    small = sensor < MPPCS
    found = np.empty(len(sensor))
    found[small] = rectangle(z[small], (x * ny - y * nx)[small], height[small])
    found[~small] = disc(beside[~small], height[~small])
    return found


def rectangle(
    a: NDArray[np.floating], b: NDArray[np.floating], height: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Give the solid angle of an MPPC from points beside its centre by a and b along its sides: [M], cm."""
    found = np.zeros(np.shape(height))
    for sign_a in (-1, 1):
        for sign_b in (-1, 1):
            p = np.asarray(a, np.float64) * sign_a + MPPC_SIDE_CM / 2
            q = np.asarray(b, np.float64) * sign_b + MPPC_SIDE_CM / 2
            found += elementary.arctan2(p * q, height * np.sqrt(p**2 + q**2 + height**2))
    return found


def disc(beside: NDArray[np.floating], height: NDArray[np.floating]) -> NDArray[np.float64]:
    """Give the solid angle of a PMT's window from points beside its axis: [M], cm.

    Stokes' theorem makes it an integral around the edge, of (R^2 + R beside cos t) / (q (q + height)) dt with
    the distance q to the edge, which has no pole.
    """
    edge = (np.arange(_EDGE) + 0.5) * (2 * np.pi / _EDGE)
    mixed = PMT_RADIUS_CM**2 + PMT_RADIUS_CM * np.multiply.outer(beside, np.cos(edge))
    height = np.asarray(height, np.float64)[..., None]
    q = np.sqrt(height**2 + np.square(beside)[..., None] + 2 * mixed - PMT_RADIUS_CM**2)
    found: NDArray[np.float64] = (mixed / (q * (q + height))).mean(axis=-1) * (2 * np.pi)
    return found
