"""What a workload predicts becomes one row for each event, or an error that says what is wrong."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from crpipe.core.errors import PluginError
from crpipe.events.batch import Events
from crpipe.inference.predictor import nested_table, predicted_columns, table_of
from crpipe.train.answers import checked_columns
from crpipe.workloads.muons.layout import BUNDLES
from toy import make_events


def test_whole_events_give_their_multiplicity_and_what_is_new():
    events = make_events(4, 1)
    changed = {**events.columns, "zenith_rad": np.zeros(4), "guess": np.ones(4)}
    found = predicted_columns(events, Events(changed, events.multiplicity, events.items))
    assert list(found) == ["zenith_rad", "guess", "multiplicity"]


def test_a_column_of_several_numbers_has_a_name_for_each():
    table = table_of({}, checked_columns({"p": np.arange(6.0).reshape(3, 2)}, 3, "lab:Net.predict"))
    assert table.to_pydict() == {"p_0": [0.0, 2.0, 4.0], "p_1": [1.0, 3.0, 5.0]}
    both = {"p": np.zeros((3, 2)), "p_1": np.zeros(3)}
    with pytest.raises(PluginError, match=r"predicts a column p_1, .* of p \[3, 2\]"):
        table_of({}, checked_columns(both, 3, "lab:Net.predict"))


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


def test_texts_stay_texts():
    columns = checked_columns({"x": lists("a", "b")}, 2, "lab:Net.predict")
    assert table_of({}, columns)["x"].to_pylist() == ["a", "b"]


def test_a_predicted_column_must_not_replace_the_key():
    with pytest.raises(PluginError, match="predicts a column run, .* call it predicted_run"):
        table_of({"run": np.zeros(1)}, {"run": np.ones(1)})


def test_nested_rows_hold_each_event_its_own_items():
    events = make_events(6, 1)
    rows = nested_table(events, BUNDLES)["muons_x_m"].to_pylist()
    starts = events.offsets()
    assert rows == [events.items[low:high, 1].tolist() for low, high in pairwise(starts)]
