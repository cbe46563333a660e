"""Numbers and figures of bundles, also of few groups or no muons, and no warning (an error here)."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.events.batch import Events
from crpipe.report import figure_style as style
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.statistics import classifier
from crpipe.workloads.muons import MuonGan, MuonGanOptions
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.scoring import classify, metrics, score
from crpipe.workloads.muons.scoring.sample import METRICS, energy_text
from crpipe.workloads.muons.scoring.score import pair_of, sample_of
from measured import measured
from unrendered import unrendered


def test_rows_of_one_primary_are_one_group(bundles):
    events = bundles([1, 2, 3, 0])
    events.columns["primary_minor_id"][:] = [5, 9, 5, 9]
    events.columns["primary_major_id"][:] = [1, 1, 1, 2]
    group = sample_of(events).group.tolist()
    assert group[0] == group[2]
    assert len(set(group)) == 3


def test_groups_are_numbered_in_the_order_of_their_ids(bundles):
    events = bundles([1] * 200)
    rng = np.random.default_rng(1)
    ids = [rng.integers(2**63, 2**63 + 5, 200, np.uint64), rng.integers(7, size=200).astype(np.uint64)]
    events.columns["primary_major_id"][:], events.columns["primary_minor_id"][:] = ids
    _, expected = np.unique(np.stack(ids, axis=1), axis=0, return_inverse=True)
    assert sample_of(events).group.tolist() == expected.tolist()


def test_histograms_show_conditions_multiplicities_and_features(bundles):
    workload = MuonGan(MuonGanOptions(hidden=8))
    events = bundles([0, 3, 4000, 7] * 10)
    found = workload.histograms(workload.model(), events, torch.Generator().manual_seed(1))
    for name in ("log10_multiplicity", "log10_muon_energy_gev", "log10_radius_m"):
        assert {f"{name}/real", f"{name}/generated"} <= found.keys()
    assert len(found["condition/depth_m"]) == 40
    assert len(found["log10_radius_m/real"]) == 10 * (3 + 100 + 7)
    found = workload.histograms(workload.model(), bundles([0, 0]), torch.Generator().manual_seed(1))
    assert "log10_radius_m/real" not in found
    assert "log10_multiplicity/real" in found


UNITS = {
    "lateral": ["distance from the axis [m]", "generated / real"],
    "energy": ["muon energy [GeV]", "generated / real"],
    "energy_radius": ["muon energy [GeV]", "distance from the axis [m]", "generated / real"],
    "multiplicity_energy": ["primary energy [GeV]", "mean multiplicity", "generated / real"],
    "multiplicity": ["multiplicity", "generated / real"],
    "empty": ["primary energy [GeV]", "depth [km]"],
    "classifiers": ["classifier score"],
    "displays": ["x [m]", "log10(E / GeV)"],
}


def words(path):
    return "".join(ET.parse(path).getroot().itertext())


@pytest.mark.slow
def test_figures_are_vector_graphics_with_labels_and_units(toy, tmp_path):
    real, generated = toy(seed=1), toy(seed=2)
    score.draw_all(real, generated, classify.judges(real, generated, classify.OWN), tmp_path)
    for name, labels in UNITS.items():
        text = words(tmp_path / f"{name}.svg")
        assert [label for label in labels if label not in text] == [], name


@pytest.mark.slow
def test_panels_say_how_well_the_histograms_agree(toy, tmp_path):
    with style.style():
        style.save(score.energy(toy(seed=1), toy(seed=2)), tmp_path / "energy.svg")
        style.save(score.energy(toy(seed=1), toy(seed=2, stretch=0.7)), tmp_path / "off.svg")
    text, off = (words(tmp_path / f"{name}.svg") for name in ("energy", "off"))
    chances, wrong = ([float(each) for each in re.findall(r"p = ([\d.e-]+)", one)] for one in (text, off))
    assert len(chances) == 3
    assert min(chances) > 0.01
    assert min(wrong) < 0.01
    rows = (tmp_path / "energy.csv").read_text().splitlines()
    assert rows[0] == "panel,curve,low,high,value,error"
    assert sum(",generated," in row for row in rows) == 3 * 24


@pytest.mark.parametrize("stretch", [0.05, 20.0])
@pytest.mark.parametrize("plot", [score.multiplicity, score.multiplicity_energy])
def test_panels_show_all_of_the_real_histogram_however_far_off_the_generated_one_is(toy, plot, stretch):
    with style.style():
        figure = plot(toy(seed=1), toy(seed=2, stretch=stretch))
    axes = figure.axes[: len(figure.axes) // 2]
    steps = [axis.patches[0].get_data().values for axis in axes]
    real = np.concatenate([values[values > 0] for values in steps])
    low, high = axes[0].get_ylim()
    assert low < real.min()
    assert high > real.max()


def test_classifiers_are_named_as_their_metrics_and_show_the_floor(toy, tmp_path):
    real, generated = toy(seed=1), toy(seed=2)
    with style.style(), figures_of(FigureContext(floor={"auc_full": 0.512, "auc_full_error": 0.007})):
        figure = score.classifiers(classify.judges(real, generated, classify.OWN))
    titles = {" ".join(axis.get_title().split()) for axis in figure.axes}
    assert {"events, own multiplicities", "multiplicities"} <= titles
    assert sum(title.startswith("limit 0.") for title in titles) == 2
    assert sum(len(axis.patches) for axis in figure.axes[2:]) == 1  # the floor's band


@pytest.mark.parametrize(
    ("energy_gev", "text"), [(1.6e9, "1.6 EeV"), (3.04e4, "30 TeV"), (9.99e5, "1000 TeV"), (12.0, "12 GeV")]
)
def test_energies_are_written_in_their_unit(energy_gev, text):
    assert energy_text(energy_gev) == text


def test_each_multiplicity_below_ten_has_its_bin():
    edges = score._multiplicity_edges(5000)
    placed = np.searchsorted(edges, [score._ZERO, *range(1, 10)], side="right") - 1
    assert placed.tolist() == list(range(10))
    assert edges[-1] > 5000


DECLARED = {metric.name: metric for metric in METRICS}


def make_events(groups, depths, mean, seed, energy=None):
    """Groups of events at several depths; their muons depend on the seed, their conditions do not."""
    fixed, rng = np.random.default_rng(groups), np.random.default_rng([seed, groups, depths])
    count = groups * depths
    columns = {field.name: np.zeros(count, field.dtype) for field in BUNDLES.events}
    columns["primary_minor_id"] = np.repeat(np.arange(groups), depths).astype(np.uint64)
    columns["energy_gev"] = np.repeat(10 ** fixed.uniform(4, 7, groups), depths).astype(np.float32)
    columns["zenith_rad"] = np.repeat(fixed.uniform(0, 1, groups), depths).astype(np.float32)
    columns["mass_number"] = np.ones(count, np.float32)
    columns["depth_m"] = np.tile(np.linspace(1000, 2800, depths), groups).astype(np.float32)
    if energy is not None:
        columns["energy_gev"][:] = energy
    multiplicity = rng.poisson(mean, count).astype(np.uint32)
    muons = np.abs(rng.normal(10, 5, (int(multiplicity.sum()), 3))).astype(np.float32)
    return Events(columns, multiplicity, muons)


def compared(real, generated):
    """Numbers and errors of everything but the classifiers."""
    scores = metrics.compare(real, generated, {}) | metrics.compare_given(real, generated, {})
    return measured(scores, len(real), real.group)


@settings(max_examples=30, deadline=None)
@given(
    groups=st.integers(1, 30),
    depths=st.sampled_from((1, 2, 20)),
    means=st.tuples(st.sampled_from((0.0, 0.3, 5.0, 40.0)), st.sampled_from((0.0, 5.0, 40.0))),
    seed=st.integers(0, 5),
)
def test_numbers_of_any_few_events_are_finite_or_missing(groups, depths, means, seed):
    found = compared(
        *pair_of(*(make_events(groups, depths, mean, 2 * seed + side) for side, mean in enumerate(means)))
    )
    assert np.isfinite(list(found.values())).all()


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "depths", "means"), [(1, 1, (0.0, 0.0)), (30, 4, (5.0, 0.0))])
def test_every_figure_is_plotted_of_few_events(groups, depths, means, tmp_path):
    truth, made = (make_events(groups, depths, mean, side) for side, mean in enumerate(means))
    score.score(truth, made, tmp_path)
    score.score_given(truth, made, tmp_path)
    assert len(list(tmp_path.glob("*.svg"))) == 9


@pytest.mark.parametrize("groups", [3, 30])
def test_halves_of_the_truth_whose_conditions_differ_are_compared(groups, tmp_path):
    """Each band of energies has other events, and other groups, on the two sides."""
    truth, half = (make_events(groups, 4, 5.0, side) for side in (1, 2))
    shuffled = np.random.default_rng(3).permutation(len(half))
    half = half.take(shuffled)
    half.columns["energy_gev"] = 10 ** np.random.default_rng(4).uniform(3, 9, len(half)).astype(np.float32)
    with unrendered():
        scores = score.score(truth, half, tmp_path) | score.score_given(truth, half, tmp_path)
    found = measured(scores, len(truth), sample_of(truth).group)
    assert np.isfinite(list(found.values())).all()
    assert "mean_multiplicity" in found


def test_enough_groups_have_every_declared_number(tmp_path, monkeypatch):
    monkeypatch.setattr(classifier, "TREES", 5)
    monkeypatch.setattr(classifier, "SEEDS", 1)
    groups = max(metric.groups for metric in METRICS)
    truth, made = (make_events(groups, 60, 40.0, side, energy=5e5) for side in (1, 2))
    with unrendered():
        scores = score.score(truth, made, tmp_path) | score.score_given(truth, made, tmp_path)
    found = measured(scores, len(truth), sample_of(truth).group)
    assert DECLARED.keys() <= found.keys()
    fewer, others = (make_events(groups - 1, 60, 40.0, side, energy=5e5) for side in (1, 2))
    with unrendered():
        scores = score.score(fewer, others, tmp_path) | score.score_given(fewer, others, tmp_path)
    assert not [name for name in scores if name.startswith("auc_")]
    assert "w1_log_energy" in scores
