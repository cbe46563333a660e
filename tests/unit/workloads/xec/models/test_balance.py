"""Weights for rare values: flat where they were not, one on average, and never above the limit."""

import numpy as np
import pytest

from crpipe.events.batch import Events
from crpipe.events.histograms import Histogram
from crpipe.workloads.xec.models.regressor import Flattening


def events_of(**columns):
    count = len(next(iter(columns.values())))
    return Events(columns, np.zeros(count, np.uint32), np.zeros((0, 4), np.float32))


def energies(count=20_000, seed=0):
    """Draw a spectrum that falls by a factor of 20."""
    return (0.015 + 0.045 * np.random.default_rng(seed).beta(1, 3, count)).astype(np.float32)


def flatten(values, most, bins=15, name="energy_gev"):
    histogram = Histogram.of(values, (0.015, 0.060, bins))
    made = Flattening({name: histogram}, (name,), most)
    return histogram, made.of(events_of(**{name: values}))


def test_a_weighed_spectrum_is_flat_with_a_mean_weight_of_one():
    values = energies()
    histogram, weights = flatten(values, most=1e6)
    assert weights.dtype == np.float32
    assert weights.mean() == pytest.approx(1, abs=1e-4)
    weighed, _ = np.histogram(values, histogram.edges, weights=weights)
    np.testing.assert_allclose(weighed[histogram.counts > 0], weighed.sum() / 15, rtol=1e-3)
    assert histogram.counts.max() > 20 * histogram.counts[histogram.counts > 0].min()


@pytest.mark.parametrize("most", [1.0, 1.5, 3.0, 10.0])
def test_no_weight_is_above_the_limit_and_the_mean_stays_one(most):
    _, weights = flatten(energies(), most)
    assert weights.max() <= most * (1 + 1e-6)
    assert weights.mean() == pytest.approx(1, abs=1e-4)


def test_below_the_limit_values_are_flat_among_each_other():
    values = energies()
    histogram, weights = flatten(values, most=3.0)
    weighed, _ = np.histogram(values, histogram.edges, weights=weights)
    free = (histogram.counts > 0) & (weighed < 2.99 * histogram.counts)
    assert 3 < free.sum() < 15
    np.testing.assert_allclose(weighed[free], weighed[free].mean(), rtol=1e-3)


def test_values_outside_count_as_in_the_nearest_bin():
    histogram = Histogram(0.0, 4.0, np.array([10, 40, 40, 10]))
    made = Flattening({"w_cm": histogram}, ("w_cm",), 10.0)
    found = made.of(events_of(w_cm=np.array([-5.0, 0.0, 1.0, 3.999, 4.0, 1e9])))
    np.testing.assert_allclose(found, [2.5, 2.5, 0.625, 2.5, 2.5, 2.5])


def test_weights_of_two_columns_are_multiplied():
    counts = {"u_cm": np.array([1, 3]), "w_cm": np.array([4, 1])}
    histograms = {name: Histogram(0.0, 2.0, each) for name, each in counts.items()}
    values = {"u_cm": np.array([0.5, 1.5, 0.5]), "w_cm": np.array([0.5, 0.5, 1.5])}
    alone = [Flattening(histograms, (name,), 10.0).of(events_of(**values)) for name in counts]
    both = Flattening(histograms, tuple(counts), 10.0).of(events_of(**values))
    np.testing.assert_allclose(both, alone[0] * alone[1], rtol=1e-6)
    np.testing.assert_allclose(alone[0], [2, 2 / 3, 2], rtol=1e-6)


def test_without_training_events_all_weigh_the_same():
    made = Flattening({"w_cm": Histogram(0.0, 4.0, np.zeros(4, np.int64))}, ("w_cm",), 10.0)
    assert made.of(events_of(w_cm=np.array([0.5, 3.5]))).tolist() == [1, 1]
