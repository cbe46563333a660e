import numpy as np

from crpipe.loading.loader import micro_batches


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
    assert np.concatenate(micro_batches(np.array([9, 0, 9, 0]), 9)).tolist().count(3) == 1


def test_events_that_cannot_be_packed_tightly_get_another_group():
    assert loads(np.array([6, 6, 6]), 10) == [6, 6, 6]
    assert loads(np.full(3000, 6, np.uint32), 10) == [6] * 3000
