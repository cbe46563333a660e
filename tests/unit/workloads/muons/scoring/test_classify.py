from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from crpipe.workloads.muons.scoring import classify


def test_copies_of_a_condition_never_straddle_the_halves():
    group = np.random.default_rng(1).integers(0, 50, 1000)
    chosen = classify._half(group, np.random.default_rng(2))
    for number in range(50):
        assert len(np.unique(chosen[group == number])) == 1
    assert 0.3 < chosen.mean() < 0.7


def test_held_out_rows_are_whole_groups(toy):
    real, generated = toy(seed=1), toy(seed=2)
    verdict = classify.compare(real, generated, classify.multiplicity_rows)
    held_out = np.unique(verdict.group)
    assert len(verdict.score) == 2 * np.isin(real.group, held_out).sum()
    assert verdict.real.mean() == pytest.approx(0.5)


def make_scores(seed, groups=40, largest=30):
    """Scores of clustered rows of two samples of the same distribution: what is real says nothing."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), np.ceil(largest ** rng.random(groups)).astype(int) + 1)
    real = rng.random(len(group)) < 0.5
    shared = rng.normal(size=(2, groups))[real.astype(int), group]  # rows of one shower are alike
    score = np.round(shared + 0.5 * rng.normal(size=len(group)), 1)  # with ties
    return classify.ClassifierScores(
        score, real, group + 5, rng.choice([0.0, 1.0, 2.5], len(group), p=[0.1, 0.6, 0.3])
    )


def test_the_area_is_scikit_learns_with_ties_and_weights():
    verdict = make_scores(1)
    expected = roc_auc_score(verdict.real, verdict.score, sample_weight=verdict.weight)
    assert verdict.auc() == pytest.approx(expected, rel=1e-12)


def test_the_error_is_that_of_leaving_out_one_group_at_a_time():
    verdict = make_scores(2)
    names = np.unique(verdict.group[verdict.weight > 0])
    without = [
        roc_auc_score(verdict.real[kept], verdict.score[kept], sample_weight=verdict.weight[kept])
        for kept in (verdict.group != name for name in names)
    ]
    share = (len(names) - 1) / len(names)
    expected = np.sqrt(share * np.sum((np.array(without) - np.mean(without)) ** 2))
    assert verdict.error() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("groups", [10, 40])
def test_the_area_of_two_equal_samples_is_within_its_error_of_a_half_in_two_cases_of_three(groups):
    pulls = np.array(
        [
            (verdict.auc() - 0.5) / verdict.error()
            for verdict in (make_scores(seed, groups) for seed in range(400))
        ]
    )
    assert 0.55 < np.mean(np.abs(pulls) <= 1) < 0.80
    if groups == 40:  # of ten groups the tails are wider than a Gaussian's
        assert 0.8 < np.sqrt(np.mean(pulls**2)) < 1.3


def test_one_group_or_one_side_has_no_error():
    verdict = make_scores(3)
    one = verdict._replace(group=np.zeros_like(verdict.group))
    assert 0 < one.auc() < 1
    assert np.isnan(one.error())
    assert np.isnan(verdict._replace(real=np.ones_like(verdict.real)).auc())
    assert np.isnan(verdict._replace(weight=np.zeros_like(verdict.weight)).error())


def test_too_few_groups_of_one_side_give_no_verdict(toy):
    """Generated events that are bundles in a few groups only have no error that means anything."""
    group = np.arange(4000) // 200
    real, generated = (replace(toy(seed=seed), group=group) for seed in (1, 2))
    assert classify.compare(real, generated, classify.muon_rows) is not None
    kept = group < 5
    few = replace(
        generated,
        multiplicity=np.where(kept, generated.multiplicity, 0).astype(np.uint32),
        muons=generated.muons[kept[generated.event]],
    )
    assert len(classify.muon_rows(few)[0]) >= classify.FEWEST_ROWS
    assert classify.compare(real, few, classify.muon_rows) is None


def test_too_few_rows_give_no_verdict(toy):
    assert classify.compare(toy(50), toy(50), classify.multiplicity_rows) is None


def test_a_large_event_does_not_drown_the_others(toy):
    event, features = classify.muon_rows(toy(seed=1))
    assert len(features(np.arange(len(event)))) == len(event)
    assert np.bincount(event).max() == classify.MUONS_PER_EVENT


@pytest.mark.parametrize("name", ["muon_rows", "bundle_rows", "full_rows", "multiplicity_rows"])
def test_features_of_some_rows_are_those_of_all(toy, name):
    event, features = getattr(classify, name)(toy(seed=1))
    chosen = np.random.default_rng(1).permutation(len(event))[:50]
    assert (features(chosen) == features(np.arange(len(event)))[chosen]).all()
