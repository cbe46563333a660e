import numpy as np
import pytest

from crpipe.workloads.xec.scoring.metrics import FEWEST, middle, profile, within


def test_every_event_is_in_one_of_ten_bins_with_equally_many():
    condition = np.random.default_rng(0).exponential(4, 1000)
    found = profile(condition, condition, lambda values: np.count_nonzero(values, axis=-1))
    assert found.value.tolist() == [100] * 10
    assert (np.diff(found.where) > 0).all()


def test_bins_hold_the_statistic_of_their_events():
    rng = np.random.default_rng(0)
    condition = rng.uniform(1, 3, 20_000)
    found = profile(condition, condition * rng.normal(size=20_000), within)
    assert found.value == pytest.approx(found.where, rel=0.1)
    assert (np.abs(found.value - found.where) < 4 * found.error).all()


def test_few_events_have_few_bins_and_too_few_have_none():
    values = np.arange(float(FEWEST * 3))
    assert len(profile(values, values, middle).where) == 3
    assert len(profile(values[: FEWEST - 1], values[: FEWEST - 1], middle).where) == 0
    assert len(profile(values[:0], values[:0], middle).where) == 0


def test_events_of_one_condition_are_one_bin():
    found = profile(np.full(500, 2.0), np.arange(500.0), middle)
    assert found.where.tolist() == [2.0]
    assert found.value.tolist() == [249.5]
