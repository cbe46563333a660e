"""Blocks are joined in their order; items only where they are wanted."""

import numpy as np
import pytest

from crpipe.events.batch import concatenate
from crpipe.inference.gathered import GatheredColumns, GatheredEvents
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
    assert np.array_equal(found.items, wanted.items if items else wanted.items[:0])


def test_no_block_gives_no_column():
    assert GatheredColumns().columns() == {}
