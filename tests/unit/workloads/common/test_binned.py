import numpy as np
import pytest

from crpipe.workloads.common.binned import profile, quantiles_in_bins, wide_cuts


def test_quantiles_in_bins():
    values = np.arange(101.0)
    table = quantiles_in_bins(values, np.full(101, 5.0), np.array([1.0, 10.0, 100.0]), (0.16, 0.5), 20)
    assert table[:, 0].tolist() == [16, 50]
    assert np.isnan(table[:, 1]).all()


def test_a_bin_of_too_few_events_is_left_out():
    where = np.array([1.0, 1.5, 5.0, 20.0, 21.0, 22.0])
    found = profile(where, np.array([3.0, 10.0]), 2, lambda mine: (where[mine].sum(), mine.sum()))
    assert found.where.tolist() == [1.25, 21.0]
    assert found.value.tolist() == [2.5, 63.0]
    assert found.error.tolist() == [2, 3]


@pytest.mark.parametrize("logarithmic", [True, False])
def test_every_event_is_in_a_bin_of_twenty_or_more(logarithmic):
    """A long tail must not be left out, nor events at either end of the range."""
    values = np.random.default_rng(1).pareto(1.0, 2000) + 1
    cuts = wide_cuts(values, 20, 12, logarithmic=logarithmic)
    counts, _ = np.histogram(values, [values.min(), *cuts, values.max()])
    assert counts.sum() == 2000
    assert counts.min() >= 20
    assert not logarithmic or len(cuts) > 4
