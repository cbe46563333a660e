"""An event: the pulses of one trigger, and the direction that the neutrino came from."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.events.expectations import Expectations
from crpipe.events.layout import Field, Layout
from crpipe.workloads.common import elementary
from crpipe.workloads.common.raw_files import read_csv_columns

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

EXACT_NS = 2**24  # times up to here are exact as float32
PULSE = (
    Field("sensor_id", "float32", "", 0, 65535, "row of the geometry table"),
    Field("time_ns", "float32", "ns", 0, EXACT_NS, "time in the trigger's window"),
    Field("charge_pe", "float32", "photoelectrons", 0, 1e7, "charge"),
    Field("auxiliary", "float32", "", 0, 1, "1 for a pulse that is not in hard local coincidence"),
)
TRUTH = (
    Field("azimuth", "float64", "rad", 0, 2 * math.pi, "azimuth that the neutrino came from"),
    Field("zenith", "float64", "rad", 0, math.pi, "zenith angle that it came from; 0: straight from above"),
)
ENERGY = Field("energy_gev", "float64", "GeV", 0, 1e15, "energy of the neutrino or of its muon")


# The medians show another unit.
EXPECTATIONS = Expectations(
    typical={"energy_gev": (0.5, 1e9), "pulses.time_ns": (20, 1e6), "pulses.charge_pe": (0.03, 100)}
)


def pulses(*more: Field) -> Layout:
    """Return the layout of the pulses of an event, with further event columns.

    Times of up to 2**24 ns are exact as float32.
    """
    number = Field("event_id", "int64", "", 0, 2**63 - 1, "number of the event")
    return Layout("pulses", (number, *TRUTH, *more), PULSE, group=("event_id",), key=("event_id",))


PULSES_WITH_ENERGY = pulses(ENERGY)


# Directions as azimuth and zenith, as unit vectors, and the angle between two of them.
#
# A direction is where the neutrino came from, not where it goes: zenith 0 is straight from above.


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
    """Return the angle between vectors [N, 3] of any length, in rad: [N].

    atan2 of cross and scalar product is exact for small angles too, where arccos loses half of the digits.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    cross = np.linalg.norm(np.cross(first, second), axis=-1)
    return elementary.arctan2(cross, np.sum(first * second, axis=-1))


# The side table ``geometry``: where each sensor is.

COLUMNS = ("sensor_id", "x", "y", "z")
_FARTHEST_M = 1e5


@lru_cache(maxsize=4)
def read_geometry(path: Path) -> NDArray[np.float32]:
    """Read sensor_geometry.csv: positions [S, 3] in m, the row is the sensor_id.

    Columns: sensor_id, x, y, z; further ones are ignored. Raise FormatError for a table without them, with
    other ids than 0 to S-1 in order, or with positions that are not finite numbers of metres: a normalised
    table would train without a word and be wrong everywhere else.
    """
    ids, *axes = read_csv_columns(path, COLUMNS)
    places = np.stack(axes, axis=1)
    wrong = np.flatnonzero(ids != np.arange(len(ids)))
    if not len(ids) or len(wrong):
        row = int(wrong[0]) if len(wrong) else 0
        value = ids[row] if len(ids) else "no row"
        raise FormatError(f"{path}: row {row}: expected sensor_id {row}, found {value}; sort the table by it")
    if not (np.isfinite(places).all() and np.abs(places).max() < _FARTHEST_M):
        raise FormatError(f"{path}: positions must be finite and within ±{_FARTHEST_M:g} m")
    if np.abs(places).max() < 10:  # noqa: PLR2004 - the smallest telescopes are larger
        raise FormatError(
            f"{path}: all sensors are within {np.abs(places).max():g} m of the centre; give positions in m, "
            "not normalised ones"
        )
    return places.astype(np.float32)
