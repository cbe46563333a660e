"""Tables of ratios: values, errors by group, and chances that equal samples have."""

import numpy as np
import pytest

from crpipe.statistics.groups import sums_by_group
from crpipe.statistics.ratios import Bins, Side

LABELS = ("low", "middle", "high")


def table(seed, scale=1.0, groups=200, kind="ratio"):
    """Counts of items in three bins, of two samples of groups that share what makes an event large."""
    rng = np.random.default_rng(seed)
    size = rng.exponential(1.0, groups)
    mean = size[:, None] * np.array([8.0, 2.0, 0.2])
    sides = [Side(rng.poisson(mean * each).astype(float), np.ones((groups, 3))) for each in (1.0, scale)]
    return Bins(LABELS, *sides, kind)


def test_ratios_and_differences():
    value, error = table(1, scale=1.3, groups=20_000).values()
    assert value == pytest.approx([1.3, 1.3, 1.3], abs=0.1)
    assert np.all(np.abs(value - 1.3) < 4 * error)
    value, error = table(1, scale=1.3, groups=20_000, kind="difference").values()
    assert value == pytest.approx([2.4, 0.6, 0.06], abs=0.1)
    assert np.all(error > 0)


@pytest.mark.slow
def test_the_interval_of_one_error_holds_the_ratio_in_68_of_100_cases():
    inside = []
    for seed in range(1000):
        value, error = table(seed, scale=1.2).values()
        inside.append(np.abs(value[:2] - 1.2) <= error[:2])
    assert np.all(np.abs(np.mean(inside, axis=0) - 0.68) <= 0.05)


@pytest.mark.slow
def test_equal_samples_seldom_have_a_small_chance():
    chances = np.array([table(seed, groups=40).chances()[0] for seed in range(400)])
    for level in (0.05, 0.2, 0.5):
        assert np.mean(chances <= level) <= level + 2.5 * np.sqrt(level * (1 - level) / 400)


def test_a_difference_is_found_in_its_bin():
    rng = np.random.default_rng(2)
    ours, theirs = (rng.poisson(4.0, (300, 3)).astype(float) for _ in range(2))
    theirs[:, 1] *= 1.5
    whole, each = Bins(LABELS, Side(ours, np.ones((300, 3))), Side(theirs, np.ones((300, 3)))).chances()
    assert whole == each[1] < 0.01
    assert each[0] > 0.1
    assert each[2] > 0.1


def test_a_bin_that_is_empty_on_one_side_counts():
    ours, theirs = np.zeros((400, 3)), np.zeros((400, 3))
    ours[:, 0] = theirs[:, 0] = np.arange(400) % 3
    ours[:60, 2] = 1.0  # generated events have none
    missing = Bins(LABELS, Side(ours, np.ones((400, 3))), Side(theirs, np.ones((400, 3))))
    value, error = missing.values()
    assert value[2] == 0
    assert 0 < error[2] < 0.5
    assert missing.chances()[1][2] < 0.01
    added = Bins(LABELS, missing.generated, missing.real)
    assert np.isinf(added.values()[0][2])
    assert added.chances()[1][2] < 0.01
    assert np.isnan(missing.values()[0][1])  # nobody has anything there
    assert missing.chances()[1][1] == 1


def test_what_groups_share_is_no_difference():
    """Large groups are large on both sides: the error of the ratio is much smaller than that of each."""
    one = table(3, groups=500)
    _, error = one.values()
    alone = np.std(one.real.over[:, 0], ddof=1) / np.sqrt(500) / one.real.mean[0]
    assert error[0] < 0.6 * alone


def test_sides_are_sums_by_group():
    group, bins = np.array([0, 0, 1]), np.array([0, 1, 1])
    side = Side(*(sums_by_group(group, 2, bins, 2, each) for each in (np.array([1.0, 2.0, 4.0]), np.ones(3))))
    assert side.mean.tolist() == [1.0, 3.0]
    assert side.deviations(side.mean).sum(axis=0) == pytest.approx([0.0, 0.0])
