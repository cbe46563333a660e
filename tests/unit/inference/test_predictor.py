"""What a workload predicts becomes one row for each event, or an error that says what is wrong."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from crpipe.core.errors import PluginError
from crpipe.events.batch import Events
from crpipe.inference.predictor import (
    check_generated,
    checked_columns,
    nested_table,
    predicted_columns,
    table_of,
)
from crpipe.workloads.muons.layout import BUNDLES
from toy import make_events


def test_whole_events_give_their_multiplicity_and_what_is_new():
    events = make_events(4, 1)
    changed = {**events.columns, "zenith_rad": np.zeros(4), "guess": np.ones(4)}
    found = predicted_columns(events, Events(changed, events.multiplicity, events.items))
    assert list(found) == ["zenith_rad", "guess", "multiplicity"]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([1], "expected Events or a dict of arrays, found list"),
        ({"x": np.zeros((4, 2))}, r"column x has the shape \[4, 2\], expected \[4\]"),
    ],
)
def test_what_is_no_column_for_each_event_is_refused(found, message):
    with pytest.raises(PluginError, match=message):
        checked_columns(found, 4, "lab:Net.predict")


def lists(*values):
    found = np.empty(len(values), object)
    for place, each in enumerate(values):
        found[place] = each
    return found


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "int64"])
@pytest.mark.parametrize("lengths", [(2, 0, 3), (0, 0, 0), (2, 2, 2)])
def test_flat_arrays_of_one_type_become_a_column_of_lists(dtype, lengths):
    column = lists(*(np.ones(length, dtype) for length in lengths))
    table = table_of({}, checked_columns({"x": column}, 3, "lab:Net.predict"))
    assert table.schema.field("x").type == pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
    assert table["x"].to_pylist() == [[1] * length for length in lengths]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (lists(np.zeros(2, np.float32), np.zeros(0)), "column x holds float32 .., float64 ..; a column of"),
        (lists(np.zeros(2), 1.0), r"holds float, float64 \[\]; .* one flat array for each event"),
        (lists(np.zeros((1, 2)), np.zeros((1, 2))), r"holds float64 \[\]\[\]; "),
        (lists(lists("a"), lists("b")), r"holds object \[\]; "),
    ],
)
def test_other_lists_are_refused(column, message):
    with pytest.raises(PluginError, match=message):
        checked_columns({"x": column}, 2, "lab:Net.predict")


def test_texts_stay_texts():
    columns = checked_columns({"x": lists("a", "b")}, 2, "lab:Net.predict")
    assert table_of({}, columns)["x"].to_pylist() == ["a", "b"]


def test_events_of_another_number_or_width_are_refused():
    events = make_events(4, 1)
    with pytest.raises(PluginError, match="expected 5 events with 3 item columns, found 4 events with 3"):
        check_generated(events, 5, BUNDLES, "lab:Net.generate")
    narrow = Events(events.columns, events.multiplicity, events.items[:, :2])
    with pytest.raises(PluginError, match="expected 4 events with 3 item columns, found 4 events with 2"):
        check_generated(narrow, 4, BUNDLES, "lab:Net.generate")


def test_a_predicted_column_must_not_replace_the_key():
    with pytest.raises(PluginError, match="predicts a column run, .* call it predicted_run"):
        table_of({"run": np.zeros(1)}, {"run": np.ones(1)})


def test_nested_rows_hold_each_event_its_own_items():
    events = make_events(6, 1)
    rows = nested_table(events, BUNDLES)["muons_x_m"].to_pylist()
    starts = events.offsets()
    assert rows == [events.items[low:high, 1].tolist() for low, high in pairwise(starts)]
