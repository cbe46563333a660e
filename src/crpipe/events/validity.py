"""Finds events that hold a value outside the legal interval of its column, or NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.expectations import Expectations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.events.layout import Field, Layout

_CIRCLE = 360.0
_NOTHING = Expectations()
_SIDE_BY_SIDE = 1024  # items in one row while extremes are searched: numpy reduces [M, 3] 20 times slower


def find_invalid_events(
    events: Events, layout: Layout, expectations: Expectations = _NOTHING
) -> dict[int, str]:
    """Name the first invalid value of each event that has one: {index: reason}.

    NaN and infinities are invalid in every column. expectations: what the reader knows, for a guess why.
    """
    reasons: dict[int, str] = {}
    for field in layout.events:
        column = events.columns[field.name]
        if len(column) and _legal(column.min(), field) and _legal(column.max(), field):
            continue  # neither is a number where one value is none
        for index in np.flatnonzero(~_legal(column, field)):
            reasons.setdefault(int(index), _reason(field, column[index], field.name, expectations))
    if len(events.items):
        lows, highs = _extremes(events.items)
        for position, field in enumerate(layout.items):
            if not (_legal(lows[position], field) and _legal(highs[position], field)):
                _blame(events, layout, position, reasons, expectations)
    return reasons


def _legal(values: Any, field: Field) -> Any:
    return (values >= field.low) & (values <= field.high)


def _reason(field: Field, value: Any, column: str, expectations: Expectations) -> str:
    interval = f"{field.low:.7g} to {field.high:.7g} {field.unit}".rstrip()
    if field.unit == "rad" and column not in expectations.units and _may_be_degrees(field, value):
        guess = "is it in degrees?"
    else:
        guess = expectations.advise(column, field, float(value))
    return f"{field.name} is {value}, not within {interval}{'; ' if guess else ''}{guess}"


def _may_be_degrees(field: Field, value: Any) -> bool:
    """Return whether a value that is no angle in rad at all is a legal one in degrees."""
    return bool(2 * np.pi < abs(value) <= _CIRCLE and field.low <= np.radians(float(value)) <= field.high)


def _blame(
    events: Events, layout: Layout, position: int, reasons: dict[int, str], expectations: Expectations
) -> None:
    field, item, column = layout.items[position], layout.item, events.items[:, position]
    starts = events.offsets()
    bad = np.flatnonzero(~_legal(column, field))
    owners, first = np.unique(np.searchsorted(starts, bad, side="right") - 1, return_index=True)
    for owner, at in zip(owners.tolist(), bad[first].tolist(), strict=True):
        reason = _reason(field, column[at], f"{item}.{field.name}", expectations)
        reasons.setdefault(owner, f"{item}[{at - starts[owner]}]: {reason}")


def _extremes(items: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Smallest and largest value of each column of [M, K]; NaN where the column holds one."""
    columns = items.shape[1]
    width = _SIDE_BY_SIDE * columns
    flat = items.reshape(-1)
    end = len(flat) // width * width
    rest = flat[end:].reshape(-1, columns)
    if not end:
        return rest.min(axis=0), rest.max(axis=0)
    wide = flat[:end].reshape(-1, width)
    low = np.concatenate([wide.min(axis=0).reshape(-1, columns), rest])
    high = np.concatenate([wide.max(axis=0).reshape(-1, columns), rest])
    return low.min(axis=0), high.max(axis=0)
