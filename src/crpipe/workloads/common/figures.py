"""What the figures of several workloads share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.report import figure_context as context
from crpipe.report import figure_style as style
from crpipe.workloads.common import elementary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A line to compare with: what a random or a perfect prediction gives.
NULL_LINE: dict[str, Any] = {"color": style.REAL, "linestyle": "--", "linewidth": 1.0}


def save_all(figures: Mapping[str, Callable[[], Figure]], folder: Path) -> list[Path]:
    """Plot every figure that is wanted into ``folder``, by its name; return their paths."""
    wanted = figures if context.formats() else {}
    with style.style():
        return [style.save(draw(), folder / f"{name}.svg") for name, draw in wanted.items()]


def set_decimal_ticks(axis: Axes, which: str, limits: tuple[float, float], steps: Sequence[int]) -> None:
    """Name ``steps`` times the powers of ten within limits on axis x or y, such as (1, 2, 5), alone."""
    low, high = limits
    first, last = (float(elementary.log10(limit)) for limit in limits)
    powers = 10.0 ** np.arange(np.floor(first), last + 1)
    ticks = np.outer(powers, steps).ravel()
    ticks = ticks[(ticks >= low) & (ticks <= high)]
    set_ticks(axis, which, ticks, [f"{tick:,.10g}" for tick in ticks])


def set_ticks(axis: Axes, which: str, ticks: Any, labels: Sequence[str]) -> None:
    """Set the ticks of axis x or y, and no minor ones."""
    getattr(axis, f"set_{which}ticks")(ticks, labels)
    getattr(axis, f"set_{which}ticks")([], minor=True)
