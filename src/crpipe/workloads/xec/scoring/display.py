"""Events on the unfolded detector: one value for each sensor, all six faces beside each other.

The inner face is in the middle, u to the right and v upwards, as from behind the detector. The faces us and
ds fold out to its sides, top and bottom above and below it; the outer face is on the right.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import AsinhNorm
from matplotlib.transforms import AffineDeltaTransform

from crpipe.report import figure_style as style
from crpipe.workloads.xec.sensors import FACES, INNER, INNER_RADIUS, face_of, sensor_map

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_INVALID = "#b4bac4"
_LINEAR = 10.0  # photons up to which the scale is linear; then logarithmic
_COLUMNS = 3
_LINE = 0.15  # inches of one more line of a title
# Where the faces are in the figure, in cm: the inner face reaches from -33 to 33 and from -71 to 71.
_HALF = (33.2, 71.0)
_SIDES_FROM, _ENDS_FROM, _OUTER_AT = 40.0, 85.0, 133.0
_TUBE = 5.6  # of the square or hexagon of a photomultiplier, whose neighbours are at 5.9 cm or more
_LABELS = {
    "inner": (0.0, 76.0),
    "us": (-57.0, 76.0),
    "ds": (57.0, 76.0),
    "top": (0.0, 129.0),
    "bottom": (0.0, -129.0),
    "outer": (_OUTER_AT, 120.0),
}
_SQUARE = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * _TUBE / 2
_TURN = np.radians(np.arange(30, 390, 60))
_HEXAGON = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1) * _TUBE / np.sqrt(3)


def draw_event(
    axis: Axes, values: NDArray[Any], valid: NDArray[Any], title: str, norm: Normalize | None = None
) -> ScalarMappable:
    """Draw one event on ``axis``; give what a colour bar needs.

    values: [4760], such as photons; valid: [4760], 0 where a sensor is grey. norm: of the colours, see
    ``colour_scale``, which is used without it.
    """
    shown = _masked(values, valid)
    colours: dict[str, Any] = {
        "norm": norm or colour_scale(values, valid),
        "cmap": mpl.colormaps["viridis"].with_extremes(bad=_INVALID),
    }
    extent = (-_HALF[0], _HALF[0], -_HALF[1], _HALF[1])
    axis.imshow(shown[INNER.ids], extent=extent, interpolation="none", **colours)
    for outline, ids, centres in _tubes():
        # The outline is in cm, as the axes are: the file has it once, and each sensor refers to it.
        tubes = PolyCollection(
            [outline],
            offsets=centres,
            offset_transform=axis.transData,
            linewidths=0,
            clip_on=False,
            **colours,
        )
        tubes.set_transform(AffineDeltaTransform(axis.transData))  # type: ignore[arg-type]
        tubes.set_array(shown[ids])
        axis.add_collection(tubes)
    for name, (x, y) in _LABELS.items():
        axis.text(x, y, name, ha="center", va="center", fontsize=6, color=style.REAL)
    axis.set(xlim=(-80, 180), ylim=(-133, 133), aspect="equal", title=title)
    axis.set_axis_off()
    return tubes


def draw_events(
    path: Path, values: NDArray[Any], valid: NDArray[Any], titles: Sequence[str], label: str = "photons"
) -> Path:
    """Draw events beside each other with one colour scale, as SVG; return the path.

    values, valid: [N, 4760], of a few events; titles: [N], of one or more lines; label: what the values are.
    """
    columns = min(_COLUMNS, len(titles))
    rows = -(-len(titles) // columns)
    with style.style():
        lines = max(title.count("\n") for title in titles)
        figure = style.new_figure((7.8 / columns + 0.4 + _LINE * lines) * rows + 0.7)
        axes = figure.subplots(rows, columns, squeeze=False)
        norm = colour_scale(values, valid)
        for axis in axes.flat[len(titles) :]:
            axis.set_visible(False)
        drawn = [
            draw_event(axis, each, good, title, norm)
            for axis, each, good, title in zip(axes.flat, values, valid, titles, strict=False)
        ]
        for title, each, good in zip(titles, values, valid, strict=True):
            seen = np.flatnonzero((np.asarray(good) != 0) & (np.asarray(each) > 0))
            style.note(figure, title, label, sensor=seen, value=np.asarray(each, np.float64)[seen])
        bar = figure.colorbar(drawn[0], ax=axes, location="bottom", fraction=0.03, aspect=50, pad=0.02)
        ticks = [0.0, *10.0 ** np.arange(1, np.log10(norm.vmax or 1.0) + 1e-9)]
        bar.set_ticks(ticks, labels=[f"{tick:,.0f}" for tick in ticks])
        bar.minorticks_off()
        bar.set_label(f"{label} (grey: not valid)")
        return style.save(figure, path)


def colour_scale(values: NDArray[Any], valid: NDArray[Any]) -> Normalize:
    """Return colours from 0 to the largest valid value: linear up to 10, then logarithmic."""
    largest = _masked(values, valid).max()
    return AsinhNorm(_LINEAR, vmin=0.0, vmax=_LINEAR if np.ma.is_masked(largest) else max(_LINEAR, largest))


def _masked(values: NDArray[Any], valid: NDArray[Any]) -> Any:
    return np.ma.masked_where(np.asarray(valid) == 0, np.asarray(values, np.float64))


@lru_cache(maxsize=1)
def _tubes() -> list[tuple[Floats, NDArray[np.int64], Floats]]:
    """Return photomultipliers by shape: outline [4 or 6, 2], ids [n], centres in the figure [n, 2]; cm."""
    places, names = sensor_map(), np.array(FACES)[face_of()]
    x, y, z = places[:, :3].T
    radius, angle = np.hypot(x, y), np.arctan2(y, -x)
    found = []
    for outline, faces in ((_SQUARE, ("us", "ds", "outer")), (_HEXAGON, ("top", "bottom"))):
        ids = np.flatnonzero(np.isin(names, faces))
        name, around, along = names[ids], angle[ids], z[ids]
        out = radius[ids] - radius[ids].min()
        outer, end = name == "outer", np.isin(name, ("top", "bottom"))
        across = np.select([outer, end], [_OUTER_AT + along, along], np.sign(along) * (_SIDES_FROM + out))
        upwards = np.select(
            [outer, end], [radius[ids] * around, np.sign(around) * (_ENDS_FROM + out)], INNER_RADIUS * around
        )
        found.append((outline, ids, np.stack([across, upwards], axis=1)))
    return found
