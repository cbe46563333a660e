import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crpipe.events.batch import Events, MisfitError, concatenate, cut_lists, cuts, even_cuts, offsets, regroup
from plain_reader import make_hits

multiplicities = st.lists(st.integers(0, 9), max_size=30)


def pieces(events):
    starts = events.offsets()
    return [
        (
            *(column[index] for column in events.columns.values()),
            events.items[starts[index] : starts[index + 1]].tolist(),
        )
        for index in range(len(events))
    ]


@given(multiplicities, st.data())
def test_taken_events_keep_their_items(multiplicity, data):
    events = make_hits(multiplicity)
    index = np.array(data.draw(st.permutations(range(len(events)))), np.int64)
    expected = pieces(events)
    assert pieces(events.take(index)) == [expected[place] for place in index]
    low = data.draw(st.integers(0, len(events)))
    high = data.draw(st.integers(low, len(events)))
    assert pieces(events.part(low, high)) == expected[low:high]


def test_all_events_in_their_order_are_taken_without_a_copy():
    events = make_hits([2, 0, 3])
    assert events.take(np.arange(3)) is events
    assert events.take(np.arange(2)) is not events
    assert events.take(np.array([0, 2, 1])) is not events


@pytest.mark.parametrize("multiplicity", [[4, 4, 4, 4], [1, 3, 0, 2]])
def test_events_are_taken_from_columns_too(multiplicity):
    rows = make_hits(multiplicity)
    columns = Events(rows.columns, rows.multiplicity, np.asfortranarray(rows.items))
    for index in ([2, 0], [3, 3, 1], []):
        taken = columns.take(np.array(index, np.int64))
        assert pieces(taken) == pieces(rows.take(np.array(index, np.int64)))
        items = taken.items.reshape(-1, 1, 2)
        assert not len(items) or np.shares_memory(items, taken.items)


def test_a_copy_shares_no_memory():
    events = make_hits([2, 0, 3])
    copy = events.copy()
    assert pieces(copy) == pieces(events)
    pairs = [(copy.items, events.items), (copy.multiplicity, events.multiplicity)]
    pairs += [(copy.columns[name], events.columns[name]) for name in events.columns]
    assert not any(np.shares_memory(one, two) for one, two in pairs)


@given(st.lists(multiplicities, min_size=1, max_size=4))
def test_joined_blocks_hold_all_events_in_order(blocks):
    parts = [make_hits(multiplicity, seed) for seed, multiplicity in enumerate(blocks)]
    assert pieces(concatenate(parts)) == [piece for part in parts for piece in pieces(part)]


@given(multiplicities)
def test_lists_hold_the_values_of_each_event(counts):
    values = np.arange(sum(counts), dtype=np.int16)
    lists = cut_lists(values, np.array(counts, np.uint32))
    assert lists.shape == (len(counts),)
    assert [len(each) for each in lists] == counts
    assert np.array_equal(np.concatenate([values[:0], *lists]), values)
    assert all(each.dtype == np.int16 for each in lists)


@given(multiplicities, st.integers(1, 8), st.integers(1, 20))
def test_cuts_fill_both_limits_and_miss_nothing(multiplicity, max_events, max_items):
    found = list(cuts(np.array(multiplicity, np.uint32), max_events, max_items))
    assert [place for first, last in found for place in range(first, last)] == list(range(len(multiplicity)))
    for first, last in found:
        assert 1 <= last - first <= max_events
        assert last - first == 1 or sum(multiplicity[first:last]) <= max_items
        full = last == len(multiplicity) or last - first == max_events
        assert full or sum(multiplicity[first : last + 1]) > max_items


@given(st.lists(multiplicities, max_size=5), st.integers(1, 8), st.integers(1, 20))
def test_regrouped_blocks_hold_all_events_within_both_limits(blocks, max_events, max_items):
    parts = [make_hits(multiplicity, seed) for seed, multiplicity in enumerate(blocks)]
    groups = list(regroup(parts, max_events, max_items))
    assert [piece for group in groups for piece in pieces(group)] == [
        p for part in parts for p in pieces(part)
    ]
    assert all(len(group) <= max_events for group in groups)
    assert all(len(group) == 1 or len(group.items) <= max_items for group in groups)


@pytest.mark.parametrize(
    ("weights", "parts", "expected"),
    [
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([9, 1, 1, 1], 2, [(0, 1), (1, 4)]),
        ([1, 1], 5, [(0, 1), (1, 2)]),
        ([5], 1, [(0, 1)]),
        ([], 3, []),
    ],
)
def test_even_cuts(weights, parts, expected):
    assert even_cuts(np.array(weights), parts) == expected


def test_offsets_count_past_32_bits():
    assert offsets(np.full(3, 2**31, np.uint32)).tolist() == [0, 2**31, 2**32, 3 * 2**31]


def test_an_empty_block_keeps_its_columns():
    empty = make_hits([1, 2]).take(np.zeros(0, np.int64))
    assert isinstance(empty, Events)
    assert empty.items.shape == (0, 2)
    assert empty.columns["run"].dtype == np.int32


@pytest.mark.parametrize(
    ("counts", "items", "column", "said"),
    [
        ([2, 3], (4, 2), 2, "items: expected 5, the sum of the multiplicities, found 4"),
        ([2, 3], (6, 2), 2, "items: expected 5, the sum of the multiplicities, found 6"),
        ([2, 3], (0, 2), 2, "items: expected 5, the sum of the multiplicities, found 0"),
        ([], (1, 2), 0, "items: expected 0, the sum of the multiplicities, found 1"),
        ([2, 3], (5,), 2, r"items: expected float32 \[M, K\], found float32 \[5\]"),
        ([2, 3], (5, 2), 3, r"column run: expected \[2\], found int64 \[3\]"),
        ([[2], [3]], (5, 2), 2, r"multiplicity: expected uint32 \[N\], found int64 \[2, 1\]"),
        ([-1, 6], (5, 2), 2, "multiplicity: -1, expected 0 or more"),
        ([2.0, 3.0], (5, 2), 2, r"multiplicity: expected uint32 \[N\], found float64 \[2\]"),
    ],
)
def test_events_whose_arrays_do_not_fit_cannot_be_made(counts, items, column, said):
    counts = np.array(counts) if counts else np.zeros(0, np.uint32)
    with pytest.raises(MisfitError, match=said):
        Events({"run": np.arange(column)}, counts, np.zeros(items, np.float32))


def test_other_types_of_items_are_refused_and_left_out_items_allowed():
    counts = np.array([2, 3], np.uint32)
    with pytest.raises(MisfitError, match=r"items: expected float32 \[M, K\], found float64 \[5, 2\]"):
        Events({}, counts, np.zeros((5, 2)))
    without = Events({}, counts, np.empty((0, 0), np.float32))
    assert len(without.part(1, 2)) == 1
