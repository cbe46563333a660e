"""Micro-batches hold about equal items; numbers of rows are rounded up to few shapes."""

import itertools

import numpy as np
import pytest

from crpipe.loading.microbatch import micro_batches, rounded


def loads(size, budget):
    return [int(size[group].sum()) for group in micro_batches(size, budget)]


def test_a_batch_within_the_budget_stays_whole():
    (group,) = micro_batches(np.array([3, 4, 0]), 7)
    assert group.tolist() == [0, 1, 2]


def test_groups_are_even_and_as_few_as_possible():
    assert loads(np.full(8, 10), 40) == [40, 40]
    assert loads(np.full(8, 10), 39) == [30, 30, 20]
    heavy = np.random.default_rng(0).pareto(1.2, 5000).astype(int)
    found = loads(heavy, 3000)
    assert len(found) == -(-heavy[heavy <= 3000].sum() // 3000) + np.sum(heavy > 3000)
    assert max(load for load in found if load <= 3000) - min(found) < 100


def test_an_event_beyond_the_budget_stands_alone():
    groups = micro_batches(np.array([1, 100, 1, 1]), 10)
    assert [group.tolist() for group in groups] == [[0, 2, 3], [1]]


def test_empty_events_stay_in_and_an_empty_batch_is_one_group():
    assert [group.tolist() for group in micro_batches(np.zeros(3, int), 5)] == [[0, 1, 2]]
    assert [group.tolist() for group in micro_batches(np.zeros(0, np.uint32), 5)] == [[]]
    assert sorted(np.concatenate(micro_batches(np.array([9, 0, 9, 0]), 9)).tolist()) == [0, 1, 2, 3]


def test_events_that_cannot_be_packed_tightly_get_another_group():
    assert loads(np.array([6, 6, 6]), 10) == [6, 6, 6]
    assert loads(np.full(3000, 6, np.uint32), 10) == [6] * 3000


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_shapes_have_few_leading_digits_and_are_the_next_ones(bits):
    shapes = sorted({rounded(count, bits) for count in range(1, 70_000)})
    assert shapes[: 1 << bits] == list(range(1, 1 + (1 << bits)))
    for low, high in itertools.pairwise(shapes[(1 << (bits - 1)) - 1 :]):
        assert 1 < high / low <= 1 + 2 / (1 << bits)
        assert rounded(low + 1, bits) == high
    assert all(rounded(shape, bits) == shape for shape in shapes)


def test_by_default_shapes_are_at_most_a_thirtysecond_apart():
    assert [rounded(count) for count in (0, 63, 1_000, 30_000)] == [0, 63, 1_008, 30_208]
