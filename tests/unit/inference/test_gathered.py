"""Blocks are joined in their order; items only where they are wanted."""

import weakref

import numpy as np
import pytest

from crpipe.events.batch import concatenate
from crpipe.inference.evaluate import GatheredColumns, GatheredEvents
from toy import make_events


@pytest.mark.parametrize("items", [True, False])
def test_joined_blocks_are_the_blocks_end_to_end(items):
    blocks = [make_events(count, count) for count in (5, 1, 40)]
    gathered = GatheredEvents(items=items)
    for block in blocks:
        gathered.add(block)
    found, wanted = gathered.events(), concatenate(blocks)
    assert np.array_equal(found.multiplicity, wanted.multiplicity)
    assert np.array_equal(found.columns["source_row"], wanted.columns["source_row"])
    assert np.array_equal(found.items, wanted.items if items else np.empty((0, 0)))


def test_no_block_gives_no_column():
    assert GatheredColumns().columns() == {}


def test_a_gathered_block_does_not_hold_the_window_that_it_was_cut_out_of():
    window = make_events(100, 1)
    held = [weakref.ref(array) for array in (window.multiplicity, *window.columns.values())]
    gathered = GatheredEvents(items=False)
    gathered.add(window.part(10, 12))
    del window
    assert [array() for array in held] == [None] * len(held)
    assert len(gathered.events()) == 2
