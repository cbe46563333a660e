import numpy as np
import pytest

from crpipe.loading.order import Order, item_costs

SIZES = np.array([30, 50, 0, 20], np.int64)


def test_even_batches_of_all_ranks_together():
    order = Order((1,), SIZES, capacity=30, ranks=2)
    assert order.batches_per_rank == 2
    assert order.epoch(0).batches.tolist() == [0, 25, 50, 75, 100]


def test_a_window_spans_a_whole_piece():
    epoch = Order((1,), SIZES, capacity=10, ranks=1).epoch(0)
    assert epoch.windows.tolist() == [0, 50, 100]
    assert sorted(epoch.permutation(1)) == list(range(50))


def test_pieces_change_places_between_epochs():
    order = Order((1,), np.ones(20, np.int64), capacity=5, ranks=1)
    first, second = order.epoch(0), order.epoch(1)
    assert sorted(first.pieces) == sorted(second.pieces) == list(range(20))
    assert first.pieces.tolist() != second.pieces.tolist()
    assert np.array_equal(order.epoch(1).pieces, second.pieces)


def test_seeds_that_differ_only_in_zeros_give_other_orders():
    sizes = np.ones(30, np.int64)
    orders = [
        Order(seed, sizes, capacity=5, ranks=1).epoch(0).pieces.tolist() for seed in [(1,), (1, 0), (0, 1)]
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_no_events_make_no_batches():
    order = Order((1,), np.zeros(0, np.int64), capacity=5, ranks=3)
    assert order.batches_per_rank == 0
    assert order.epoch(0).batches.tolist() == [0]


def test_costs_bound_events_and_items():
    cost = item_costs(np.array([0, 10, 99, 5000], np.uint32), batch_events=8, max_items=100)
    assert cost.tolist() == [13, 13, 99, 100]


@pytest.mark.parametrize("ranks", [1, 3])
def test_batches_cut_by_cost_are_as_many_in_every_epoch_and_never_empty(ranks):
    multiplicity = np.random.default_rng(0).pareto(0.8, 100).clip(max=1e4).astype(np.uint32) * 10
    cost = item_costs(multiplicity, batch_events=16, max_items=200)
    order = Order((1,), SIZES, capacity=200, ranks=ranks, cost=cost)
    for epoch in range(5):
        events = np.diff(order.epoch(epoch).batches)
        assert len(events) == order.batches_per_rank * ranks
        assert events.min() >= 1
        assert events.max() <= 16
        assert events.sum() == 100
