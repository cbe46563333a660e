"""The sensors as images: which sensor is in which cell of which face, and which are beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads import elementary
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import DS, FACE_IDS, HEXES, INNER, US

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING = SENSORS  # the number of a cell without a sensor
RECTANGLES = ("inner", "outer", "us", "ds")
HEX_NEIGHBOURS = 6
_OUTER_CELLS = (48, 18)  # four for each sensor of the outer face, one or two for those of its dense middle


@dataclass(frozen=True, slots=True)
class Image:
    """A rectangular face: the sensor of each cell, [rows, columns], NOTHING in the margin."""

    name: str
    cells: NDArray[np.int64]

    def patches(self, patch: int) -> NDArray[np.int64]:
        """Cut the face into squares of cells: [P, patch · patch], row after row."""
        rows, columns = self.grid(patch)
        cut = self.cells.reshape(rows, patch, columns, patch).swapaxes(1, 2)
        return cut.reshape(rows * columns, patch * patch)

    def grid(self, patch: int) -> tuple[int, int]:
        """Give rows and columns of patches."""
        rows, columns = self.cells.shape
        return rows // patch, columns // patch


def images(places: NDArray[np.float64], multiple: int) -> list[Image]:
    """Lay out the four rectangular faces, with margins so that ``multiple`` divides rows and columns.

    places: [4760, 6]. A cell of the outer face, whose sensors are not evenly spaced, has the nearest one.
    """
    outer = _nearest(places, FACE_IDS["outer"], _OUTER_CELLS)
    found = {"inner": INNER.ids, "outer": outer, "us": US.ids, "ds": DS.ids}
    return [Image(name, _padded(found[name], multiple)) for name in RECTANGLES]


def _padded(ids: NDArray[np.int64], multiple: int) -> NDArray[np.int64]:
    margins = [(0, -length % multiple) for length in ids.shape]
    return np.pad(ids, margins, constant_values=NOTHING)


def _nearest(
    places: NDArray[np.float64], ids: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.int64]:
    """Give the nearest of the sensors ``ids`` for each cell of an even grid over them: ``shape``."""
    angle = elementary.arctan2(places[ids, 1], -places[ids, 0])
    around = angle * np.hypot(places[ids, 0], places[ids, 1])
    along = places[ids, 2]
    # The outermost sensors fill two cells: the grid ends half a cell beyond their centres.
    v = _centres(around.max(), around.min(), shape[0])
    u = _centres(along.min(), along.max(), shape[1])
    apart = np.square(v[:, None, None] - around) + np.square(u[None, :, None] - along)
    found: NDArray[np.int64] = ids[apart.argmin(axis=2)]
    return found


def _centres(first: float, last: float, cells: int) -> NDArray[np.float64]:
    """Spread cells so that the first two and the last two lie evenly about the outermost sensors."""
    pitch = (last - first) / (cells // 2 - 1)
    return np.linspace(first - pitch / 4, last + pitch / 4, cells)


def hex_neighbours(places: NDArray[np.float64]) -> NDArray[np.int64]:
    """Give the six neighbours of each sensor of a hexagonal face, by direction: [73, 6], 73 for none.

    places: [4760, 6]. Top and bottom mirror each other, so one table serves both. Found from the places: rows
    of different lengths are shifted in different ways.
    """
    top = places[HEXES[0].ids]
    flat = np.stack([np.hypot(top[:, 0], top[:, 1]), top[:, 2]], axis=1)
    apart = flat[None] - flat[:, None]
    distance = np.hypot(apart[..., 0], apart[..., 1])
    np.fill_diagonal(distance, np.inf)
    pitch = np.median(distance.min(axis=1))
    found = np.full((len(flat), HEX_NEIGHBOURS), len(flat), np.int64)
    sensor, other = np.nonzero(distance < 1.4 * pitch)
    angle = elementary.arctan2(apart[sensor, other, 0], apart[sensor, other, 1])
    direction = np.round(angle / (np.pi / 3)).astype(np.int64) % HEX_NEIGHBOURS
    found[sensor, direction] = other
    return found


def cells_of_sensors(faces: list[Image]) -> NDArray[np.int64]:
    """Give the cell of each sensor among those of all faces, end to end, then top and bottom: [4760].

    Of several cells with the same sensor the first counts.
    """
    all_cells = np.concatenate([*(face.cells.ravel() for face in faces), *(face.ids for face in HEXES)])
    ids, first = np.unique(all_cells, return_index=True)
    found: NDArray[np.int64] = first[ids < SENSORS]
    return found


def pooling(rows: int, columns: int, side: int) -> NDArray[np.float32]:
    """Give the weights that average a grid over side by side parts, which overlap where they have to.

    [side · side, rows · columns], each row sums to 1.
    """
    down, across = _parts(rows, side), _parts(columns, side)
    weights = down[:, None, :, None] * across[None, :, None, :]
    return weights.reshape(side * side, rows * columns).astype(np.float32)


def _parts(length: int, side: int) -> NDArray[np.float64]:
    found = np.zeros((side, length))
    for part in range(side):
        first, last = part * length // side, -(-(part + 1) * length // side)
        found[part, first:last] = 1 / (last - first)
    return found
