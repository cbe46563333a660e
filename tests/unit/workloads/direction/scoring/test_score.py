"""Numbers and figures of directions, of one event to thousands, and no warning (an error here)."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from crpipe.report import figure_style as style
from crpipe.workloads.direction.layout import unit_vectors
from crpipe.workloads.direction.scoring import metrics, score
from measured import measured


def test_a_prediction_with_a_baseline_beside_it_has_figures(judged, tmp_path):
    truth, prediction = judged(100)
    found = score.score(truth, prediction, tmp_path)
    assert found.keys() == metrics.measure(truth.columns, prediction, truth.multiplicity).keys()
    assert {path.stem for path in tmp_path.glob("*.svg")} == {*LABELS}


def test_the_baseline_itself_has_numbers_and_no_figures(judged, tmp_path):
    truth, prediction = judged(100)
    fit = {name: prediction[f"baseline_{name}"] for name in ("azimuth", "zenith")}
    median = score.score(truth, fit | {"doms": prediction["doms"]}, tmp_path)["angle_median_deg"]
    network = score.score(truth, prediction, tmp_path / "network")["angle_median_deg"]
    assert median(np.ones(100)) > network(np.ones(100))
    assert not list(tmp_path.glob("*.svg"))


LABELS = {
    "angle": ["opening angle of 4,000 held-out events", "network: median", "regression: median", "random"],
    "dependence": [
        "opening angle of 4,000 held-out events",
        "pulses",
        "sensors hit",
        "energy [GeV]",
        "cosine of the true zenith angle",
    ],
    "bias": ["z component of 4,000 held-out events", "truth", "network", "regression", "length"],
    "kappa": ["uncertainty of 4,000 held-out events", "median expected from kappa", "68 % circles hold"],
}


def words(path) -> str:
    return "".join(ET.parse(path).getroot().itertext())


@pytest.fixture(scope="module")
def drawn(judged, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    score.draw_all(*judged(4000), folder)
    return folder


def test_figures_are_vector_graphics_with_labels_and_units(drawn):
    for name, labels in LABELS.items():
        text = words(drawn / f"{name}.svg")
        assert [label for label in labels if label not in text] == [], name


@pytest.mark.slow
def test_figures_do_not_grow_with_the_events(judged, drawn, tmp_path):
    score.draw_all(*judged(40_000), tmp_path)
    for name in LABELS:
        assert (tmp_path / f"{name}.svg").stat().st_size < 2 * (drawn / f"{name}.svg").stat().st_size


def test_without_kappa_and_energy_the_figures_do_without(judged, tmp_path):
    truth, prediction = judged(500, energy=False)
    del prediction["kappa"]
    made = score.draw_all(truth, prediction, tmp_path)
    assert [path.stem for path in made] == ["angle", "dependence", "bias"]
    assert "energy" not in words(tmp_path / "dependence.svg")


def test_events_that_are_all_alike_are_plotted_too(judged, tmp_path):
    truth, prediction = judged(100)
    for column in (*truth.columns.values(), *prediction.values(), truth.multiplicity):
        column[:] = column[0]
    assert len(score.draw_all(truth, prediction, tmp_path)) == len(LABELS)


@pytest.mark.parametrize("decades", [1.0, 1.75, 3.5])
def test_few_values_of_a_condition_are_named_on_its_axis(judged, decades):
    truth, prediction = judged(300)
    true = unit_vectors(truth.columns["azimuth"], truth.columns["zenith"])
    network = score._directions("network", score._NETWORK, true, prediction, "")
    energy = 10 ** np.linspace(2.1, 2.1 + decades, 300)
    with style.style():
        figure = score.dependence([network], {"energy [GeV]": energy})
        figure.canvas.draw()
    (axis,) = figure.axes
    low, high = axis.get_xlim()
    ticks = [*axis.get_xticklabels(), *axis.get_xticklabels(minor=True)]
    named = [tick for tick in ticks if tick.get_text() and low <= tick.get_position()[0] <= high]
    assert 1 <= len(named) <= 5


def test_quantiles_in_bins_are_those_of_the_events_inside():
    values = np.repeat([1.5, 2.5, 3.5], [100, 19, 400])
    angles = np.concatenate([np.linspace(0, 1, 100), np.zeros(19), np.linspace(2, 3, 400)])
    found = score.quantiles(angles, values, np.array([2.0, 3.0]))
    assert found.where.tolist() == [1.5, 3.5]  # 19 events are too few
    assert found.median_deg == pytest.approx([0.5, 2.5])
    assert found.p16_deg == pytest.approx([0.16, 2.16])
    assert found.p84_deg == pytest.approx([0.84, 2.84])
    assert found.median_above_deg - found.median_below_deg == pytest.approx([0.1, 0.05])


def test_fewer_than_twenty_events_are_said_to_be_too_few(judged, tmp_path):
    paths = score.draw_all(*judged(10), tmp_path)
    assert all("10 held-out" in words(path) for path in paths)
    assert "fewer than 20 events" in words(tmp_path / "dependence.svg")


def test_mean_vectors_in_the_figure_are_those_of_the_directions(judged):
    truth, _ = judged(1000)
    true = unit_vectors(truth.columns["azimuth"], truth.columns["zenith"])
    collapsed = np.tile([0.0, 0.0, 1.0], (1000, 1))
    figure = score.bias([score.Directions("network", "blue", collapsed, np.zeros(1000))], true)
    points = [line.get_ydata() for line in figure.axes[1].lines if line.get_marker() == "o"]
    assert points[0][:3] == pytest.approx(true.mean(axis=0))
    assert points[1] == pytest.approx([0, 0, 1, 1])


@pytest.mark.parametrize("events", [1, 2, 3, 30])
def test_numbers_of_few_events_are_finite(judged, events):
    truth, prediction = judged(events)
    found = measured(metrics.measure(truth.columns, prediction, truth.multiplicity), len(truth))
    names = [metric.name for metric in (*metrics.METRICS, *metrics.KAPPA_METRICS)]
    assert np.isfinite(list(found.values())).all()
    few = {each.name for each in (*metrics.METRICS, *metrics.KAPPA_METRICS) if each.groups > events}
    assert {*names} - few <= found.keys()
    assert ("angle_mean_deg_error" in found) == (events > 1)
