"""What an evaluation says of bundles: equal samples, wrong ones, and what no classifier may do."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from crpipe.statistics import classifier
from crpipe.workloads.muons.scoring import classify, metrics
from crpipe.workloads.muons.scoring.sample import METRICS
from measured import measured


@pytest.fixture(autouse=True)
def smaller_forests(monkeypatch):
    monkeypatch.setattr(classifier, "TREES", 20)
    monkeypatch.setattr(classifier, "SEEDS", 1)


def compared(real, generated):
    """Numbers and errors of everything, with classifiers."""
    own = metrics.compare(real, generated, classify.judges(real, generated, classify.OWN))
    given = metrics.compare_given(real, generated, classify.judges(real, generated, classify.GIVEN))
    return measured({**own, **given}, len(real), real.group)


@pytest.fixture(scope="module")
def pairs(toy):
    return {
        "good": (toy(seed=1), toy(seed=2)),
        "bad": (toy(seed=1), toy(seed=2, shift=0.3, stretch=2.0)),
    }


def test_without_scikit_learn_the_aucs_are_left_out_and_a_warning_names_the_extra(pairs, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    numbers = compared(*pairs["good"])
    assert not any(name.startswith("auc_") for name in numbers)
    assert "w1_log_energy" in numbers
    assert "the AUCs are left out" in caplog.text
    assert "pip install 'crpipe[evaluate]'" in caplog.text


@pytest.mark.slow
def test_a_perfect_model_is_told_from_a_bad_one(pairs):
    good, bad = (compared(*pair) for pair in pairs.values())
    assert {metric.name for metric in METRICS} <= good.keys()
    for name in ("auc_muon", "auc_event", "auc_multiplicity", "auc_full"):
        assert abs(good[name] - 0.5) < 4 * good[f"{name}_error"]
        assert bad[name] > good[name] + 0.05
    assert bad["w1_log_energy"] == pytest.approx(0.3, abs=0.05)
    assert abs(good["w1_log_energy"]) < 0.05
    assert bad["mean_multiplicity"] == pytest.approx(2.0, abs=5 * bad["mean_multiplicity_error"])
    assert good["mean_multiplicity"] == pytest.approx(1.0, abs=5 * good["mean_multiplicity_error"])
    assert bad["leading"] == pytest.approx(0.3, abs=5 * bad["leading_error"])
    assert abs(good["leading"]) < 5 * good["leading_error"]
    for name in ("fpd", "kpd", "separation/mean_log_energy"):
        assert bad[name] > good[name] + 3 * good[f"{name}_error"]


def test_what_is_off_is_found_where_it_is(toy):
    """The muons of half of the energies are squeezed into the core: the mean does not show it."""
    real, generated = toy(seed=1), toy(seed=2)
    high = np.asarray(generated.columns["energy_gev"])[generated.event] > 1e7
    muons = generated.muons * np.where(high[:, None], [1, 0.1, 0.1], [1, 1, 1]).astype(np.float32)
    table = metrics.compare_given(real, replace(generated, muons=muons), {})["core"]
    value, error = table.values()
    rows = dict(zip(table.labels, zip(value, error, table.chances()[1], strict=True), strict=True))
    assert rows["E0 10 PeV to 100 PeV"][0] > 3
    assert rows["E0 10 PeV to 100 PeV"][2] < 0.01
    assert rows["E0 100 TeV to 1 PeV"][2] > 0.05


def test_the_spectrum_counts_muons_per_event(toy):
    real, generated = toy(seed=1), toy(seed=1, stretch=1.0)
    table = metrics.compare(real, generated, {})["spectrum"]
    assert np.nanmax(np.abs(table.values()[0] - 1)) == 0
    inside = (real.muons[:, 0] >= 100) & (real.muons[:, 0] < 10**2.5)
    energy = np.asarray(real.columns["energy_gev"])
    events = (energy >= 1e6) & (energy < 1e7)
    expected = np.count_nonzero(inside & events[real.event]) / events.sum()
    place = table.labels.index("muons of 100 GeV to 320 GeV, E0 1 PeV to 10 PeV")
    assert table.real.mean[place] == pytest.approx(expected)


def test_spreads_are_those_of_each_side_about_its_own_mean(toy):
    """Generated bundles that are all alike have no spread from event to event; a shift is none."""
    real, generated = toy(seed=1), toy(seed=2)
    alike = replace(generated, muons=np.full_like(generated.muons, 100.0))
    value, _ = metrics.compare_given(real, alike, {})["spread_radius"].values()
    assert value[0] == pytest.approx(0.0, abs=1e-9)
    shifted = replace(real, muons=real.muons * np.array([2, 1, 1], np.float32))
    value, _ = metrics.compare_given(real, shifted, {})["spread_energy"].values()
    assert value[:2] == pytest.approx([1.0, 1.0], rel=1e-4)


def test_samples_without_muons_have_the_numbers_of_multiplicities_alone(toy):
    real, generated = toy(seed=1), toy(seed=2)
    none = replace(
        generated, multiplicity=np.zeros(len(generated), np.uint32), muons=np.zeros((0, 3), np.float32)
    )
    numbers = compared(real, none)
    assert "w1_log_energy" not in numbers
    assert "auc_muon" not in numbers
    assert numbers["auc_multiplicity"] > 0.6
    assert numbers["no_muon"] > 0.1
    assert np.isfinite(list(numbers.values())).all()
    assert metrics.compare(none, none, {}) == {}


def test_distances_are_those_of_muons_at_equal_energies(toy):
    real, generated = toy(20_000, seed=1), toy(20_000, seed=2, shift=0.2)
    decade = np.floor(np.log10(real.columns["energy_gev"]))
    expected = np.mean(
        [
            wasserstein_distance(
                *(np.log10(side.muons[decade[side.event] == each, 0]) for side in (real, generated))
            )
            for each in np.unique(decade)
        ]
    )
    measured_distance = metrics.compare_given(real, generated, {})["w1_log_energy"](np.ones(20_000))
    assert measured_distance == pytest.approx(expected, rel=0.1)


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
    tables = [
        metrics.compare(*pair, {})["mean_multiplicity"]
        for pair in (weighted, alone, equal, (real, generated))
    ]
    values = [table.values()[0] for table in tables]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-9)
    np.testing.assert_allclose(values[2], values[3], rtol=1e-9)


def test_a_large_event_does_not_drown_the_others(toy):
    event, features = classify.muon_rows(toy(seed=1))
    assert len(features(np.arange(len(event)))) == len(event)
    assert np.bincount(event).max() == classify.MUONS_PER_EVENT


@pytest.mark.parametrize(
    "rows", (classify.GIVEN | classify.OWN).values(), ids=(classify.GIVEN | classify.OWN)
)
def test_features_of_some_rows_are_those_of_all(toy, rows):
    event, features = rows(toy(seed=1))
    chosen = np.random.default_rng(1).permutation(len(event))[:50]
    assert (features(chosen) == features(np.arange(len(event)))[chosen]).all()
