"""The common style of all figures: SVG files, the same bytes for the same data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from crpipe.core.files import replacing

if TYPE_CHECKING:
    import contextlib
    from pathlib import Path

WIDTH = 8.0  # inches
REAL, GENERATED, NEUTRAL = "#4a5568", "#c05621", "#2b6cb0"
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568")  # of curves beside each other
# No date, no random ids, text kept as text: equal data give equal files.
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "crpipe",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
}


def style() -> contextlib.AbstractContextManager[None]:
    """Apply the common style to everything plotted inside the block."""
    return mpl.rc_context(_STYLE)


def new_figure(height: float) -> Figure:
    """Start a figure of the common width; ``height`` in inches."""
    return Figure((WIDTH, height), layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as SVG, atomically."""
    with replacing(path) as part:
        figure.savefig(part, format="svg", metadata={"Date": None})
    return path
