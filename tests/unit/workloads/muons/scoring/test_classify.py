import numpy as np
import pytest

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


def test_weights_re_weight_groups(toy):
    verdict = classify.compare(toy(seed=1), toy(seed=2, stretch=2.0), classify.multiplicity_rows)
    groups = verdict.group.max() + 1
    assert verdict.auc(np.full(groups, 3.0)) == pytest.approx(verdict.auc())
    assert verdict.auc(np.random.default_rng(1).poisson(1.0, groups) * 1.0) != verdict.auc()


def test_too_few_rows_give_no_verdict(toy):
    assert classify.compare(toy(50), toy(50), classify.multiplicity_rows) is None


def test_a_large_event_does_not_drown_the_others(toy):
    table, event = classify.muon_rows(toy(seed=1))
    assert len(table) == len(event)
    assert np.bincount(event).max() == classify.MUONS_PER_EVENT
