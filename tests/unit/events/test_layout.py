import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.core.errors import LayoutError
from crpipe.events.layout import Field, Layout
from crpipe.workloads.muons.layout import BUNDLES
from layouts import layouts
from plain_reader import HITS

NOTHING = Field("x", "float32", "", 0, 1, "")
EVENT, ITEM = HITS.events[0], HITS.items[0]


@given(layouts())
def test_a_description_survives_json(layout):
    assert Layout.from_description(json.loads(json.dumps(layout.describe()))) == layout
    assert json.loads(json.dumps(layout.identity())) == layout.identity()
    layout.check()


@given(layouts(), layouts())
def test_the_identity_is_that_of_the_description_without_meanings(one, two):
    assert (one.identity() == two.identity()) == (one == two)
    renamed = replace(one, events=tuple(replace(field, meaning="other") for field in one.events))
    assert renamed.identity() == one.identity()


@pytest.mark.parametrize(
    ("name", "value"), [("unit", "s"), ("low", -2.0), ("high", 3), ("dtype", "float64"), ("name", "other")]
)
def test_the_identity_changes_with_a_column(name, value):
    changed = replace(HITS, events=(replace(EVENT, **{name: value}), *HITS.events[1:]))
    assert changed.identity()["layout.events"] != HITS.identity()["layout.events"]


def test_the_identity_does_not_depend_on_how_a_bound_is_written():
    for low in (0, 0.0, np.float64(0), np.int64(0)):
        changed = replace(HITS, events=(replace(EVENT, low=low), *HITS.events[1:]))
        assert changed.identity() == HITS.identity()
        assert Layout.from_description(json.loads(json.dumps(changed.describe()))) == HITS
    assert BUNDLES.identity()["layout.items"][1] == "x_m float32 m -1000000.0..1000000.0"
    assert BUNDLES.identity()["layout.item"] == "muons"


WRONG = {
    "item must be a plural noun": {"item": "my hits"},
    "item must be a plural noun such as 'hits', not 'events'": {"item": "events"},
    "at least one event column": {"items": ()},
    "'run id' cannot be the name of a column": {"events": (replace(EVENT, name="run id"),)},
    "'source_file' cannot be the name": {"events": (EVENT, replace(EVENT, name="source_file"))},
    "run is declared twice": {"events": (EVENT, EVENT)},
    "time_ns is float64, expected float32": {"items": (replace(ITEM, dtype="float64"),)},
    "run is str, expected bool or float32": {"events": (replace(EVENT, dtype="str"),)},
    "are no closed interval": {"events": (replace(EVENT, low=2, high=1),)},
    "time_ns: the legal values 0..inf": {"items": (replace(ITEM, low=0, high=np.inf),)},
    "group names nothing, which is no event column": {"group": ("nothing",)},
    "key names time_ns": {"key": ("time_ns",)},
    "group must name": {"group": ()},
    "weight names w, which": {"weight": "w"},
    "weight names number, whose legal values begin at -1, below 0": {
        "weight": "number",
        "events": (EVENT, replace(EVENT, name="number", low=-1)),
    },
    "a column weight must be the weight itself, which is run": {
        "weight": "run",
        "events": (EVENT, replace(EVENT, name="weight")),
        "key": (),
    },
    "fixed must be 0 or": {"fixed": -1},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_stored_is_named(message):
    with pytest.raises(LayoutError, match=f"^layout of .*{message}"):
        replace(HITS, **WRONG[message]).check()


@pytest.mark.parametrize("tree", ["bundles", None, 5, [], {}, {"item": "hits"}])
def test_something_else_is_no_description(tree):
    with pytest.raises(LayoutError, match="not the description of a layout"):
        Layout.from_description(tree)


@given(st.data())
def test_a_damaged_description_is_always_a_layout_error(data):
    tree = HITS.describe()
    name = data.draw(st.sampled_from(sorted(tree)))
    other = data.draw(st.sampled_from([None, 5, "x", [], [5], {}, [{}], [{"name": "x"}], -1, 1.5, [None]]))
    if other == tree[name]:
        return
    try:
        layout = Layout.from_description(tree | {name: other})
    except LayoutError:
        return
    assert layout.describe() == tree | {name: other}


def test_counts_and_sizes():
    assert HITS.count(3, 5) == "3 events with 5 hits"
    assert HITS.item_bytes() == 8
    assert HITS.event_bytes() == 4 + 8 + 1 + 12
    assert HITS.has_outliers()
    assert not replace(HITS, fixed=4760).has_outliers()
