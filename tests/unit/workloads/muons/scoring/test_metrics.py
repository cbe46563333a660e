import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import wasserstein_distance
from sklearn.metrics import roc_auc_score

from crpipe.workloads.common.errors import group_weights
from crpipe.workloads.muons.scoring import classify, metrics
from crpipe.workloads.muons.scoring.sample import radius


@pytest.fixture(scope="module")
def good(toy):
    real, generated = toy(seed=1), toy(seed=2)
    return metrics.compare(real, generated, metrics.classifier_scores(real, generated))


@pytest.fixture(scope="module")
def bad(toy):
    real, generated = toy(seed=1), toy(seed=2, shift=0.3, stretch=2.0)
    return metrics.compare(real, generated, metrics.classifier_scores(real, generated))


def test_without_scikit_learn_the_aucs_are_left_out_and_a_warning_names_the_extra(
    toy, good, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    real, generated = toy(seed=1), toy(seed=2)
    judged = metrics.classifier_scores(real, generated)
    numbers = metrics.compare(real, generated, judged)
    assert {*good} - {*numbers} == {name for name in good if name.startswith("auc_")}
    assert all(numbers[name] == good[name] for name in numbers)
    assert "the AUCs are left out" in caplog.text
    assert "pip install 'crpipe[evaluate]'" in caplog.text


def test_wasserstein_is_scipys():
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=300), rng.normal(0.4, 2.0, size=170)
    weights = [(np.ones(300), np.ones(170)), (rng.poisson(1.0, 300) * 1.0, rng.poisson(1.0, 170) * 1.0)]
    found = metrics.wasserstein(one, two, iter(weights))
    expected = [wasserstein_distance(one, two, *pair) for pair in weights]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_groups_give_the_distances_of_single_weights_to_the_last_bit(weighted):
    rng = np.random.default_rng(1)
    one, two = (rng.normal(size=count).round(1) for count in (70_000, 900))
    factors = group_weights(np.arange(50), metrics.REPLICAS)
    factors[3] = 0
    groups = rng.integers(50, size=len(one)), rng.integers(50, size=len(two))
    weights = rng.random(len(one)), rng.random(len(two))
    own = weights if weighted else (np.ones(len(one)), np.ones(len(two)))
    pairs = [(row[groups[0]] * own[0], row[groups[1]] * own[1]) for row in factors]
    expected = metrics.wasserstein(one, two, pairs)
    found = metrics.Weighing(factors, groups, weights if weighted else None).distances(one, two)
    assert np.isnan(found[3])
    assert found.tobytes() == expected.tobytes()


def test_a_perfect_model_is_told_from_a_bad_one(good, bad):
    for name in ("auc_muon", "auc_event", "auc_multiplicity", "auc_full"):
        assert good[name] == pytest.approx(0.5, abs=0.05)
        assert bad[name] > good[name] + 0.05
    assert bad["w1_log_energy"] == pytest.approx(0.3, abs=0.04)
    assert good["w1_log_energy"] < 0.08
    assert good["multiplicity_ratio"] == pytest.approx(1.0, abs=0.05)
    assert bad["multiplicity_ratio"] == pytest.approx(2.0, abs=0.1)
    for found, expected in ((good, 1.0), (bad, 2.0)):
        assert 0 < found["multiplicity_ratio_error"] < 0.2
        assert abs(found["multiplicity_ratio"] - expected) < 4 * found["multiplicity_ratio_error"]
    assert bad["empty_share_difference"] > 3 * good["empty_share_difference"]
    assert bad["w1_log_multiplicity"] > 3 * good["w1_log_multiplicity"]


def test_distances_are_averages_over_bins(toy):
    real, generated = toy(seed=1), toy(seed=2, shift=0.1)
    expected = []
    for number in np.unique(real.joint_bins):
        ours, theirs = (side.joint_bins[side.event] == number for side in (real, generated))
        if ours.sum() >= metrics.FEWEST_MUONS:
            expected.append(wasserstein_distance(radius(real.muons[ours]), radius(generated.muons[theirs])))
    found = metrics.binned_distances(real, generated, np.ones((3, real.group.max() + 1)))
    assert found["bins"] == len(expected)
    assert found["w1_radius_m"] == pytest.approx(np.mean(expected))
    assert found["w1_radius_m_error"] == 0


def test_bootstrap_errors_are_the_spread_of_repeated_measurements(toy, good):
    repeated = []
    for seed in range(12):
        real, generated = toy(seed=100 + seed), toy(seed=200 + seed)
        ones = np.ones((3, real.group.max() + 1))
        repeated.append(metrics.binned_distances(real, generated, ones)["w1_log_energy"])
    assert good["w1_log_energy_error"] == pytest.approx(np.std(repeated, ddof=1), rel=1.0)


def test_bins_without_generated_muons_are_counted_not_hidden(toy):
    real, generated = toy(seed=1), toy(seed=2)
    none = replace(
        generated, multiplicity=np.zeros(len(generated), np.uint32), muons=np.zeros((0, 3), np.float32)
    )
    numbers = metrics.compare(real, none, metrics.classifier_scores(real, none))
    assert numbers["bins"] == 0
    assert numbers["bins_empty"] > 10
    assert "w1_log_energy" not in numbers
    assert "auc_muon" not in numbers
    assert numbers["auc_multiplicity"] > 0.6
    assert np.isfinite(list(numbers.values())).all()


def test_anisotropy_sees_a_direction(toy):
    sample = toy(seed=1)
    squeezed = replace(sample, muons=sample.muons * np.array([1, 1, 0.3], np.float32))
    assert metrics.anisotropy(sample) < 0.03
    assert metrics.anisotropy(squeezed) > 0.2


def test_marginal_distances_name_their_bin(good):
    assert "w1_log_energy/all" in good
    assert "w1_radius_m/depth_m_above_1900" in good
    assert "w1_log_energy/zenith_deg_below_53.13" in good


def test_weights_decide_which_events_count(toy):
    """Weights of 0 and 7 measure what the events of weight 7 alone do; equal weights change nothing."""
    real, generated = toy(3000), toy(3000, seed=1, shift=0.1)
    kept = np.arange(3000) < 2000
    weighted = [replace(each, weight=7.0 * kept) for each in (real, generated)]
    equal = [replace(each, weight=np.full(3000, 0.25)) for each in (real, generated)]
    alone = [
        replace(
            each,
            columns={name: column[kept] for name, column in each.columns.items()},
            multiplicity=each.multiplicity[kept],
            muons=each.muons[kept[each.event]],
            group=each.group[kept],
        )
        for each in (real, generated)
    ]
    found, expected = metrics.compare(*weighted, {}), metrics.compare(*alone, {})
    names = ["empty_share_real", "multiplicity_ratio", "anisotropy", "w1_radius_m/all", "w1_log_energy/all"]
    assert [found[name] for name in names] == pytest.approx([expected[name] for name in names], rel=1e-9)
    assert metrics.compare(*equal, {}) == pytest.approx(metrics.compare(real, generated, {}), rel=1e-9)


def test_a_classifier_looks_at_events_of_some_weight_only(toy):
    """Generated events that are wrong have no weight: nothing separates the rest."""
    real, generated = toy(4000), toy(4000, seed=1, stretch=3.0)
    good = toy(4000, seed=2)
    wrong = np.arange(4000) % 2 == 1
    mixed = np.where(wrong, generated.multiplicity, good.multiplicity)
    sides = [replace(real, weight=1.0 * ~wrong), replace(good, multiplicity=mixed, weight=1.0 * ~wrong)]
    plain = [replace(side, weight=None) for side in sides]
    weighted = classify.compare(*sides, classify.multiplicity_rows).auc()
    assert weighted < 0.54
    assert classify.compare(*plain, classify.multiplicity_rows).auc() > weighted + 0.03


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
