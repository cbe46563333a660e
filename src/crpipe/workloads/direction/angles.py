"""Directions as azimuth and zenith, as unit vectors, and the angle between two of them.

A direction is where the neutrino came from, not where it goes: zenith 0 is straight from above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads import elementary

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def unit_vectors(azimuth: ArrayLike, zenith: ArrayLike) -> NDArray[np.float64]:
    """Turn angles in rad, [N] each, into unit vectors [N, 3]."""
    azimuth, zenith = np.asarray(azimuth, np.float64), np.asarray(zenith, np.float64)
    flat = np.sin(zenith)
    return np.stack([np.cos(azimuth) * flat, np.sin(azimuth) * flat, np.cos(zenith)], axis=-1)


def azimuth_zenith(vectors: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Turn vectors [N, 3] of any length into azimuths in [0, 2π) and zenith angles in [0, π], in rad."""
    x, y, z = np.moveaxis(np.asarray(vectors, np.float64), -1, 0)
    azimuth = elementary.arctan2(y, x) % (2 * np.pi)
    azimuth = np.where(azimuth < 2 * np.pi, azimuth, 0.0)  # a tiny negative angle is rounded to 2π
    return azimuth, elementary.arctan2(np.hypot(x, y), z)


def opening_angle(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Give the angle between vectors [N, 3] of any length, in rad: [N].

    atan2 of cross and scalar product is exact for small angles too, where arccos loses half of the digits.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    cross = np.linalg.norm(np.cross(first, second), axis=-1)
    angle: NDArray[np.float64] = elementary.arctan2(cross, np.sum(first * second, axis=-1))
    return angle
