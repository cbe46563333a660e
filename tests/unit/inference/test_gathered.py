"""Blocks are joined in their order; items only where they are wanted."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

from crpipe.events.batch import concatenate
from crpipe.inference.evaluate import JoinedBlocks
from toy import make_events


@pytest.mark.parametrize("items", [True, False])
def test_joined_blocks_are_the_blocks_end_to_end(items):
    blocks = [make_events(count, count) for count in (5, 1, 40)]
    joined = JoinedBlocks()
    for block in blocks:
        joined.add(block if items else replace(block, items=np.empty((0, 0), np.float32)))
    events, expected = joined.events(), concatenate(blocks)
    assert np.array_equal(events.multiplicity, expected.multiplicity)
    assert np.array_equal(events.columns["source_row"], expected.columns["source_row"])
    assert np.array_equal(events.items, expected.items if items else np.empty((0, 0)))


def test_no_block_gives_no_column():
    assert JoinedBlocks().columns() == {}


def test_a_joined_block_does_not_hold_the_window_that_it_was_cut_out_of():
    window = make_events(100, 1)
    held = [weakref.ref(array) for array in (window.multiplicity, window.items, *window.columns.values())]
    joined = JoinedBlocks()
    joined.add(window.part(10, 12))
    del window
    assert [array() for array in held] == [None] * len(held)
    assert len(joined.events()) == 2
