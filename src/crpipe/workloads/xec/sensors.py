"""Where the 4,760 photosensors are, by formula, and how they lie beside each other on six faces.

The detector is a sector of a cylinder about the z axis, filled with xenon. Its inner face is covered by small
sensors (MPPC), all others by photomultipliers (PMT). Along a face v = R·angle runs around the axis, u = z
along it. Lengths in cm, from the public positions of xec-ml-wl, which the formula reproduces to 0.1 cm.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv

from crpipe.core.errors import FormatError
from crpipe.workloads.common import elementary
from crpipe.workloads.common.raw_files import read_csv_columns
from crpipe.workloads.xec.layout import SENSORS, Face

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

INNER_RADIUS = 64.84  # of the face, from which depth w is counted; its sensors' centres are at 64.97
MPPCS = 4092
COLUMNS = ("sensor_id", "x", "y", "z", "nx", "ny", "nz")
FACES: tuple[Face, ...] = get_args(Face)
_HEX_ROWS = (11, 12, 11, 12, 13, 14)


@dataclass(frozen=True, slots=True)
class Grid:
    """Sensors that lie in rows and columns: ids [rows, columns]."""

    name: str
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HexRows:
    """Sensors that lie in rows shifted by half a pitch: ids of all, [n], row after row."""

    name: str
    ids: NDArray[np.int64]
    rows: tuple[int, ...] = _HEX_ROWS


INNER = Grid("inner", np.arange(4092).reshape(93, 44))
OUTER = Grid("outer", np.arange(4092, 4308).reshape(24, 9))  # with 12 of them moved together, see CENTRE
US = Grid("us", np.arange(4308, 4452).reshape(24, 6))
DS = Grid("ds", np.arange(4452, 4596).reshape(24, 6))
TOP = HexRows("top", np.arange(4596, 4669))
BOTTOM = HexRows("bottom", np.arange(4669, 4742))
# The dense middle of the outer face, 6 by 5: 12 sensors of OUTER and 18 more.
CENTRE = Grid(
    "outer centre",
    np.array(
        [
            [4185, 4742, 4186, 4743, 4187],
            [4744, 4745, 4746, 4747, 4748],
            [4194, 4749, 4195, 4750, 4196],
            [4203, 4751, 4204, 4752, 4205],
            [4753, 4754, 4755, 4756, 4757],
            [4212, 4758, 4213, 4759, 4214],
        ]
    ),
)
GRIDS = (INNER, OUTER, US, DS, CENTRE)
HEXES = (TOP, BOTTOM)
_OUTER_IDS = np.union1d(OUTER.ids, CENTRE.ids)
FACE_IDS: dict[Face, NDArray[np.int64]] = {
    "inner": INNER.ids.ravel(),
    "outer": _OUTER_IDS,
    "us": US.ids.ravel(),
    "ds": DS.ids.ravel(),
    "top": TOP.ids,
    "bottom": BOTTOM.ids,
}

# Centres of the sensors, in cm and degrees of the angle about the axis.
_INNER_CENTRES = 64.97
_OUTER_CENTRES = 106.27
_HALF_ANGLE = {"inner": 62.09, "outer": 60.15, "side": 60.14, "end": 62.8}
_MOST_NEIGHBOUR_PITCHES = 2.0
_MOST_SCALE = 2.0


def face_of() -> NDArray[np.int64]:
    """Return the number of the face of each sensor, as in FACES: [4760]."""
    faces = np.full(SENSORS, -1, np.int64)
    for number, name in enumerate(FACES):
        faces[FACE_IDS[name]] = number
    return faces


def sensor_map() -> NDArray[np.float64]:
    """Place all sensors: [4760, 6], x, y, z of the centre and the normal into the xenon."""
    places = np.full((SENSORS, 6), np.nan)
    v = np.linspace(_HALF_ANGLE["inner"], -_HALF_ANGLE["inner"], 93)[:, None]
    places[INNER.ids] = _curved(_INNER_CENTRES, v, np.linspace(-32.46, 32.46, 44), 1.0)
    v = np.linspace(_HALF_ANGLE["outer"], -_HALF_ANGLE["outer"], 24)[:, None]
    places[OUTER.ids] = _curved(_OUTER_CENTRES, v, np.linspace(-41.42, 41.42, 9), -1.0)
    v = np.linspace(8.72, -8.72, 6)[:, None]
    places[CENTRE.ids] = _curved(_OUTER_CENTRES, v, np.linspace(-12.4, 12.4, 5), -1.0)
    v = np.linspace(_HALF_ANGLE["side"], -_HALF_ANGLE["side"], 24)[:, None]
    radius = np.linspace(69.53, 102.95, 6)
    tilt = elementary.arctan2(46.84 - 35.15, 102.95 - 69.53)  # the sides open outwards
    for face, side in ((US, -1.0), (DS, 1.0)):
        z = side * np.linspace(35.15, 46.84, 6)
        places[face.ids, :3] = _cylinder(radius, v, z)
        places[face.ids, 3:] = _cylinder(np.full(6, np.sin(tilt)), v, np.full(6, -side * np.cos(tilt)))
    for end, side in ((TOP, 1.0), (BOTTOM, -1.0)):
        rows = np.repeat(np.arange(len(end.rows)), end.rows)
        column = np.concatenate([np.arange(n) - (n - 1) / 2 for n in end.rows])
        angle = np.full(len(rows), side * _HALF_ANGLE["end"])
        places[end.ids, :3] = _cylinder(68.27 + 6.91 * rows, angle, 6.12 * column)
        around = np.radians(side * _HALF_ANGLE["end"])
        places[end.ids, 3:] = [-side * np.sin(around), -side * np.cos(around), 0.0]
    return places


def uvw(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return places [N, 3] along the axis, around it on the inner face, and behind that face: [N, 3], cm."""
    x, y, z = places.T
    coordinates = [z, INNER_RADIUS * elementary.arctan2(y, -x), np.hypot(x, y) - INNER_RADIUS]
    return np.stack(coordinates, axis=1)


def _cylinder(radius: Any, degrees: Any, z: Any) -> NDArray[np.float64]:
    """Turn radius, angle about the axis and z into x, y, z; broadcasts, and adds a last axis of 3."""
    angle = np.radians(degrees)
    return np.stack(np.broadcast_arrays(-radius * np.cos(angle), radius * np.sin(angle), z), axis=-1)


def _curved(radius: float, degrees: Any, z: Any, outward: float) -> NDArray[np.float64]:
    """Place sensors on a cylinder; outward: 1 where they look away from the axis, -1 towards it."""
    normal = _cylinder(outward, degrees, np.zeros_like(z))
    return np.concatenate([_cylinder(radius, degrees, z), normal], axis=-1)


def write_sensor_map(path: Path) -> None:
    """Write the sensors' places as CSV: sensor_id, x, y, z, nx, ny, nz."""
    places = sensor_map().round(4)
    columns = [np.arange(SENSORS), *places.T]
    pyarrow.csv.write_csv(pa.table(dict(zip(COLUMNS, columns, strict=True))), path)


def read_sensor_map(path: Path) -> NDArray[np.float64]:
    """Read a sensor map as ``write_sensor_map`` writes it: [4760, 6].

    Raise FormatError for a table of other columns or rows, for numbers that are not finite or not in cm, and
    for places in which sensors that the model takes for neighbours are far apart (``check_grid``).
    """
    ids, *values = read_csv_columns(path, COLUMNS)
    if len(ids) != SENSORS or (ids != np.arange(SENSORS)).any():
        raise FormatError(f"{path}: expected the sensors 0 to {SENSORS - 1} in order, found {len(ids)} rows")
    places = np.stack(values, axis=1)
    if not np.isfinite(places).all():
        raise FormatError(f"{path}: sensor {int(np.argmin(np.isfinite(places).all(1)))}: not finite")
    scale = float(np.median(np.hypot(*places[:, :2].T)) / np.median(np.hypot(*sensor_map()[:, :2].T)))
    if not 1 / _MOST_SCALE < scale < _MOST_SCALE:
        raise FormatError(
            f"{path}: the sensors are {scale:.3g} times as far from the axis as those of the detector; write "
            "x, y and z in cm"
        )
    try:
        for face in (*GRIDS, *HEXES):
            check_grid(face, places[:, :3])
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    return places


def check_grid(grid: Grid | HexRows, places: NDArray[np.float64]) -> None:
    """Raise FormatError when neighbours in the grid are more than twice the face's pitch apart.

    places: [4760, 3] in cm. A grid filled in the wrong order, as 9 by 24 for 24 by 9, has such neighbours.
    The pitch is the median distance to the nearest sensor of the face, which no order changes.
    """
    pairs = _pairs_in_rows(grid) if isinstance(grid, HexRows) else _pairs_in_grid(grid)
    apart = np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)
    worst, pitch = int(np.argmax(apart)), _pitch(places[grid.ids.ravel()])
    if not apart[worst] <= _MOST_NEIGHBOUR_PITCHES * pitch:
        first, second = sorted(pairs[worst].tolist())
        shape = " by ".join(map(str, grid.ids.shape)) if isinstance(grid, Grid) else f"rows of {grid.rows}"
        raise FormatError(
            f"face {grid.name} as {shape}: the sensors {first} and {second} would be neighbours, "
            f"but are {apart[worst]:.1f} cm apart (pitch {pitch:.1f} cm); check the order of the sensors"
        )


def _pitch(places: NDArray[np.float64]) -> float:
    """Return the median distance to the nearest sensor, of about 300 sensors of a face: places [n, 3]."""
    some = places[:: -(-len(places) // 300)]
    apart = np.linalg.norm(some[:, None] - places, axis=2)
    return float(np.median(np.partition(apart, 1, axis=1)[:, 1]))  # the first one is the sensor itself


def _pairs_in_grid(grid: Grid) -> NDArray[np.int64]:
    """Return the sensors beside each other in rows and columns: [pairs, 2]."""
    ids = grid.ids
    below = np.stack([ids[1:].ravel(), ids[:-1].ravel()], axis=1)
    beside = np.stack([ids[:, 1:].ravel(), ids[:, :-1].ravel()], axis=1)
    return np.concatenate([below, beside])


def _pairs_in_rows(face: HexRows) -> NDArray[np.int64]:
    """Return the sensors beside each other in shifted rows, of which each has one more or less: [pairs, 2].

    With rows of 2 and 3, numbered 0 1 / 2 3 4: 0-1, 2-3, 3-4, then 0-2, 1-3 and 0-3, 1-4.
    """
    rows = np.split(face.ids, np.cumsum(face.rows)[:-1])
    pairs = [np.stack([row[1:], row[:-1]], axis=1) for row in rows]
    for first, second in pairwise(rows):
        few, many = sorted((first, second), key=len)
        pairs += [np.stack([few, many[:-1]], axis=1), np.stack([few, many[1:]], axis=1)]
    return np.concatenate(pairs)


def neighbours(places: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the nearest sensors of each sensor, nearest first, without itself: [4760, count].

    places: [4760, 3] in cm.
    """
    total = len(places)
    ids = np.empty((total, count), np.int64)
    for first in range(0, total, 256):
        part = places[first : first + 256]
        apart = np.zeros((len(part), total))
        for axis in range(3):
            apart += np.square(part[:, axis, None] - places[:, axis])
        # Whole numbers that sort by distance in steps of 1e-6 cm², and by the sensor where those are equal.
        order = np.rint(apart * 1e6).astype(np.int64) * total + np.arange(total)
        order[np.arange(len(part)), first + np.arange(len(part))] = np.iinfo(np.int64).max
        nearest = np.sort(np.partition(order, count, axis=1)[:, :count], axis=1)
        ids[first : first + 256] = nearest % total
    return ids
