import numpy as np
import pytest

from crpipe.workloads.common.errors import finite_spread, group_weights, resamples, scattered, spread


def test_the_spread_over_resamples_is_the_error_of_a_mean_also_of_fewer_events_than_there_are():
    values = np.random.default_rng(1).normal(size=4000)
    for most in (None, 500):
        means = [values[index].mean() for index in resamples(4000, 300, most)]
        assert spread(means, 4000, most) == pytest.approx(values.std() / np.sqrt(4000), rel=0.15)
    assert {len(index) for index in resamples(4000, 2, 500)} == {500}


def test_replicas_that_are_not_finite_do_not_count():
    table = np.array([[1.0, np.nan, np.nan], [3.0, 2.0, np.nan], [5.0, 4.0, 7.0]])
    assert finite_spread(table)[:2] == pytest.approx([np.std([1, 3, 5]), 1.0])
    assert np.isnan(finite_spread(table)[2])  # one has no spread


def test_rows_of_a_group_share_their_weight():
    weights = group_weights(np.array([0, 0, 1, 2, 1]), 20)
    assert weights.shape == (21, 3)
    assert (weights[0] == 1).all()
    assert weights[1:].mean() == pytest.approx(1.0, abs=0.5)


def test_values_scatter_by_their_errors():
    found = scattered(np.array([1.0, 2.0]), np.array([0.1, 0.0]), 1000)
    assert found.std(axis=0) == pytest.approx([0.1, 0.0], rel=0.1)
    assert found.mean(axis=0) == pytest.approx([1.0, 2.0], abs=0.02)
