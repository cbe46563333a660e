"""Cross-fitted classifiers: what they see, that nothing leaks, and what their limit is."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from crpipe.statistics import classifier
from crpipe.statistics.classifier import FEWEST_GROUPS, LabelledRows, auc, cross_fit, rounded
from crpipe.statistics.groups import bootstrapped, error_of


@pytest.fixture(autouse=True)
def smaller_forests(monkeypatch):
    monkeypatch.setattr(classifier, "TREES", 30)
    monkeypatch.setattr(classifier, "SEEDS", 1)


def rows(seed, shift=0.0, groups=300, each=2):
    """Events in groups, with a feature that is shifted in generated ones, and one that says nothing."""
    rng = np.random.default_rng(seed)
    event = np.tile(np.arange(groups * each), 2)
    real = np.repeat([True, False], groups * each)
    features = rng.normal(size=(len(event), 2))
    features[~real, 0] += shift
    return LabelledRows(features, real, event, np.arange(groups * each) // each, np.ones(len(event)))


def test_equal_samples_are_not_told_apart_and_others_are():
    equal, other = cross_fit(rows(1)), cross_fit(rows(1, shift=1.0, groups=1000))
    assert equal.curve.auc[0] == pytest.approx(0.5, abs=4 * equal.curve.error[0])
    assert other.curve.limit == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.03)
    assert other.statistic(np.ones(2000)) == pytest.approx(other.curve.limit)


def test_a_group_is_judged_by_a_classifier_that_never_saw_it():
    """Each group has a mark of its own that says whether a row is real: whoever saw the group knows it."""
    one = rows(2, each=8)
    mark = np.random.default_rng(3).normal(size=(2, 300))
    features = mark[one.real.astype(int), one.group[one.event]][:, None]
    judge = cross_fit(LabelledRows(features, one.real, one.event, one.group, one.weight))
    assert abs(judge.curve.auc[0] - 0.5) < 0.1
    for number in range(300):
        assert len(np.unique(judge.fold[one.group[one.event] == number])) == 1


def test_too_few_groups_give_no_classifier():
    assert cross_fit(rows(4, groups=FEWEST_GROUPS - 1)) is None
    assert cross_fit(rows(4, groups=FEWEST_GROUPS)) is not None
    one = rows(4, groups=50)
    few = one.real | (one.group[one.event] < 5)  # generated rows of five groups only
    kept = LabelledRows(one.features[few], one.real[few], one.event[few], one.group, one.weight[few])
    assert cross_fit(kept) is None


def test_no_last_bit_decides():
    one = rows(5, shift=0.3)
    features = one.features * (1 + 1e-7 * np.random.default_rng(6).choice([-1, 1], one.features.shape))
    moved = LabelledRows(features, one.real, one.event, one.group, one.weight)
    assert np.mean(rounded(features) == rounded(one.features)) > 0.999
    assert cross_fit(moved).curve.limit == pytest.approx(cross_fit(one).curve.limit, abs=2e-3)
    assert rounded(np.full((5, 1), 2.5)).tolist() == [[2.5]] * 5


def test_weights_decide_which_rows_count():
    one = rows(7, shift=0.0, groups=600)
    features = one.features.copy()
    wrong = ~one.real & (one.event % 2 == 1)
    features[wrong, 0] += 3.0
    weight = np.where(one.event % 2 == 1, 0.0, 1.0)
    seen = cross_fit(LabelledRows(features, one.real, one.event, one.group, one.weight))
    unseen = cross_fit(LabelledRows(features, one.real, one.event, one.group, weight))
    assert seen.curve.auc[0] > 0.6
    assert unseen.curve.auc[0] == pytest.approx(0.5, abs=0.06)


def test_the_area_is_scikit_learns_with_ties_and_weights():
    rng = np.random.default_rng(8)
    score, real = rng.normal(size=500).round(1), rng.random(500) < 0.4
    weight, event = rng.choice([0.0, 1.0, 2.5], 500), rng.integers(0, 50, 500)
    counts = rng.poisson(1.0, 50).astype(float)
    expected = roc_auc_score(real, score, sample_weight=weight * counts[event])
    assert auc(score, real, event, weight)(counts) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(auc(score, np.ones(500, bool), event, weight)(counts))


def test_errors_of_the_area_know_that_rows_come_in_groups():
    one = rows(9, groups=100, each=10)
    shared = np.random.default_rng(10).normal(size=(2, 100))[one.real.astype(int), one.group[one.event]]
    statistic = auc(shared, one.real, one.event, one.weight)
    by_group = error_of(bootstrapped({"it": statistic}, one.group)["it"], 100)
    by_event = error_of(bootstrapped({"it": statistic}, np.arange(1000))["it"], 1000)
    assert by_group > 2 * by_event


def test_a_learning_curve_that_rises_is_not_converged():
    learning = cross_fit(rows(11, shift=0.6, groups=4000, each=1))
    assert learning.curve.groups[0] == 4 * learning.curve.groups[1]
    assert learning.curve.limit >= learning.curve.auc[0] - 1e-9 or learning.curve.converged
