import numpy as np
import pytest

from crpipe.workloads.muons.scoring import histogram

EDGES = np.array([1.0, 10.0, 100.0])


def test_counts_are_per_event():
    values, event = np.array([2.0, 3.0, 20.0, 500.0, 0.1]), np.array([0, 0, 1, 1, 1])
    made = histogram.per_event(values, event, EDGES, np.ones(4, bool), np.ones(4))
    assert made.value.tolist() == [0.5, 0.25]
    assert made.error.tolist() == [0.5, 0.25]


def test_errors_know_that_muons_come_together():
    rng = np.random.default_rng(1)
    multiplicity = rng.geometric(0.05, (200, 2000))
    totals = multiplicity.sum(axis=1) / 2000
    event = np.repeat(np.arange(2000), multiplicity[0])
    made = histogram.per_event(np.full(len(event), 5.0), event, EDGES, np.ones(2000, bool), np.ones(2000))
    assert made.error[0] == pytest.approx(np.hypot(totals.std(), totals.mean() / np.sqrt(2000)), rel=0.15)


def test_ratio_of_a_histogram_to_itself_is_one():
    made = histogram.BinnedValues(EDGES, np.array([4.0, 0.0]), np.array([2.0, 0.0]))
    ratio, error = made.over(made)
    assert ratio[0] == 1
    assert error[0] == pytest.approx(np.sqrt(0.5))
    assert np.isnan(ratio[1])


def test_means_and_their_errors():
    values, where = np.array([1.0, 3.0, 5.0, 9.0]), np.array([2.0, 2.0, 2.0, 50.0])
    made = histogram.mean_in_bins(values, where, EDGES, np.ones(4))
    assert made.value[0] == pytest.approx(3.0)
    assert made.error[0] == pytest.approx(np.std(values[:3], ddof=1) / np.sqrt(3))
    assert np.isnan(made.value[1])


def test_an_event_of_weight_two_counts_like_two_in_values():
    values, event = np.array([2.0, 3.0, 20.0]), np.array([0, 0, 1])
    made = histogram.per_event(values, event, EDGES, np.ones(2, bool), np.array([2.0, 1.0]))
    assert made.value.tolist() == pytest.approx([4 / 3, 1 / 3])
    numbers, where = np.array([1.0, 4.0]), np.full(2, 2.0)
    made = histogram.mean_in_bins(numbers, where, EDGES, np.array([2.0, 1.0]))
    assert made.value[0] == pytest.approx(2.0)
    scaled = histogram.mean_in_bins(numbers, where, EDGES, np.array([6.0, 3.0]))
    assert scaled.error[0] == pytest.approx(made.error[0])


def test_quantiles_in_bins():
    values = np.arange(101.0)
    table = histogram.quantiles_in_bins(values, np.full(101, 5.0), EDGES, (0.16, 0.5))
    assert table[:, 0].tolist() == [16, 50]
    assert np.isnan(table[:, 1]).all()
