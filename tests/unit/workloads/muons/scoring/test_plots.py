import xml.etree.ElementTree as ET

import numpy as np
import pytest

from crpipe.report import figure_style as style
from crpipe.workloads.muons.scoring import metrics, plots

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


@pytest.fixture(scope="module")
def drawn(toy, tmp_path_factory):
    real, generated = toy(seed=1), toy(seed=2)
    folder = tmp_path_factory.mktemp("figures")
    plots.draw_all(real, generated, metrics.verdicts(real, generated), folder)
    return folder


@pytest.mark.parametrize("name", UNITS)
def test_figures_are_vector_graphics_with_labels_and_units(drawn, name):
    text = "".join(ET.parse(drawn / f"{name}.svg").getroot().itertext())
    for label in UNITS[name]:
        assert label in text


def test_without_classifiers_the_other_figures_are_made(toy, tmp_path):
    plots.draw_all(toy(seed=1), toy(seed=2), {}, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} >= {*UNITS} - {"classifiers"}


def test_equal_data_give_equal_files(toy, tmp_path, drawn):
    with style.style():
        again = style.save(plots.multiplicity(toy(seed=1), toy(seed=2)), tmp_path / "multiplicity.svg")
    assert again.read_bytes() == (drawn / "multiplicity.svg").read_bytes()


def test_each_multiplicity_below_ten_has_its_bin():
    edges = plots._multiplicity_edges(5000)
    placed = np.searchsorted(edges, [plots._ZERO, *range(1, 10)], side="right") - 1
    assert placed.tolist() == list(range(10))
    assert edges[-1] > 5000


def test_events_without_any_muon_are_plotted_too(toy, tmp_path):
    plots.draw_all(toy(events=50, stretch=0.0), toy(events=50, stretch=0.0), {}, tmp_path)
    assert (tmp_path / "energy.svg").exists()
