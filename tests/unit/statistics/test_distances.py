"""Distances between samples: known ones, and none between equal samples."""

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from crpipe.statistics import distances
from crpipe.statistics.distances import Values, frechet, frechet_of, kernel, separation, wasserstein


def moved(real, generated, cell=None):
    """The Wasserstein distance of two samples of one value per event."""
    count = len(real)
    event = np.arange(count)
    cell = np.zeros(count, int) if cell is None else cell
    sides = (Values(values, event, np.ones(count), cell) for values in (real, generated))
    return wasserstein(*sides, event)


def test_the_distance_of_a_shift_is_the_shift():
    values = np.random.default_rng(1).normal(size=5000)
    assert moved(values, values + 0.3)(np.ones(5000)) == pytest.approx(0.3, rel=0.02)


def test_the_distance_of_large_samples_is_scipys():
    rng = np.random.default_rng(2)
    one, two = rng.normal(size=20_000), 1.3 * rng.normal(size=20_000) + 0.2
    assert moved(one, two)(np.ones(20_000)) == pytest.approx(wasserstein_distance(one, two), rel=0.05)


def test_equal_samples_are_nearer_than_their_plain_distance():
    rng = np.random.default_rng(3)
    pairs = [rng.normal(size=(2, 200)) for _ in range(40)]
    plain = np.mean([wasserstein_distance(*pair) for pair in pairs])
    assert abs(np.mean([moved(*pair)(np.ones(200)) for pair in pairs])) < 0.7 * plain


def test_distances_are_taken_at_equal_conditions():
    """Two conditions whose values are exchanged: the whole samples are equal, not those of a condition."""
    rng = np.random.default_rng(4)
    cell = np.arange(4000) % 2
    one, two = rng.normal(size=4000) + cell, rng.normal(size=4000) + 1 - cell
    assert moved(one, two)(np.ones(4000)) == pytest.approx(0.0, abs=0.05)
    assert moved(one, two, cell)(np.ones(4000)) == pytest.approx(1.0, rel=0.1)


def test_weights_decide_which_events_count():
    rng = np.random.default_rng(5)
    one = rng.normal(size=3000)
    two = np.where(np.arange(3000) < 2000, one + 0.5, one + 3.0)
    assert moved(one, two)(1.0 * (np.arange(3000) < 2000)) == pytest.approx(0.5, rel=0.05)
    assert np.isnan(moved(one, two)(np.zeros(3000)))


def test_counts_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    rng = np.random.default_rng(6)
    event = np.sort(rng.integers(0, 50, 1000))
    weights, group = rng.random(50), np.arange(50)
    sides = [Values(rng.normal(size=1000), event, weights, group % 2) for _ in range(2)]
    whole = wasserstein(*sides, group)(np.ones(50))
    assert whole > 0
    monkeypatch.setattr(distances, "_AT_ONCE", 7)
    assert wasserstein(*sides, group)(np.ones(50)) == pytest.approx(whole)


def test_a_cell_with_few_events_says_nothing():
    rng = np.random.default_rng(7)
    cell = np.where(np.arange(2000) < 4, 1, 0)
    one, two = rng.normal(size=(2, 2000))
    two[:4] += 100
    assert moved(one, two, cell)(np.ones(2000)) == pytest.approx(0.0, abs=0.1)


def test_halves_with_other_conditions_are_compared_at_equal_ones():
    """Events of two samples do not correspond, as in halves of the truth: each has the cell of its own."""
    rng = np.random.default_rng(8)
    cells = rng.integers(0, 2, (2, 4000))
    event = np.arange(4000)
    sides = [Values(5.0 * cell + rng.normal(size=4000), event, np.ones(4000), cell) for cell in cells]
    assert wasserstein(*sides, event)(np.ones(4000)) == pytest.approx(0.0, abs=0.1)


def test_rows_of_one_group_are_no_pairs_of_the_kernel_distance():
    """Groups of 20 rows that are nearly alike: equal samples stay 0 apart."""
    values = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(50), 20)
        sides = [rng.normal(size=(50, 3))[group] + 0.01 * rng.normal(size=(1000, 3)) for _ in range(2)]
        values.append(kernel(*sides, group, np.ones(1000))(np.ones(1000)))
    assert abs(np.mean(values)) < 3 * np.std(values, ddof=1) / np.sqrt(20)


def test_the_frechet_distance_of_two_gaussians():
    first, second = np.diag([4.0, 1.0]), np.diag([1.0, 9.0])
    assert frechet_of(np.zeros(2), np.array([3.0, 0.0]), first, second) == pytest.approx(9 + 1 + 4)
    turned = np.array([[0.6, -0.8], [0.8, 0.6]])
    pair = (turned @ each @ turned.T for each in (first, second))
    assert frechet_of(np.zeros(2), turned @ [3.0, 0.0], *pair) == pytest.approx(14)


@pytest.mark.parametrize("kind", ["frechet", "kernel", "separation"])
def test_equal_samples_are_0_apart_on_average_and_others_are_not(kind):
    def measure(shift, seed, count=600):
        rng = np.random.default_rng(seed)
        ours, theirs = (rng.normal(size=(count, 3)) + each for each in (0.0, shift))
        every = np.arange(count)
        statistic = {
            "frechet": lambda: frechet(ours, theirs, every, np.ones(count)),
            "kernel": lambda: kernel(ours, theirs, every, np.ones(count)),
            "separation": lambda: separation(ours[:, 0], theirs[:, 0], every, np.ones(count)),
        }[kind]()
        return statistic(np.ones(count))

    equal = np.array([measure(0.0, seed) for seed in range(30)])
    apart = np.array([measure(0.8, seed) for seed in range(10)])
    assert abs(equal.mean()) < 4 * equal.std(ddof=1) / np.sqrt(30)
    assert apart.min() > 3 * np.abs(equal).max()


def test_too_few_events_have_no_distance():
    ones = np.ones((3, 2))
    known = np.arange(3), np.ones(3)
    assert np.isnan(frechet(ones, ones, *known)(np.array([1.0, 0.0, 0.0])))
    assert np.isnan(kernel(ones, ones, *known)(np.array([1.0, 0.0, 0.0])))
    assert np.isnan(separation(ones[:, 0], ones[:, 0], *known)(np.zeros(3)))
