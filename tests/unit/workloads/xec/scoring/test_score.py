"""Numbers and figures of predictions, of one event to thousands, and no warning (an error here)."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.workloads.xec.layout import TRUTHS
from crpipe.workloads.xec.scoring import metrics, score
from measured import measured
from unrendered import unrendered
from xenon_models import build
from xenon_toy import make_predictions, make_truth


def test_a_prediction_with_the_baseline_beside_it_has_figures(tmp_path):
    truth = make_truth(500)
    prediction = make_predictions(truth)
    with unrendered():
        found = score.score(truth, prediction, tmp_path, ["energy", "position"])
    expected = metrics.measure(truth.columns, prediction, ["energy", "position"])
    assert found.keys() == expected.keys() | metrics.measure_curve(truth.columns, prediction).keys()
    assert {"stochastic_term", "constant_term_error"} <= found.keys()
    assert {path.stem for path in tmp_path.iterdir()} == {
        *("residuals", "energy", "u", "v", "w", "energy_curve", "calibration")
    }


def test_the_baseline_itself_has_numbers_and_no_figures(gammas, tmp_path):
    made, model = build(tasks={"energy": {}, "position": {}, "time": {}})
    with torch.no_grad():
        made.fit(model, [gammas])
    found = measured(score.score(gammas, made.baseline(gammas), tmp_path, TRUTHS), len(gammas))
    assert not list(tmp_path.iterdir())
    assert found["energy_resolution"] < 5
    assert found["distance_resolution"] < 1.5
    assert found["time_resolution"] < 100
    assert "theta_resolution" not in found
    assert np.isfinite(list(found.values())).all()


BY = ("true energy [MeV]", "true depth w [cm]", "network", "3,000 held-out events")
LABELS = {
    "residuals": [
        "residuals of 3,000 held-out events",
        "energy",
        "azimuth",
        "[mrad]",
        "regression",
    ],
    "energy": ["resolution [%]", "bias [%]", "regression", *BY],
    "u": ["u of 3,000", "resolution [cm]", "bias [cm]", "regression", *BY],
    "v": ["v of 3,000", "regression", *BY],
    "w": ["depth w of 3,000", "regression", *BY],
    "time": ["resolution [ps]", "regression", *BY],
    "theta": ["polar angle", "resolution [mrad]", *BY],
    "phi": ["azimuth", "resolution [mrad]", *BY],
    "energy_curve": ["energy resolution", "true energy [MeV]", "/ √E ⊕", "network", "regression"],
    "calibration": ["predicted uncertainty of 3,000", "unit Gaussian", "by predicted sigma", "depth w: "],
}


def words(path) -> str:
    return "".join(ET.parse(path).getroot().itertext())


def judged(events, seed=0):
    truth = make_truth(events, seed)
    return truth.columns, make_predictions(truth, seed)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    score.draw_all(*judged(3000), folder, TRUTHS)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELS)
def test_figures_are_vector_graphics_with_labels_and_units(drawn, name):
    text = words(drawn / f"{name}.svg")
    for label in LABELS[name]:
        assert label in text
    assert {path.stem for path in drawn.iterdir()} == set(LABELS)


@pytest.mark.slow
def test_figures_do_not_grow_with_the_events(drawn, tmp_path):
    truth, prediction = judged(20_000)
    for path in score.draw_all(truth, prediction, tmp_path, ["energy"]):
        assert path.stat().st_size < 2 * (drawn / path.name).stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "names"),
    [
        (["energy"], {"residuals", "energy", "energy_curve", "calibration"}),
        ([], set()),
    ],
)
def test_only_tasks_that_are_learned_have_figures(tasks, names, tmp_path):
    made = score.draw_all(*judged(500), tmp_path, tasks)
    assert {path.stem for path in made} == names


def test_without_uncertainties_there_is_no_calibration(tmp_path):
    truth, prediction = judged(300)
    plain = {name: values for name, values in prediction.items() if not name.endswith("_sigma")}
    with unrendered():
        made = {path.stem for path in score.draw_all(truth, plain, tmp_path, ["energy"])}
    assert made == {"residuals", "energy", "energy_curve"}


@pytest.mark.slow
def test_truth_that_is_missing_or_unknown_is_left_out(tmp_path):
    truth, prediction = judged(300)
    some = {name: values for name, values in truth.items() if name != "w_cm"}
    some["phi_rad"] = np.full(300, np.nan)
    made = {path.stem for path in score.draw_all(some, prediction, tmp_path, ["position", "angle"])}
    assert made == {"residuals", "u", "v", "theta", "calibration"}
    assert "true depth" not in words(tmp_path / "u.svg")
    some["energy_gev"] = np.where(np.arange(300) < 5, np.nan, truth["energy_gev"])
    score.draw_all(some, prediction, tmp_path, ["energy"])
    assert "295 held-out events" in words(tmp_path / "energy.svg")


@pytest.mark.parametrize("events", [1, 60])
def test_a_few_events_are_plotted_too(events, tmp_path):
    for path in score.draw_all(*judged(events), tmp_path, ["position"]):
        assert f"{events} held-out" in words(path)
    assert ("fewer than 25 events" in words(tmp_path / "u.svg")) == (events < 25)


def test_events_that_are_all_alike_are_plotted_too(tmp_path):
    truth, prediction = judged(200)
    for column in (*truth.values(), *prediction.values()):
        column[:] = column[0]
    made = {path.stem for path in score.draw_all(truth, prediction, tmp_path, ["energy", "angle"])}
    assert made == {"residuals", "energy", "theta", "phi", "calibration"}


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.2219, 0.0881, "(0.222 ± 0.088)"),
        (12.3, 1.0, "(12.3 ± 1.0)"),
        (250.0, 30.0, "(250 ± 30)"),
        (1.5, 0.0, "1.5"),
    ],
)
def test_errors_decide_the_digits(value, error, text):
    assert score._with_error(value, error) == text


@settings(max_examples=15, deadline=None)
@given(events=st.integers(1, 30), seed=st.integers(0, 50))
def test_numbers_of_few_events_are_finite(events, seed):
    truth = make_truth(events, seed)
    prediction = make_predictions(truth, seed)
    curve = metrics.measure_curve(truth.columns, prediction)
    found = measured(metrics.measure(truth.columns, prediction, TRUTHS) | curve, events)
    assert np.isfinite(list(found.values())).all()
    assert {metric.name for metric in metrics.metrics(TRUTHS) if not metric.needs} <= found.keys()
    assert ("energy_bias_error" in found) == (events > 1)
