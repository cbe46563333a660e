import xml.etree.ElementTree as ET

import numpy as np
import pytest

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.models.looking import draw_saliency, face_shares, measure_saliency
from crpipe.workloads.xec.sensors import FACE_IDS, FACES


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
