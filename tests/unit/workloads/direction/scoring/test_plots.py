import xml.etree.ElementTree as ET

import numpy as np
import pytest

from crpipe.workloads.direction.layout import unit_vectors
from crpipe.workloads.direction.scoring import plots as score

LABELS = {
    "angle": ["opening angle of 4,000 held-out events", "network: median", "line fit: median", "random"],
    "dependence": [
        "opening angle of 4,000 held-out events",
        "pulses",
        "sensors hit",
        "energy [GeV]",
        "cosine of the true zenith angle",
    ],
    "bias": ["z component of 4,000 held-out events", "truth", "network", "line fit", "length"],
    "kappa": ["uncertainty of 4,000 held-out events", "median expected from kappa", "68 % circles hold"],
}


def words(path) -> str:
    return "".join(ET.parse(path).getroot().itertext())


@pytest.fixture(scope="module")
def drawn(judged, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    score.draw_all(*judged(4000), folder)
    return folder


@pytest.mark.parametrize("name", LABELS)
def test_figures_are_vector_graphics_with_labels_and_units(drawn, name):
    text = words(drawn / f"{name}.svg")
    for label in LABELS[name]:
        assert label in text


@pytest.mark.slow
def test_equal_data_give_equal_files(drawn, judged, tmp_path):
    again = score.draw_all(*judged(4000), tmp_path)
    assert len(again) == len(LABELS)
    for path in again:
        assert path.read_bytes() == (drawn / path.name).read_bytes()


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


@pytest.mark.parametrize("events", [1, 2, 10, 45])
def test_a_few_events_are_plotted_too(judged, events, tmp_path):
    for path in score.draw_all(*judged(events), tmp_path):
        assert f"{events} held-out" in words(path)


def test_events_that_are_all_alike_are_plotted_too(judged, tmp_path):
    truth, prediction = judged(100)
    for column in (*truth.columns.values(), *prediction.values(), truth.multiplicity):
        column[:] = column[0]
    assert len(score.draw_all(truth, prediction, tmp_path)) == len(LABELS)


def test_quantiles_in_bins_are_those_of_the_events_inside():
    values = np.repeat([1.5, 2.5, 3.5], [100, 19, 400])
    angles = np.concatenate([np.linspace(0, 1, 100), np.zeros(19), np.linspace(2, 3, 400)])
    found = score.quantiles(angles, values, np.array([1.0, 2.0, 3.0, 4.0]))
    assert found.where.tolist() == [1.5, 3.5]  # 19 events are too few
    assert found.median == pytest.approx([0.5, 2.5])
    assert found.low == pytest.approx([0.16, 2.16])
    assert found.high == pytest.approx([0.84, 2.84])
    assert found.above - found.below == pytest.approx([0.1, 0.05])


@pytest.mark.parametrize("logarithmic", [True, False])
def test_every_event_is_in_a_bin_of_twenty_or_more(logarithmic):
    """A long tail must not be left out, nor events at either end of the range."""
    values = np.random.default_rng(1).pareto(1.0, 2000) + 1
    edges = score._edges(values, logarithmic=logarithmic)
    counts, _ = np.histogram(values, edges)
    assert counts.sum() == 2000
    assert counts.min() >= 20
    assert not logarithmic or len(edges) > 6


def test_fewer_than_twenty_events_are_said_to_be_too_few(judged, tmp_path):
    score.draw_all(*judged(10), tmp_path)
    assert "fewer than 20 events" in words(tmp_path / "dependence.svg")


def test_mean_vectors_in_the_figure_are_those_of_the_directions(judged):
    truth, _ = judged(1000)
    true = unit_vectors(truth.columns["azimuth"], truth.columns["zenith"])
    collapsed = np.tile([0.0, 0.0, 1.0], (1000, 1))
    figure = score.bias([score.Directions("network", "blue", collapsed, np.zeros(1000))], true)
    points = [line.get_ydata() for line in figure.axes[1].lines if line.get_marker() == "o"]
    assert points[0][:3] == pytest.approx(true.mean(axis=0))
    assert points[1] == pytest.approx([0, 0, 1, 1])
