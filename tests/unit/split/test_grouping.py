"""Rows that look like one thing, though each is a group of its own; and rows that only happen to agree."""

import numpy as np
import pytest

from crpipe.events.layout import Field, Layout
from crpipe.split.grouping import doubtful_groups, shared_columns

KINDS = {"run": "uint64", "number": "uint64", "energy": "float32", "angle": "float32", "kind": "float32"}
KINDS |= {"place": "float32", "flux": "float32"}
FIELDS = tuple(Field(name, kind, "", -1e30, 1e30, "") for name, kind in KINDS.items())
LAYOUT = Layout("hits", FIELDS, FIELDS[2:3], ("run", "number"), weight="flux")
PROPERTIES = ("energy", "angle", "kind")


def rows(things, places, seed=0, **changes):
    """Rows of some things, seen at some places each: run is the thing, number the place."""
    random = np.random.default_rng(seed)
    thing, place = np.divmod(np.arange(things * places), places)
    columns = {
        "run": thing,
        "number": place,
        "energy": 10 ** random.uniform(3, 6, things)[thing],
        "angle": random.uniform(0, 1, things)[thing],
        "kind": random.choice([1, 4, 56], things)[thing],
        "place": place * 100.0,
        "flux": random.uniform(0, 1, things)[thing],
    }
    columns |= {name: make(thing, place, random) for name, make in changes.items()}
    return {name: np.asarray(columns[name]).astype(kind) for name, kind in KINDS.items()}


@pytest.mark.parametrize(("things", "places"), [(10, 2), (20, 100), (3000, 40)])
def test_groups_that_number_rows_are_doubted(things, places):
    assert shared_columns(rows(things, places), LAYOUT) == PROPERTIES
    shuffled = np.random.default_rng(1).permutation(things * places)
    mixed = {name: column[shuffled] for name, column in rows(things, places).items()}
    assert shared_columns(mixed, LAYOUT) == PROPERTIES
    said = doubtful_groups(mixed, LAYOUT)
    assert said.startswith("each row is a group of its own (run, number), but rows share energy, angle, kind")


@pytest.mark.parametrize(
    "changes",
    [
        {"number": lambda thing, *_: thing},  # right: the group is the thing
        {"energy": lambda thing, _, random: random.uniform(0, 1, len(thing))},  # and angle: one is not enough
        {
            "energy": lambda thing, _, random: random.choice(np.arange(20), len(thing)),  # a grid, drawn anew
            "angle": lambda thing, _, random: random.choice(np.arange(12), len(thing)),
        },
        {"energy": lambda thing, *_: 0 * thing, "angle": lambda thing, *_: 0 * thing},  # always the same
    ],
)
def test_right_groups_and_independent_rows_are_not(changes):
    columns = rows(200, 30, **changes)
    if "energy" in changes and "angle" not in changes:
        columns["angle"] = columns["energy"]
    assert shared_columns(columns, LAYOUT) == ()
    assert doubtful_groups(columns, LAYOUT) == ""


def test_one_row_for_each_thing_is_nothing_to_doubt():
    assert shared_columns(rows(2000, 1), LAYOUT) == ()
    assert shared_columns({name: column[:0] for name, column in rows(1, 1).items()}, LAYOUT) == ()
    assert shared_columns({}, LAYOUT) == ()
