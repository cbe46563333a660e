"""What a workload predicts becomes one row for each event, or an error that says what is wrong."""

from itertools import pairwise

import numpy as np
import pytest

from crpipe.core.errors import ForeignError
from crpipe.events.batch import Events
from crpipe.inference.rows import (
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
    with pytest.raises(ForeignError, match=message):
        checked_columns(found, 4, "lab:Net.predict")


def test_events_of_another_number_are_refused():
    with pytest.raises(ForeignError, match="expected 5 events with 3 item columns, found 4 events with 3"):
        check_generated(make_events(4, 1), 5, BUNDLES, "lab:Net.generate")


def test_a_predicted_column_must_not_replace_the_key():
    with pytest.raises(ForeignError, match="predicts a column run, .* call it predicted_run"):
        table_of({"run": np.zeros(1)}, {"run": np.ones(1)})


def test_nested_rows_hold_each_event_its_own_items():
    events = make_events(6, 1)
    rows = nested_table(events, BUNDLES)["muons_x_m"].to_pylist()
    starts = events.offsets()
    assert rows == [events.items[low:high, 1].tolist() for low, high in pairwise(starts)]
