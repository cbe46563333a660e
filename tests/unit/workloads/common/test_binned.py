import numpy as np
import pytest

from crpipe.workloads.common import binned
from crpipe.workloads.common.binned import quantiles_in_bins, rows_in_bins, wide_cuts


def test_quantiles_in_bins():
    values = np.arange(101.0)
    table = quantiles_in_bins(values, np.full(101, 5.0), np.array([1.0, 10.0, 100.0]), (0.16, 0.5), 20)
    assert table[:, 0].tolist() == [16, 50]
    assert np.isnan(table[:, 1]).all()


def test_a_bin_of_too_few_events_is_left_out():
    where = np.array([1.0, 1.5, 5.0, 20.0, 21.0, 22.0])
    found = rows_in_bins(where, np.array([3.0, 10.0]), 2, lambda mine: (where[mine].sum(), mine.sum()), 2)
    assert found.tolist() == [[1.25, 21.0], [2.5, 63.0], [2, 3]]


@pytest.mark.parametrize("logarithmic", [True, False])
def test_every_event_is_in_a_bin_of_twenty_or_more(logarithmic):
    """A long tail must not be left out, nor events at either end of the range."""
    values = np.random.default_rng(1).pareto(1.0, 2000) + 1
    cuts = wide_cuts(values, 20, 12, logarithmic=logarithmic)
    counts, _ = np.histogram(values, [values.min(), *cuts, values.max()])
    assert counts.sum() == 2000
    assert counts.min() >= 20
    assert not logarithmic or len(cuts) > 4


EDGES = np.array([1.0, 10.0, 100.0])


def test_counts_are_per_event():
    values, event = np.array([2.0, 3.0, 20.0, 500.0, 0.1]), np.array([0, 0, 1, 1, 1])
    made = binned.per_event(values, event, EDGES, np.ones(4, bool), np.ones(4), np.arange(4))
    assert made.value.tolist() == [0.5, 0.25]
    assert made.error.tolist() == pytest.approx([0.5, 0.25])


def test_counts_do_not_depend_on_how_many_values_are_counted_at_once(monkeypatch):
    rng = np.random.default_rng(1)
    values, event = rng.lognormal(2, 1, 1000), np.sort(rng.integers(50, size=1000))
    given = EDGES, np.ones(50, bool), rng.random(50), rng.integers(7, size=50)
    whole = binned.per_event(values, event, *given)
    monkeypatch.setattr(binned, "_BLOCK", 7)
    parts = binned.per_event(values, event, *given)
    assert parts.value == pytest.approx(whole.value)
    assert parts.error == pytest.approx(whole.error)


def test_errors_know_that_muons_come_together():
    rng = np.random.default_rng(1)
    multiplicity = rng.geometric(0.05, (200, 2000))
    totals = multiplicity.sum(axis=1) / 2000
    event = np.repeat(np.arange(2000), multiplicity[0])
    made = binned.per_event(
        np.full(len(event), 5.0), event, EDGES, np.ones(2000, bool), np.ones(2000), np.arange(2000)
    )
    assert made.error[0] == pytest.approx(totals.std(), rel=0.15)


def test_ratio_of_a_histogram_to_itself_is_one():
    one = binned.per_event(
        np.array([2.0, 3.0]), np.array([0, 1]), EDGES, np.ones(4, bool), np.ones(4), np.arange(4)
    )
    ratio, error = one.over(one).values()
    assert ratio[0] == 1
    assert error[0] == 0
    assert np.isnan(ratio[1])


def test_means_and_their_errors():
    values, where = np.array([1.0, 3.0, 5.0, 9.0]), np.array([2.0, 2.0, 2.0, 50.0])
    made = binned.mean_in_bins(values, where, EDGES, np.ones(4), np.arange(4), 4)
    assert made.value[0] == pytest.approx(3.0)
    assert made.error[0] == pytest.approx(np.std(values[:3], ddof=1) / np.sqrt(3))
    assert np.isnan(made.error[1])  # one group has no spread


def test_an_event_of_weight_two_counts_like_two_in_values():
    values, event = np.array([2.0, 3.0, 20.0]), np.array([0, 0, 1])
    made = binned.per_event(values, event, EDGES, np.ones(2, bool), np.array([2.0, 1.0]), np.arange(2))
    assert made.value.tolist() == pytest.approx([4 / 3, 1 / 3])
    numbers, where = np.array([1.0, 4.0]), np.full(2, 2.0)
    made = binned.mean_in_bins(numbers, where, EDGES, np.array([2.0, 1.0]), np.arange(2), 2)
    assert made.value[0] == pytest.approx(2.0)
    scaled = binned.mean_in_bins(numbers, where, EDGES, np.array([6.0, 3.0]), np.arange(2), 2)
    assert scaled.error[0] == pytest.approx(made.error[0])


def test_errors_know_that_events_come_from_the_same_primary():
    """Ten events of each primary that are all alike: a tenth of the events are independent."""
    rng = np.random.default_rng(2)
    alike = np.repeat(rng.geometric(0.2, 100), 10)
    group = np.repeat(np.arange(100), 10)
    event = np.repeat(np.arange(1000), alike)
    counted = [
        binned.per_event(
            np.full(len(event), 5.0), event, EDGES, np.ones(1000, bool), np.ones(1000), each
        ).error[0]
        for each in (group, np.arange(1000))
    ]
    assert counted[0] == pytest.approx(np.sqrt(10) * counted[1], rel=0.01)
    means = [
        binned.mean_in_bins(alike * 1.0, np.full(1000, 5.0), EDGES, np.ones(1000), each, 1000).error[0]
        for each in (group, np.arange(1000))
    ]
    assert means[0] == pytest.approx(np.sqrt(10) * means[1], rel=0.01)
