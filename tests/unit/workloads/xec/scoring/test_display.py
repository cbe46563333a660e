"""Events on the unfolded detector, which of them are shown, and every face with its share of the slopes."""

import csv
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.scoring import display
from crpipe.workloads.xec.scoring.display import (
    SAMPLE,
    WORST,
    choose,
    colour_scale,
    distances,
    draw_event,
    draw_events,
    draw_saliency,
    face_shares,
    measure_saliency,
)
from crpipe.workloads.xec.sensors import FACE_IDS, FACES, INNER
from unrendered import unrendered
from xenon_models import build, predict
from xenon_toy import make_gammas, make_truth

ONES = np.ones(SENSORS)


def drawn(values, valid=ONES):
    """Return the axis, the image of the inner face, and the photomultipliers' outlines."""
    axis = Figure().subplots()
    draw_event(axis, values, valid, "an event")
    tubes = [each for each in axis.collections if isinstance(each, PolyCollection)]
    return axis, axis.images[0], tubes


def centres(tubes):
    return np.concatenate([each.get_offsets() for each in tubes])


def test_every_sensor_is_drawn_once():
    _, image, tubes = drawn(np.arange(float(SENSORS)))
    shown = np.concatenate([image.get_array().ravel(), *(each.get_array() for each in tubes)])
    assert sorted(shown.tolist()) == list(range(SENSORS))
    assert image.get_array().shape == INNER.ids.shape == (93, 44)


def test_circles_are_about_the_sensors_that_are_named():
    _, image, tubes = drawn(np.arange(float(SENSORS)))
    left, right, low, high = image.get_extent()
    where = display.centres()
    column = (where[:, 0] - left) / (right - left) * INNER.ids.shape[1]
    row = (high - where[:, 1]) / (high - low) * INNER.ids.shape[0]
    for each in tubes:
        assert np.array_equal(where[each.get_array().astype(int)], each.get_offsets())
    inner = INNER.ids.ravel()
    pixels = image.get_array()[row[inner].astype(int), column[inner].astype(int)]
    assert np.array_equal(pixels, inner)


def test_no_two_sensors_overlap():
    _, image, tubes = drawn(ONES)
    where = centres(tubes)
    apart = np.linalg.norm(where[:, None] - where, axis=2)
    assert apart[~np.eye(len(where), dtype=bool)].min() > 5.6
    left, right, low, high = image.get_extent()
    assert not ((where[:, 0] > left - 3) & (where[:, 0] < right + 3) & (np.abs(where[:, 1]) < high + 3)).any()
    assert low == -high


def test_faces_are_where_they_unfold_to():
    _, image, tubes = drawn(np.arange(float(SENSORS)))
    ids = np.concatenate([each.get_array() for each in tubes]).astype(int)
    x, y = centres(tubes).T
    middle = {
        name: (x[np.isin(ids, face)].mean(), y[np.isin(ids, face)].mean())
        for name, face in FACE_IDS.items()
        if name != "inner"
    }
    assert middle["us"][0] < -40 < 40 < middle["ds"][0] < middle["outer"][0]
    assert middle["bottom"][1] < -80 < 80 < middle["top"][1]
    assert np.abs([middle["us"][1], middle["ds"][1], middle["outer"][1], middle["top"][0]]).max() < 1
    # A sensor of the sides next to the inner face is drawn next to it.
    assert np.abs(x[ids == 4308]).max() < np.abs(x[ids == 4313]).max()
    assert image.get_array()[0, 0] == 0  # the first sensor is at the top
    assert y[ids == 4308] > 60


def test_invalid_sensors_are_grey():
    valid = ONES.copy()
    valid[[0, 4600]] = 0
    _, image, tubes = drawn(np.full(SENSORS, 1e10), valid)
    assert image.get_array().mask.ravel()[[0, 1]].tolist() == [True, False]
    grey = [each.cmap.get_bad() for each in (image, *tubes)]
    assert np.ptp(grey[0][:3]) < 0.1
    hidden = [np.count_nonzero(np.ma.getmaskarray(each.get_array())) for each in tubes]
    assert sum(hidden) == 1


def test_colours_reach_from_zero_to_the_largest_valid_value():
    values, valid = np.zeros(SENSORS), ONES.copy()
    values[:3] = -5, 4000, 1e10
    valid[2] = 0
    scale = colour_scale(values, valid)
    assert (scale.vmin, scale.vmax) == (0, 4000)
    assert colour_scale(values, np.zeros(SENSORS)).vmax == colour_scale(-ONES, ONES).vmax == 10


@pytest.mark.parametrize("events", [1, 4])
def test_events_are_drawn_with_their_titles(gammas, events, tmp_path):
    items = gammas.items.reshape(-1, SENSORS, 4)[:events]
    titles = [f"run 1, event {number}" for number in range(events)]
    paths = [
        draw_events(tmp_path / name, items[..., 0], items[..., 2], titles) for name in ("a.svg", "b.svg")
    ]
    text = "".join(ET.parse(paths[0]).getroot().itertext())
    for label in (*titles, *FACE_IDS, "photons (grey: not valid)", "100"):
        assert label in text
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].stat().st_size < 100_000 * events


def predicted(truth, **wrong):
    """Predict the truth with a little noise, and some columns wrong in some events."""
    rng = np.random.default_rng(3)
    found = {
        name: values + 1e-3 * rng.normal(size=len(truth))
        for name, values in truth.columns.items()
        if name not in ("run", "event")
    }
    for name, changes in wrong.items():
        for event, step in changes.items():
            found[name][event] += step
    return found


def test_the_worst_come_first_then_a_sample():
    truth = make_truth(1000)
    prediction = predicted(truth, u_cm={70: 50.0, 10: 10.0}, energy_gev={300: 0.9})
    chosen = choose(truth, prediction, ("energy", "position"))
    assert chosen.shape == (WORST + SAMPLE,)
    assert set(chosen[:3].tolist()) == {70, 10, 300}
    assert len(set(chosen[WORST:].tolist())) == SAMPLE
    assert chosen[WORST:].tolist() == choose(truth, predicted(truth), ("time",))[WORST:].tolist()
    assert set(choose(truth, prediction, ("position",))[:2].tolist()) == {70, 10}


def test_a_wrong_turn_around_the_circle_is_no_error():
    truth = make_truth(50)
    prediction = predicted(truth, phi_rad={7: 2 * np.pi, 9: 0.5})
    assert choose(truth, prediction, ("angle",))[0] == 9
    assert distances(truth, prediction, ("angle",))["angle"][7] < 0.01


def test_distances_are_in_units_of_the_task():
    truth = make_truth(2)
    prediction = {name: values.astype(float) for name, values in truth.columns.items()}
    for name, step in (("u_cm", 24.0), ("w_cm", 10.0), ("energy_gev", 0.1)):
        prediction[name] = prediction[name] + step
    found = distances(truth, prediction, ("energy", "position"))
    np.testing.assert_allclose(found["energy"], 2, rtol=1e-5)
    np.testing.assert_allclose(found["position"], np.sqrt(2), rtol=1e-5)


@pytest.fixture(scope="module")
def model():
    return build(tasks={"energy": {}, "time": {}, "position": {}})


@pytest.mark.parametrize("count", [1, 9])
def test_worst_and_sample_are_told_apart_for_any_number_of_events(model, count, tmp_path, monkeypatch):
    made, network = model
    events = make_gammas(count)
    prediction = predict(made, network, events)
    chosen = made.shown(events, prediction)
    drawn, measured = [], []
    monkeypatch.setattr(display, "_title", lambda *found: drawn.append(found[-1]) or "")
    sensors_of = display.sensors_of
    monkeypatch.setattr(
        display, "sensors_of", lambda *given: measured.append(sensors_of(*given)) or measured[-1]
    )
    taken = {name: values[chosen] for name, values in prediction.items()}
    with unrendered():
        made.show(network, events.take(chosen), taken, tmp_path)
    assert len(drawn) == min(WORST, count)
    assert len(chosen) == min(WORST, count) + count
    assert all(len(found) == len(chosen) for found in measured)


def test_figures_and_shares_of_the_faces(model, tmp_path):
    """A dead sensor and one without light have finite slopes: each task has its six shares."""
    made, network = model
    events = make_gammas(9, dead=0.05)
    prediction = predict(made, network, events)
    chosen = made.shown(events, prediction)
    taken = {name: values[chosen] for name, values in prediction.items()}
    found = made.show(network, events.take(chosen), taken, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"worst_events", "saliency", "saliency_sensors"}
    with (tmp_path / "worst_list.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["event"]) for row in rows] == events.columns["event"][chosen[:WORST]].tolist()
    assert float(rows[0]["true_w_cm"]) == pytest.approx(events.columns["w_cm"][chosen[0]])
    assert float(rows[0]["w_cm"]) == pytest.approx(prediction["w_cm"][chosen[0]])
    with (tmp_path / "saliency_sensors.csv").open() as file:
        rows = list(csv.DictReader(file))
    shares = {task: [float(row["value"]) for row in rows if row["panel"] == task] for task in made.tasks}
    assert [sum(each) for each in shares.values()] == pytest.approx([1e6] * 3, rel=1e-3)
    for task in ("energy", "time", "position"):
        shares = [found[f"saliency_{task}_{face}"] for face in FACES]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert min(shares) > 0
    text = (tmp_path / "worst_events.svg").read_text()
    assert "\\n" not in text


def test_a_title_names_the_event_and_compares_in_the_units_of_people():
    truth = make_truth(3)
    truth.columns["energy_gev"][1] = 0.05
    prediction = predicted(truth)
    prediction["energy_gev"][1] = 0.0525
    lines = display._title(truth, prediction, ("energy", "time"), 1).split("\n")
    assert lines[0] == "run 1, event 1"
    assert lines[1] == "energy 52.5 MeV, true 50"
    assert lines[2].startswith("gamma time ")
    assert len(lines) == 3


def test_shares_of_equal_sensors_are_those_of_their_numbers():
    shares = face_shares(np.full((2, SENSORS), 0.1, np.float32))
    assert shares == pytest.approx(np.tile([len(FACE_IDS[face]) / SENSORS for face in FACES], (2, 1)))


def test_a_single_sensor_gives_all_to_its_face_and_none_gives_nothing():
    weight = np.zeros((2, SENSORS))
    weight[0, FACE_IDS["ds"][3]] = 2.0
    shares = face_shares(weight)
    assert shares[0].tolist() == [0, 0, 0, 1, 0, 0]
    assert np.isnan(shares[1]).all()


def test_numbers_are_means_over_events_with_their_errors():
    shares = np.random.default_rng(0).dirichlet([5, 1, 1, 1, 1, 1], 400)
    found = measure_saliency({"energy": np.concatenate([shares, np.full((3, 6), np.nan)])})
    assert found["saliency_energy_inner"] == pytest.approx(shares[:, 0].mean())
    assert found["saliency_energy_inner_error"] == pytest.approx(shares[:, 0].std() / 20)
    assert sum(found[f"saliency_energy_{face}"] for face in FACES) == pytest.approx(1)
    assert measure_saliency({"time": np.full((3, 6), np.nan)}) == {}


def test_the_figure_names_tasks_and_faces(tmp_path):
    shares = np.random.default_rng(0).dirichlet(np.ones(6), 50)
    path = draw_saliency(tmp_path / "saliency.svg", {"energy": shares, "position": shares[:1]})
    text = "".join(ET.parse(path).getroot().itertext())
    for label in (*FACES, "energy", "position", "mean share of |gradient", "share of the sensors"):
        assert label in text
