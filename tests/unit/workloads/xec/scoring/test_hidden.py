import csv
import xml.etree.ElementTree as ET
from contextlib import nullcontext

import numpy as np
import pytest

from crpipe.workloads.xec.scoring import display
from crpipe.workloads.xec.scoring.hidden import METRICS, WORST, draw_worst, hidden_sensors, score, worst
from measured import measured
from unrendered import unrendered
from xenon_toy import lists_of, make_gammas, make_hidden


@pytest.fixture(autouse=True)
def blank(request):
    """Render the figure for the test alone that reads it."""
    with nullcontext() if "figure" in request.node.name else unrendered():
        yield


def measured_of(prediction, folder):
    return measured(score(None, prediction, folder), len(prediction["sensor_id"]))


def prediction_of(errors, sensors=None, events=100, true=50.0):
    """Events with equally many hidden sensors, whose errors are known; both averages are off by 10."""
    count = len(errors)
    event = np.repeat(np.arange(events), count // events)
    flat = {
        "sensor_id": np.zeros(count) if sensors is None else sensors,
        "kind": np.zeros(count),
        "photons": true + errors,
        "true_photons": np.full(count, true),
        "neighbours_photons": np.full(count, true + 10),
        "solid_angle_photons": np.full(count, true - 10),
    }
    return {name: lists_of(values, event, events) for name, values in flat.items()}


def test_every_declared_number_is_measured_with_an_error(hidden, tmp_path):
    found = measured_of(hidden, tmp_path)
    for metric in METRICS:
        assert np.isfinite(found[metric.name])
        assert found[f"{metric.name}_error"] > 0
    assert {
        "photons_mae_inner",
        "photons_bias_top",
        "neighbours_rms_us",
        "solid_angle_mae_outer",
    } <= found.keys()
    assert found["photons_mae"] < found["solid_angle_mae"] < found["neighbours_mae"]


def test_numbers_are_those_of_the_errors(tmp_path):
    errors = 2 + 3 * np.random.default_rng(0).normal(size=40_000)
    found = measured_of(prediction_of(errors), tmp_path)
    assert found["photons_mae"] == pytest.approx(np.abs(errors).mean())
    assert found["photons_bias"] == pytest.approx(errors.mean())
    assert found["photons_rms"] == pytest.approx(np.sqrt((errors**2).mean()))
    assert found["photons_bias_error"] == pytest.approx(3 / 200, rel=0.25)
    assert (found["neighbours_bias"], found["solid_angle_bias"]) == pytest.approx((10, -10))
    assert found["neighbours_mae_error"] == pytest.approx(0, abs=1e-9)


def test_errors_are_of_events_whose_sensors_are_wrong_together(tmp_path):
    """100 sensors of an event share its error: there are 100 independent values, not 10,000."""
    shared = np.repeat(np.random.default_rng(0).normal(size=100), 100)
    found = measured_of(prediction_of(shared), tmp_path)
    assert found["photons_bias_error"] == pytest.approx(shared.std() / 10, rel=0.25)


def test_faces_are_measured_on_their_own(tmp_path):
    sensors = np.tile([5, 4600], 500)
    found = measured_of(prediction_of(np.where(sensors == 5, 1.0, -4.0), sensors), tmp_path)
    assert found["photons_bias_inner"] == pytest.approx(1)
    assert found["photons_mae_top"] == pytest.approx(4)
    assert found["photons_mae"] == pytest.approx(2.5)
    assert "photons_mae_us" not in found


def test_dead_sensors_do_not_count(hidden):
    found = hidden_sensors(hidden)
    kinds = np.concatenate(list(hidden["kind"]))
    assert len(found.true) == np.count_nonzero(kinds == 0) < len(kinds)
    assert np.isfinite(found.true).all()
    assert all(len(values) == len(found.true) for values in found.photons.values())


def test_without_the_averages_there_are_only_the_models_numbers(hidden, tmp_path):
    own = {name: values for name, values in hidden.items() if not name.endswith(("rs_photons", "le_photons"))}
    found = measured_of(own, tmp_path)
    assert "photons_mae" in found
    assert not any(name.startswith(("neighbours", "solid")) for name in found)


@pytest.mark.parametrize("events", [0, 1, 3])
def test_a_few_events_are_measured_too(hidden, events, tmp_path):
    found = measured_of({name: values[:events] for name, values in hidden.items()}, tmp_path)
    assert ("photons_mae" in found) == (events > 0)
    assert ("photons_mae_error" in found) == (events > 1)
    assert (tmp_path / "hidden_sensors.svg").exists() == (events > 0)


def test_events_without_a_hidden_sensor_do_not_count(tmp_path):
    one = prediction_of(np.ones(100), events=1)
    more = {
        name: np.concatenate([values, lists_of(np.zeros(0), np.zeros(0, int), 5)])
        for name, values in one.items()
    }
    found = measured_of(more, tmp_path)
    assert found["photons_mae"] == 1
    assert found["photons_mae_error"] == 0


def test_the_figure_names_faces_methods_and_units(hidden, tmp_path):
    score(None, hidden, tmp_path)
    text = "".join(ET.parse(tmp_path / "hidden_sensors.svg").getroot().itertext())
    for label in (
        "hidden sensors of 100 held-out events",
        *("inner", "bottom", "network", "mean of the neighbours", "neighbours by solid angle"),
        "mean absolute error [photons]",
        "mean error [% of photons]",
        "photons of the hidden sensor",
    ):
        assert label in text


def test_the_worst_events_have_the_largest_errors_for_their_light():
    errors = np.repeat([1.0, 9.0, 4.0, 5.0], 25)
    prediction = prediction_of(errors, events=4)
    assert worst(prediction).tolist() == [1, 3, 2]
    bright = prediction | {"true_photons": prediction["true_photons"].copy()}
    bright["photons"] = bright["photons"].copy()
    for name in ("photons", "true_photons"):
        bright[name][1] = bright[name][1] + 1e4  # 9 of 10,050 photons is little
    assert worst(bright).tolist() == [3, 2, 0]
    bright["kind"] = bright["kind"].copy()
    bright["kind"][3] = np.ones(25)  # all dead: nobody knows
    assert worst(bright).tolist() == [2, 0, 1]


def test_the_worst_events_are_drawn_as_seen_and_as_found(tmp_path, monkeypatch):
    events, prediction = make_gammas(WORST), make_hidden(WORST)
    circles, draw = [], display.draw_events
    monkeypatch.setattr(
        display, "draw_events", lambda *a, circled: circles.extend(circled) or draw(*a, circled=circled)
    )
    draw_worst(events, prediction, tmp_path)
    off = np.abs(prediction["photons"][0] - prediction["true_photons"][0])
    hidden = prediction["kind"][0] == 0
    least = off[np.isin(prediction["sensor_id"][0], circles[0])].min()
    assert (off[hidden] > least).sum() < len(circles[0]) == min(10, hidden.sum())
    assert [each.tolist() for each in circles[WORST:]] == [each.tolist() for each in circles[:WORST]]
    with (tmp_path / "found_sensors.csv").open() as file:
        rows = list(csv.DictReader(file))
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    assert len(panels) == 2 * WORST
    assert [panel.endswith("as found") for panel in panels] == [False] * WORST + [True] * WORST
    seen, found = (
        {int(row["sensor"]): float(row["value"]) for row in rows if row["panel"] == panel}
        for panel in (panels[0], panels[WORST])
    )
    listed = dict(zip(prediction["sensor_id"][0].tolist(), prediction["photons"][0].tolist(), strict=True))
    assert all(found[sensor] == value for sensor, value in seen.items() if sensor not in listed)
    assert all(found[sensor] == pytest.approx(light) for sensor, light in listed.items() if light > 0)
