"""Whether the group columns can be right: rows that look like one thing, each a group of its own."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.split.hashing import identities

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout

MOST_ROWS = 1 << 17  # looked at
_FEWEST = 4  # different values: fewer repeat by chance
_CHANCE = 1.02  # of equal values in rows that have nothing to do with each other


def doubtful_groups(columns: Mapping[str, NDArray[Any]], layout: Layout) -> str:
    """Describe why the group columns of some rows look wrong, and what to do; mostly empty."""
    shared = shared_columns(columns, layout)
    if not shared:
        return ""
    return (
        f"each row is a group of its own ({', '.join(layout.group)}), but rows share {', '.join(shared)}: do "
        "they belong together? Then parts of one thing are trained on, and others held out. Rows that belong "
        "together need equal values in the group columns: number what they describe, not the rows"
    )


def shared_columns(columns: Mapping[str, NDArray[Any]], layout: Layout) -> tuple[str, ...]:
    """Name the event columns whose values rows share as if they belonged together; mostly none.

    Only where no group has two rows: then nothing keeps rows together. Two columns of many values that
    determine each other, and come again in other rows, are properties of one thing that several rows
    describe: rows (3, 0.1), (3, 0.1), (7, 0.4), (7, 0.4) are two things. Columns that are drawn one by one,
    or from grids, have more pairs than values. With those two come all columns that they determine.
    """
    rows = min(MOST_ROWS, *(len(column) for column in columns.values())) if columns else 0
    if not rows or have_repeats([columns[name][:rows] for name in layout.group]):
        return ()
    known = {*layout.group, *layout.key, layout.weight}
    values = {field.name: columns[field.name][:rows] for field in layout.events if field.name not in known}
    counts = {name: _count([column]) for name, column in values.items()}
    again = [name for name, count in counts.items() if _FEWEST <= count <= rows // 2]
    best: tuple[int, tuple[str, ...]] = (0, ())
    for pair in combinations(again, 2):
        together = _count([values[name] for name in pair])
        if together <= min(rows // 2, _CHANCE * min(counts[name] for name in pair)):
            best = max(best, (together, pair))
    things, names = best
    if not names:
        return ()
    shared = [values[name] for name in names]
    return tuple(
        name
        for name, column in values.items()
        if name in names or (counts[name] > 1 and _count([*shared, column]) <= _CHANCE * things)
    )


def have_repeats(columns: Sequence[NDArray[Any]]) -> bool:
    """Return whether two rows of some columns are equal."""
    numbers = np.sort(identities(columns))
    return bool((numbers[1:] == numbers[:-1]).any())


def _count(columns: list[NDArray[Any]]) -> int:
    """Count the different rows of some columns."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, indices = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * len(values) + indices, return_inverse=True)
    return int(codes.max(initial=-1)) + 1
