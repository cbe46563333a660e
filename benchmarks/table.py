"""How results are shown: numbers with their spread, and Markdown tables as the docs have them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Show the median with the lowest and highest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}..{high:,.{digits}f})"


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by resampling."""
    random = np.random.default_rng(1)
    medians = np.median(random.choice(list(ratios), (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def shown(value: object) -> str:
    """Show a number with four digits and separators; other values as they are."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:  # noqa: PLR0124 - NaN
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"


def lines(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    cells = [[shown(cell).replace("|", "/") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(head), ["---"] * len(head), *cells)]


def show(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table below its title."""
    print("\n".join(["", title, "", *lines(head, rows)]), flush=True)
