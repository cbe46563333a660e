import xml.etree.ElementTree as ET

import numpy as np
import pytest

from crpipe.report import figure_style as style
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.workloads.muons.scoring import metrics, plots
from crpipe.workloads.muons.scoring.plots import energy_text

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
    plots.draw_all(real, generated, metrics.classifier_scores(real, generated), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", UNITS)
def test_figures_are_vector_graphics_with_labels_and_units(drawn, name):
    text = "".join(ET.parse(drawn / f"{name}.svg").getroot().itertext())
    for label in UNITS[name]:
        assert label in text


@pytest.mark.slow
def test_without_classifiers_the_other_figures_are_made(toy, tmp_path):
    plots.draw_all(toy(seed=1), toy(seed=2), {}, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} >= {*UNITS} - {"classifiers"}


@pytest.mark.slow
def test_panels_say_how_well_the_histograms_agree(toy, tmp_path):
    with style.style():
        style.save(plots.energy(toy(seed=1), toy(seed=2)), tmp_path / "energy.svg")
        style.save(plots.energy(toy(seed=1), toy(seed=2, stretch=0.7)), tmp_path / "off.svg")
    words, off = (
        "".join(ET.parse(tmp_path / f"{name}.svg").getroot().itertext()) for name in ("energy", "off")
    )
    assert words.count("χ²/ndf") == 3
    assert "too low" not in words
    assert "% too" in off
    rows = (tmp_path / "energy.csv").read_text().splitlines()
    assert rows[0] == "panel,curve,low,high,value,error"
    assert sum(",generated," in row for row in rows) == 3 * 24


def test_classifiers_are_named_as_their_metrics_and_show_the_floor(toy, tmp_path):
    real, generated = toy(seed=1), toy(seed=2)
    with style.style(), figures_of(FigureContext(floor={"auc_full": 0.512, "auc_full_error": 0.007})):
        figure = plots.classifiers(metrics.classifier_scores(real, generated))
    titles = {" ".join(axis.get_title().split()) for axis in figure.axes}
    assert any(title.startswith("events with own multiplicities AUC 0.") for title in titles)
    assert sum("floor 0.512 ± 0.007" in title for title in titles) == 1


@pytest.mark.parametrize(
    ("energy_gev", "text"), [(1.6e9, "1.6 EeV"), (3.04e4, "30 TeV"), (9.99e5, "1000 TeV"), (12.0, "12 GeV")]
)
def test_energies_are_written_in_their_unit(energy_gev, text):
    assert energy_text(energy_gev) == text


def test_each_multiplicity_below_ten_has_its_bin():
    edges = plots._multiplicity_edges(5000)
    placed = np.searchsorted(edges, [plots._ZERO, *range(1, 10)], side="right") - 1
    assert placed.tolist() == list(range(10))
    assert edges[-1] > 5000


@pytest.mark.slow
def test_events_without_any_muon_are_plotted_too(toy, tmp_path):
    plots.draw_all(toy(events=50, stretch=0.0), toy(events=50, stretch=0.0), {}, tmp_path)
    assert (tmp_path / "energy.svg").exists()
