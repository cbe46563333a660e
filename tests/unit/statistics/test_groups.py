"""Errors by group: they cover, and halves and folds keep groups whole."""

import numpy as np
import pytest

from crpipe.statistics.groups import (
    bootstrapped,
    derived,
    error_of,
    folds,
    group_numbers,
    halves,
    mean,
    of_events,
    quantile,
    ratio,
    sums_by_group,
    vector_mean_length,
)


def grouped(seed, groups=60, sizes=9, middle=0.3):
    """Values whose groups share an offset: [N], and the group of each."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rng.integers(1, sizes, groups))
    return middle + rng.normal(size=groups)[group] + 0.3 * rng.normal(size=len(group)), group


def measured(statistic, group):
    values = bootstrapped({"it": statistic}, group)["it"]
    return values[0], error_of(values, int(group.max()) + 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statistic", "truth"),
    [
        (mean, 0.3),
        (lambda values: quantile(values, 0.5), 0.3),
        (lambda values: ratio(values + 5, np.abs(values) + 5), None),
    ],
    ids=["mean", "median", "ratio"],
)
def test_the_interval_of_one_error_holds_the_truth_in_68_of_100_cases(statistic, truth):
    if truth is None:
        values, group = grouped(0, groups=200_000)
        truth = statistic(values)(np.ones(len(values)))
    inside = []
    for seed in range(1000):
        values, group = grouped(seed + 1)
        value, error = measured(statistic(values), group)
        inside.append(abs(value - truth) <= error)
    assert 0.63 <= np.mean(inside) <= 0.73


def test_errors_by_event_would_be_too_small():
    values, group = grouped(1)
    assert measured(mean(values), group)[1] > 1.5 * measured(mean(values), np.arange(len(values)))[1]


def test_two_methods_on_the_same_groups_are_subtracted_replica_by_replica():
    values, group = grouped(1)
    other = values + 0.01 * np.random.default_rng(2).normal(size=len(values))
    drawn = bootstrapped({"one": mean(values), "other": mean(other)}, group)
    groups = int(group.max()) + 1
    assert error_of(drawn["one"] - drawn["other"], groups) < error_of(drawn["one"], groups) / 20


def test_one_group_has_no_error():
    assert np.isnan(measured(mean(np.arange(5.0)), np.zeros(5, int))[1])
    assert np.isnan(measured(lambda _: float("nan"), np.arange(5))[1])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.6827, 1.0])
def test_a_quantile_is_numpys_of_events_that_are_repeated(share):
    rng = np.random.default_rng(3)
    values, weights = rng.normal(size=40).round(1), rng.poisson(1.0, 40).astype(float)
    expected = np.quantile(np.repeat(values, weights.astype(int)), share)
    assert quantile(values, share)(weights) == pytest.approx(expected)
    assert quantile(values, share)(np.ones(40)) == pytest.approx(np.quantile(values, share))
    assert np.isnan(quantile(values, share)(np.zeros(40)))


def test_statistics_of_events():
    values, weights = np.array([1.0, 2.0, 6.0]), np.array([1.0, 0.0, 2.0])
    assert mean(values)(weights) == pytest.approx(13 / 3)
    assert mean(values, np.array([1.0, 1.0, 0.5]))(weights) == pytest.approx(3.5)
    assert np.isnan(ratio(values, np.zeros(3))(weights))
    assert derived(lambda a, b: a - b, mean(values), mean(values))(weights) == 0
    assert of_events(mean(values[[0, 2]]), np.array([0, 2]))(weights) == pytest.approx(13 / 3)
    vectors = np.array([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]])
    assert vector_mean_length(vectors)(weights) == pytest.approx(np.sqrt(5) / 3)


def test_group_numbers_tell_rows_apart():
    rng = np.random.default_rng(4)
    columns = [rng.integers(0, 3, 100).astype(np.uint64), rng.integers(0, 4, 100).astype(np.float32)]
    expected = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].ravel()
    assert np.array_equal(group_numbers(columns), expected)


def test_folds_keep_groups_whole_and_are_even():
    group = np.random.default_rng(5).integers(0, 53, 1000)
    dealt = folds(group, 5, seed=1)
    of_group = [set(dealt[group == each]) for each in range(53)]
    assert all(len(each) == 1 for each in of_group)
    counts = np.bincount([each.pop() for each in of_group])
    assert counts.max() - counts.min() <= 1
    assert not np.array_equal(dealt, folds(group, 5, seed=2))


def test_halves_share_no_group_and_no_event():
    group = np.random.default_rng(6).integers(0, 41, 500)
    first, second, pair = halves(group)
    assert len(first) == len(second) == len(pair) > 200
    assert not set(group[first]) & set(group[second])
    assert len({*first, *second}) == 2 * len(first)
    for number in range(pair.max() + 1):
        assert len(set(group[first[pair == number]])) == len(set(group[second[pair == number]])) == 1


def test_one_group_has_no_halves():
    assert [len(each) for each in halves(np.zeros(5, int))] == [0, 0, 0]


def test_sums_by_group_leave_out_what_is_in_no_bin():
    sums = sums_by_group(np.array([0, 0, 1, 1]), 2, np.array([0, 1, 1, 2]), 2, np.array([1.0, 2.0, 3.0, 9.0]))
    assert sums.tolist() == [[1.0, 2.0], [0.0, 3.0]]
