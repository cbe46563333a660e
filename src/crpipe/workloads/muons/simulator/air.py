"""The US standard atmosphere above deep ice, along straight lines to the surface of a sphere.

Lengths are in m, from the surface along the line; depths in g/cm2, of air passed along the line.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EARTH_RADIUS_M = 6_374_134.0  # at the surface
SURFACE_M, TOP_M = 2835.0, 100_000.0  # above the sea: the ice at the South Pole, and where showers begin
# Linsley's parameters (CORSIKA user's guide, atmosphere 1): the vertical depth is b exp(-altitude / c)
# and a constant, which does not matter here.
_LAYERS_M = (4e3, 1e4, 4e4)
_B = np.array([1222.6562, 1144.9069, 1305.5948, 540.1778])
_C_M = np.array([9941.8638, 8781.5355, 6361.4304, 7721.7016])
_COSINES, _KNOTS = 129, 513
_LEAST_G_CM2 = 1e-3


class Air:
    """The air above a surface ``surface_m`` over the sea; cosines are those of zenith angles there."""

    def __init__(self, surface_m: float = SURFACE_M) -> None:
        self._surface = surface_m
        altitude = np.linspace(surface_m, TOP_M, 4_001)
        layer = np.digitize((altitude[1:] + altitude[:-1]) / 2, _LAYERS_M)
        middle = _B[layer] / _C_M[layer] * np.exp(-(altitude[1:] + altitude[:-1]) / 2 / _C_M[layer])
        self._log_depth, self._altitude = np.empty((_COSINES, _KNOTS)), np.empty((_COSINES, _KNOTS))
        for row, cosine in enumerate(np.linspace(0, 1, _COSINES)):
            each = middle * np.diff(self.length(altitude, cosine))
            log_depth = np.log(_LEAST_G_CM2 + np.append(np.cumsum(each[::-1])[::-1], 0))
            knots = np.linspace(surface_m, TOP_M, _KNOTS), np.linspace(log_depth[-1], log_depth[0], _KNOTS)
            self._log_depth[row] = np.interp(knots[0], altitude, log_depth)
            self._altitude[row] = np.interp(knots[1], log_depth[::-1], altitude[::-1])

    def length(self, altitude_m: Floats, cosine: Any) -> Floats:
        """Return the length of the line from the surface up to an altitude."""
        above, along = altitude_m - self._surface, EARTH_RADIUS_M * cosine
        return np.asarray(np.sqrt(along**2 + above * (2 * EARTH_RADIUS_M + above)) - along)

    def depth(self, length_m: Floats, cosine: Floats) -> Floats:
        """Return the air that a line has passed where this length of it is left."""
        radius = np.sqrt(EARTH_RADIUS_M**2 + length_m * (length_m + 2 * EARTH_RADIUS_M * cosine))
        above = (radius - EARTH_RADIUS_M) / (TOP_M - self._surface)
        return np.asarray(np.exp(_between(self._log_depth, cosine, above)) - _LEAST_G_CM2)

    def length_at(self, depth: Floats, cosine: Floats) -> Floats:
        """Return the length that is left where a line has passed this much air; 0 if it never has."""
        surface = _between(self._log_depth, cosine, np.zeros(len(cosine)))
        least = np.log(_LEAST_G_CM2)
        passed = (np.log(depth + _LEAST_G_CM2) - least) / (surface - least)
        return self.length(_between(self._altitude, cosine, np.minimum(passed, 1)), cosine)


@cache
def standard_air() -> Air:
    """Return the air above the ice at the South Pole."""
    return Air()


def _between(table: Floats, cosine: Floats, at: Floats) -> Floats:
    """Interpolate a table in both of its variables, each from 0 to 1."""
    row, column = cosine * (_COSINES - 1), np.clip(at, 0, 1) * (_KNOTS - 1)
    i = np.minimum(row.astype(np.intp), _COSINES - 2)
    j = np.minimum(column.astype(np.intp), _KNOTS - 2)
    first, second, flat = row - i, column - j, table.ravel()
    corner = i * _KNOTS + j
    low = flat[corner] * (1 - second) + flat[corner + 1] * second
    high = flat[corner + _KNOTS] * (1 - second) + flat[corner + _KNOTS + 1] * second
    return np.asarray(low * (1 - first) + high * first)
