"""Predictions as rows: one row for each event, whatever a workload predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.core.errors import ForeignError
from crpipe.events.batch import Events, offsets
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.train.workload import WorkloadCall

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.train.workload import Columns


def predict_block(
    trained: LoadedModel, events: Events, layout: Layout, generator: torch.Generator
) -> Events | Columns:
    """Predict for a block of events; raise ForeignError when the workload fails or gives something else."""
    with WorkloadCall(trained.workload, "predict", events):
        found = trained.workload.predict(trained.model, events, generator)
    if isinstance(found, Events):
        check_generated(found, len(events), layout, f"{trained.name}.predict")
        return found
    return checked_columns(found, len(events), f"{trained.name}.predict")


def check_generated(found: Events, count: int, layout: Layout, method: str) -> None:
    """Raise ForeignError unless there are ``count`` events of the layout's width and size."""
    width = found.items.shape[1] if found.items.ndim > 1 else 0
    if len(found) != count or width != len(layout.items):
        raise ForeignError(
            f"{method}: expected {count} events with {len(layout.items)} item columns, "
            f"found {len(found)} events with {width}"
        )
    if layout.fixed and (found.multiplicity != layout.fixed).any():
        other = found.multiplicity[found.multiplicity != layout.fixed][0]
        raise ForeignError(f"{method}: expected {layout.fixed} {layout.item} in each event, found {other}")


def checked_columns(found: Any, count: int, method: str) -> Columns:
    """Give the columns as arrays [count]; raise ForeignError when they are something else.

    A column of lists is an array of objects, each of them an array [any length] of the same type.
    """
    if not isinstance(found, dict):
        raise ForeignError(f"{method}: expected Events or a dict of arrays, found {type(found).__name__}")
    columns = {str(name): np.asarray(values) for name, values in found.items()}
    for name, values in columns.items():
        if values.shape != (count,):
            raise ForeignError(
                f"{method}: the column {name} has the shape {list(values.shape)}, expected [{count}]"
            )
        if values.dtype == object and count:
            _check_lists(values, f"{method}: the column {name}")
    return columns


def _check_lists(values: NDArray[Any], what: str) -> None:
    """Raise ForeignError for a column that holds some arrays, unless all are flat and of one simple type."""
    kinds = {
        (str(each.dtype), each.ndim) if isinstance(each, np.ndarray) else (type(each).__name__, -1)
        for each in values
    }
    (name, dimensions), *others = sorted(kinds, key=lambda kind: (-kind[1], kind[0]))
    if dimensions < 0 or (dimensions == 1 and name != "object" and not others):
        return
    found = ", ".join(f"{name} {'[]' * max(dimensions, 0)}".rstrip() for name, dimensions in sorted(kinds))
    raise ForeignError(
        f"{what} holds {found}; a column of lists needs one flat array for each event, all of the same type: "
        "an empty one is np.empty(0, np.float32); crpipe.events.batch.cut_lists makes such a column"
    )


def predicted_columns(events: Events, prediction: Events | Columns) -> Columns:
    """Give the columns of a prediction.

    Of whole events: their multiplicity, and the event columns that are not the very arrays of ``events``.
    """
    if not isinstance(prediction, Events):
        return prediction
    own = {
        name: values
        for name, values in prediction.columns.items()
        if values is not events.columns.get(name) and name not in (SOURCE_FILE, SOURCE_ROW)
    }
    return own | {MULTIPLICITY: prediction.multiplicity}


def table_of(known: Columns, predicted: Columns) -> pa.Table:
    """Join the columns that identify an event and those that are predicted; ForeignError for one in both."""
    twice = sorted(known.keys() & predicted.keys())
    if twice:
        raise ForeignError(
            f"the workload predicts a column {twice[0]}, which is the name of a column that identifies the "
            f"event; call it predicted_{twice[0]}"
        )
    return pa.table({name: _array(values) for name, values in (known | predicted).items()})


def nested_table(events: Events, layout: Layout) -> pa.Table:
    """Give whole events: their event columns, and a list column ITEM_NAME for each item column."""
    starts = pa.array(events.offsets(), pa.int64())
    names = [name for name in events.columns if name not in (SOURCE_FILE, SOURCE_ROW)]
    columns = {name: _array(events.columns[name]) for name in names}
    for place, field in enumerate(layout.items):
        values = pa.array(np.ascontiguousarray(events.items[:, place]))
        columns[f"{layout.item}_{field.name}"] = pa.LargeListArray.from_arrays(starts, values)
    return pa.table(columns)


def _array(values: NDArray[Any]) -> pa.Array:
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):
        # From the arrays' own type: that of lists which are all empty could not be found out.
        starts = offsets(np.fromiter(map(len, values), np.int64, len(values)))
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pa.array(np.concatenate(values)))
    return pa.array(np.ascontiguousarray(values))
