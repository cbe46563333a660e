"""Whole events as a flat table: one row for each item, with the columns of its event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.events.layout import Layout


def item_rows(asked: Events, made: Events, layout: Layout) -> pa.Table:
    """Give one row for each item of ``made``; an event without items has none.

    Columns: ``source_file`` and ``source_row`` of the event in the input (from 0), the event columns of the
    layout, and ITEM_NAME for each item column.
    """
    columns: dict[str, NDArray[Any]] = {name: asked.columns[name] for name in (SOURCE_FILE, SOURCE_ROW)}
    columns |= {field.name: made.columns[field.name] for field in layout.events if field.name in made.columns}
    rows = {name: pa.array(np.repeat(values, made.multiplicity)) for name, values in columns.items()}
    for place, field in enumerate(layout.items):
        rows[f"{layout.item}_{field.name}"] = pa.array(np.ascontiguousarray(made.items[:, place]))
    return pa.table(rows)
