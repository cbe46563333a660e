"""The detector: where its 5160 sensors are, and the table ``sensor_geometry.csv``."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

STRINGS, PER_STRING = 86, 60
SENSORS = STRINGS * PER_STRING
SPACING_M, STEP_M, JITTER_M = 125.0, 17.0, 1.0
_RINGS = 6  # of a hexagon with more places than there are strings
_JITTER_SEED = 86


@lru_cache(maxsize=1)
def strings() -> NDArray[np.float64]:
    """Give the places of the strings and of their topmost sensors: [STRINGS, 3], in m.

    The 86 places of a triangular grid that are nearest to the centre, numbered row by row from the smallest
    y, as in IceCube; each is moved by about a metre. Rounded to a centimetre, as the table is.
    """
    row, place = (axis.ravel() for axis in np.mgrid[-_RINGS : _RINGS + 1, -_RINGS : _RINGS + 1])
    x, y = SPACING_M * (place + row / 2), SPACING_M * np.sqrt(3) / 2 * row
    nearest = np.sort(np.argsort(np.round(np.hypot(x, y)), kind="stable")[:STRINGS])
    top = np.full(STRINGS, STEP_M * (PER_STRING - 1) / 2)
    moved = np.random.default_rng(_JITTER_SEED).normal(0, JITTER_M, (STRINGS, 3))
    places: NDArray[np.float64] = np.round(np.stack([x[nearest], y[nearest], top], axis=1) + moved, 2)
    return places


def sensors() -> NDArray[np.float64]:
    """Give the places of the sensors, string by string from the top: [SENSORS, 3], in m; row is sensor_id."""
    places = np.repeat(strings(), PER_STRING, axis=0)
    places[:, 2] -= STEP_M * np.tile(np.arange(PER_STRING), STRINGS)
    return places


def write_geometry(path: Path) -> None:
    """Write the table ``sensor_geometry.csv``: sensor_id, x, y, z."""
    rows = (f"{sensor},{x:.2f},{y:.2f},{z:.2f}" for sensor, (x, y, z) in enumerate(sensors()))
    path.write_text("\n".join(("sensor_id,x,y,z", *rows)) + "\n", encoding="utf-8")
