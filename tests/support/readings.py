"""Raw files through a reader: all of their events, or that they are refused."""

import pytest

from crpipe.core.errors import FormatError
from crpipe.events.batch import concatenate


def read(reader, path):
    """Read all events of a file; its totals must be their numbers."""
    blocks = list(reader.rows(path))
    assert reader.totals(path) == (sum(map(len, blocks)), sum(len(block.items) for block in blocks))
    return concatenate(blocks)


def refused(reader, path, *words):
    """Assert that rows() refuses with all of the words."""
    with pytest.raises(FormatError) as error:
        list(reader.rows(path))
    assert all(word in str(error.value) for word in words), str(error.value)
