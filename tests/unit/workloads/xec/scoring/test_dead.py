"""Dead sensors side by side: which are taken, how each method fills them, and the numbers by hand."""

import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.workloads.xec import RegressorOptions
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, TIME_VALID
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.scoring import dead, score
from crpipe.workloads.xec.scoring.baseline import NEAR_CM
from crpipe.workloads.xec.sensors import FACE_IDS
from measured import measured
from unrendered import unrendered
from xenon_models import PLACES, build, predict, with_items
from xenon_toy import make_gammas, make_truth

GAMMAS = make_gammas(3, dead=0.02)
ITEMS = sensors_of(GAMMAS)
CPU = torch.device("cpu")


def taken(**options):
    return dict(dead.dead_of(GAMMAS, ITEMS, RegressorOptions(**options), seed=1))


def test_so_many_more_are_dead_and_those_of_a_smaller_number_are_among_them(tmp_path):
    (tmp_path / "dead.csv").write_text("run,sensor_id\n1,17\n1,4100\n2,18\n")
    found = taken(dead_sensors=(0, 5, 300), dead_list=str(tmp_path / "dead.csv"))
    before = ITEMS[..., PHOTONS_VALID] == 0
    assert list(found) == ["0", "5", "300", "listed"]
    assert np.array_equal(found["0"], before)
    for number in (5, 300):
        assert ((found[str(number)] & ~before).sum(axis=1) == number).all()
        assert (before <= found[str(number)]).all()
    assert (found["5"] <= found["300"]).all()
    assert not (found["5"] & ~before)[1:].all(axis=0).any()  # other ones in each event
    assert {*np.flatnonzero((found["listed"] & ~before).any(axis=0))} <= {17, 4100}
    assert found["listed"][:, [17, 4100]].all()


def test_a_list_that_is_not_there_is_named_by_its_key(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.dead_list: .*none\.csv: no such file"):
        taken(dead_list=str(tmp_path / "none.csv"))


def test_each_method_fills_what_is_dead_and_nothing_else():
    (those,) = taken(dead_sensors=(200,)).values()
    ones = np.full(those.shape, 7, np.float32)
    given = []

    def find(sensors, _):
        given.append(sensors)
        return ones

    found = dict(dead.filled(ITEMS, those, PLACES, find, CPU))
    assert list(found) == list(dead.METHODS)
    for values in found.values():
        assert np.array_equal(values[~those], ITEMS[~those])
        assert (values[those][:, TIME_VALID] == 0).all()
    assert (found["raw"][those] == 0).all()
    assert np.array_equal(given[0], found["raw"])  # an inpainter never sees what it is asked for
    assert (found["inpainted"][those] == [7, 0, 1, 0]).all()
    event, sensor = (each[0] for each in np.nonzero(those))
    face = next(ids for ids in FACE_IDS.values() if sensor in ids)
    near = face[np.linalg.norm(PLACES[face, :3] - PLACES[sensor, :3], axis=1) <= NEAR_CM]
    seen = near[~those[event, near]]
    assert found["neighbours"][event, sensor, PHOTONS] == pytest.approx(
        ITEMS[event, seen, PHOTONS].mean(), rel=1e-5
    )
    assert dict(dead.filled(ITEMS, those, PLACES, None, CPU)).keys() == found.keys() - {"inpainted"}


def test_light_by_solid_angle_is_nearer_to_the_truth_than_the_mean():
    events = make_gammas(20, seed=4, dead=0)
    items = sensors_of(events)
    (those,) = (each for _, each in dead.dead_of(events, items, RegressorOptions(dead_sensors=(100,)), 1))
    off = {
        name: np.abs(values[those][:, PHOTONS] - items[those][:, PHOTONS]).mean()
        for name, values in dead.filled(items, those, PLACES, None, CPU)
    }
    assert off["solid_angle"] < 0.7 * off["neighbours"] < off["raw"]


def test_what_dead_sensors_saw_does_not_change_a_prediction():
    made, model = build(dead_sensors=(0, 50))
    first = predict(made, model, GAMMAS)
    seed = int(torch.randint(2**31, (1,), generator=torch.Generator().manual_seed(1)))
    (_, those), (_, more) = dead.dead_of(GAMMAS, ITEMS, made.options, seed)
    assert first["dead_50"].tolist() == more.sum(axis=1).tolist() == (those.sum(axis=1) + 50).tolist()

    def change(items):
        items[more & ~those, PHOTONS] += 1e4

    second = predict(made, model, with_items(GAMMAS, change))
    assert (first["energy_gev"] != second["energy_gev"]).all()
    for name in (each for each in first if each.startswith("dead_50")):
        assert np.array_equal(first[name], second[name]), name
    assert not [name for name in predict(*build(), GAMMAS) if name.startswith("dead")]


def test_the_numbers_by_hand(tmp_path):
    """Energies that are off by 1 % near the face and by 3 % behind, and places by 1 and 2 cm."""
    truth = make_truth(400)
    known = {name: np.asarray(values, np.float64) for name, values in truth.columns.items()}
    deep = known["w_cm"] >= 2
    sign = np.random.default_rng(0).integers(-1, 2, 400)  # a third each
    prediction = {"dead_50": np.full(400, 60), "dead_50_raw_energy_gev": 0, "dead_50_raw_u_cm": 0}
    prediction["dead_50_raw_energy_gev"] = known["energy_gev"] * (1 + sign * np.where(deep, 0.03, 0.01))
    prediction["dead_50_raw_u_cm"] = known["u_cm"] + np.where(deep, 2, 1)
    prediction |= {f"dead_50_raw_{name}": known[name] for name in ("v_cm", "w_cm")}
    found = measured(dead.measure(known, prediction, ["energy", "position"]), 400)
    values = {name.removesuffix("_dead_50_raw"): value for name, value in found.items()}
    assert values["energy_resolution_shallow"] == pytest.approx(1)
    assert values["energy_resolution_deep"] == pytest.approx(3)
    assert values["distance_resolution_shallow"] == pytest.approx(1)
    assert values["distance_resolution_deep"] == pytest.approx(2)
    nowhere = known | {f"{axis}_cm": np.full(400, np.nan) for axis in "uvw"}
    of_known = measured(dead.measure(nowhere, prediction, ["energy", "position"]), 400)
    assert not [name for name in of_known if "shallow" in name or "deep" in name]
    with unrendered():
        score.score(truth, prediction, tmp_path, ["energy", "position"])
    lines = (tmp_path / "dead_sensors.csv").read_text().splitlines()
    assert [line for line in lines if "w < 2 cm" in line and "raw,60,1," in line]


def test_the_declared_numbers_are_those_that_are_measured():
    made, model = build(dead_sensors=(0, 40))
    events = make_gammas(30)
    found = dead.measure(events.columns, predict(made, model, events), made.tasks)
    names = {each.name for each in made.metrics if "_dead_" in each.name}
    assert names == {name for name in found if "shallow" not in name and "deep" not in name}
    assert len(names) == 3 * 2 * 3


def test_an_inpainter_needs_dead_sensors_to_fill():
    with pytest.raises(ValidationError, match=r"set dead_sensors, for example \[0, 50, 200\]"):
        RegressorOptions(dead_inpainter="a.pt")
    assert RegressorOptions(dead_inpainter="a.pt", dead_list="dead.csv")


def test_another_workload_or_other_places_are_refused(tmp_path, monkeypatch):
    made, model = build()
    loaded = type("Loaded", (), {"workload": made, "model": model, "name": "x:Regressor"})
    monkeypatch.setattr("crpipe.inference.checkpoints.open_checkpoint", lambda *_, **__: loaded)
    with pytest.raises(ConfigError, match="a checkpoint of x:Regressor; name one of an Inpainter"):
        dead.open_inpainter(tmp_path / "a.pt", {}, PLACES)
    loaded.workload, loaded.model = build("Inpainter")
    with pytest.raises(CheckpointError, match="other places of the sensors"):
        dead.open_inpainter(tmp_path / "a.pt", {}, PLACES + 1)
    find = dead.open_inpainter(tmp_path / "a.pt", {}, PLACES)
    with torch.no_grad():
        assert find(ITEMS, CPU).shape == (3, SENSORS)


def test_no_checkpoint_depends_on_them_but_results_do(tmp_path):
    from crpipe.config.loading import load_config
    from crpipe.inference.checkpoints import use_key

    receipt = tmp_path / "inpainter.json"
    receipt.write_text(json.dumps({"checkpoint": "a"}))
    base = ["train.workload=crpipe.workloads.xec:Regressor"]
    more = [*base, "model.dead_sensors=[0, 50]", f"model.dead_inpainter={receipt}"]
    one, other = (load_config([], each) for each in (base, more))
    assert one.train_keys() == other.train_keys()
    first = use_key(other.use_options())
    assert first["dead_sensors"] == [0, 50]
    receipt.write_text(json.dumps({"checkpoint": "b"}))
    assert use_key(other.use_options()) != first
