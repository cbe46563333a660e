"""Two events of one key are found wherever they are, and named with both of their rows."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events
from crpipe.inference.inputs import unique_keys

PATHS = (Path("a.root"), Path("b.root"))
KEY = ("run", "event")


def stream(pairs, size=3, split=5):
    """Blocks of (run, event) pairs; those from ``split`` on are of the second file."""
    for file, first, last in ((0, 0, min(split, len(pairs))), (1, split, len(pairs))):
        for start in range(first, last, size):
            part = np.array(pairs[start : min(start + size, last)], np.int64).reshape(-1, 2)
            yield Events(
                {
                    "run": part[:, 0].astype(np.int32),
                    "event": part[:, 1],
                    "source_file": np.full(len(part), file, np.uint32),
                    "source_row": np.arange(start - first, start - first + len(part), dtype=np.uint32),
                },
                np.zeros(len(part), np.uint32),
                np.zeros((0, 1), np.float32),
            )


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), max_size=12))
def test_the_first_event_that_repeats_a_key_is_named_with_the_one_before(pairs):
    repeated = next((at for at in range(len(pairs)) if pairs[at] in pairs[:at]), None)
    seen = []
    if repeated is None:
        seen += unique_keys(stream(pairs), KEY, PATHS)
    else:
        with pytest.raises(FormatError) as caught:
            seen += unique_keys(stream(pairs), KEY, PATHS)
        first, text = pairs.index(pairs[repeated]), str(caught.value)
        places = [(PATHS[at >= 5], at - 5 * (at >= 5)) for at in (repeated, first)]
        run, event = pairs[repeated]
        assert text.startswith(
            f"{places[0][0]}: row {places[0][1]}: the key run {run}, event {event} is also "
        )
        assert f"row {places[1][1]} of {places[1][0]}, and" in text
        assert ("leave one of them out of --in" in text) == (repeated >= 5 > first)
        assert f"({len(pairs) - len({*pairs})} of {len(pairs)} events repeat a key)" in text
    assert sum(map(len, unique_keys(stream(pairs), (), PATHS))) == len(pairs)


def test_every_block_is_passed_on_before_the_check():
    passed = unique_keys(stream([(1, 1)] * 8), KEY, PATHS)
    assert [len(next(passed)) for _ in range(3)] == [3, 2, 3]
    with pytest.raises(FormatError):
        next(passed)


def test_events_without_a_number_are_not_equal():
    def rows():
        for block in stream([(1, 1), (1, 2)]):
            yield Events({**block.columns, "run": np.full(2, np.nan)}, block.multiplicity, block.items)

    assert len([*unique_keys(rows(), ("run",), PATHS)]) == 1


def test_a_million_events_cost_tens_of_megabytes():
    def rows(blocks=100, size=10_000):
        for number in range(blocks):
            count = np.arange(size, dtype=np.int64) + size * number
            wide = np.zeros((size, 20), np.int64)  # a key column may be a view of more
            wide[:, 1] = count % 999_999
            columns = {"run": wide[:, 0], "event": wide[:, 1]}
            columns |= {"source_file": np.zeros(size, np.uint32), "source_row": count.astype(np.uint32)}
            yield Events(columns, np.zeros(size, np.uint32), np.zeros((0, 1), np.float32))

    tracemalloc.start()
    with pytest.raises(
        FormatError, match=r"a.root: row 999999: the key run 0, event 0 is also that of row 0 of a"
    ):
        for _ in unique_keys(rows(), KEY, PATHS):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 70 << 20
