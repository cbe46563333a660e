"""Two frames of one detector: which axis of the vertices lies along each axis of the hits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_ENOUGH = 20  # events from which a frame can be found
_CLEAR = 0.9  # correlation of a vertex with the mean of its hits


@dataclass(frozen=True, slots=True)
class Frame:
    """The axis of the vertices, such as -x, along x, y and z of the hits, and their correlations."""

    axes: tuple[str, ...]
    correlations: tuple[float, ...]

    def is_clear(self) -> bool:
        """Return whether there are enough events, and each axis is along one other."""
        return all(abs(each) > _CLEAR for each in self.correlations)

    def __str__(self) -> str:
        pairs = zip("xyz", self.axes, self.correlations, strict=True)
        return ", ".join(f"hits' {own} = vertex {axis} (r = {r:.3f})" for own, axis, r in pairs)


def find_frame(
    vertices: NDArray[np.float32], counts: NDArray[np.uint32], places: NDArray[np.float32]
) -> Frame:
    """Compare vertices [N, 3] with the means of their hits; counts: [N] hits of each, places: [M, 3].

    Correlations are NaN for fewer than 20 events with hits, and for vertices that are all the same.
    """
    seen = counts > 0
    if seen.sum() < _ENOUGH:
        return Frame(("x", "y", "z"), (np.nan,) * 3)
    means = np.add.reduceat(places.astype(np.float64), offsets(counts)[:-1][seen]) / counts[seen, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        linked = np.corrcoef(means.T, vertices[seen].T)[:3, 3:]
    best = max(permutations(range(3)), key=lambda order: np.nansum(np.abs(linked[range(3), order])))
    values = linked[range(3), best].tolist()
    axes = tuple("-" * (r < 0) + "xyz"[axis] for axis, r in zip(best, values, strict=True))
    return Frame(axes, tuple(values))


def turned(vectors: NDArray[Any], axes: Sequence[str]) -> Iterator[NDArray[Any]]:
    """Give x, y and z in the frame of the hits, [N] each, of vectors [N, 3] in that of the vertices.

    Example: with the axes z, y, -x the vector (1, 2, 3) becomes (3, 2, -1).
    """
    for axis in axes:
        column = vectors[:, "xyz".index(axis[-1])]
        yield -column if axis[0] == "-" else column
