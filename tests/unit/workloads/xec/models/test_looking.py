"""A look at single events: the worst are the worst, and every face gets its share of the slopes."""

import numpy as np
import pytest

from crpipe.workloads.xec.models import looking
from crpipe.workloads.xec.models.looking import SAMPLE, WORST, choose, distances
from crpipe.workloads.xec.sensors import FACES
from xenon_models import build, predict
from xenon_toy import make_gammas, make_truth


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


@pytest.mark.parametrize("count", [1, 4, 9])
def test_worst_and_sample_are_told_apart_for_any_number_of_events(model, count, tmp_path, monkeypatch):
    made, network = model
    events = make_gammas(count)
    prediction = predict(made, network, events)
    chosen = made.shown(events, prediction)
    drawn, measured = [], []
    monkeypatch.setattr(looking, "_title", lambda *found: drawn.append(found[-1]) or "")
    monkeypatch.setattr(looking, "sensors_of", _kept(looking.sensors_of, measured))
    made.show(
        network,
        events.take(chosen),
        {name: values[chosen] for name, values in prediction.items()},
        tmp_path,
    )
    assert len(drawn) == min(WORST, count)
    assert len(chosen) == min(WORST, count) + count
    assert all(len(found) == len(chosen) for found in measured)


def _kept(function, kept):
    def call(*values):
        kept.append(function(*values))
        return kept[-1]

    return call


def test_figures_and_shares_of_the_faces(model, tmp_path):
    """A dead sensor and one without light have finite slopes: each task has its six shares."""
    made, network = model
    events = make_gammas(9, dead=0.05)
    prediction = predict(made, network, events)
    chosen = made.shown(events, prediction)
    taken = {name: values[chosen] for name, values in prediction.items()}
    found = made.show(network, events.take(chosen), taken, tmp_path)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"worst_events.svg", "saliency.svg"}
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
    lines = looking._title(truth, prediction, ("energy", "time"), 1).split("\n")
    assert lines[0] == "run 1, event 1"
    assert lines[1] == "energy 52.5 MeV, true 50"
    assert lines[2].startswith("gamma time ")
    assert len(lines) == 3
