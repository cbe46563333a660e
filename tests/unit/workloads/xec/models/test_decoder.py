"""Decoders: each sensor is found by its own cell, from the sensors around it."""

import numpy as np
import pytest
import torch

from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS
from crpipe.workloads.xec.models.decoder import NEIGHBOURS
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.sensors import face_of
from xenon_models import PLACES, build
from xenon_toy import make_gammas

ITEMS = torch.from_numpy(sensors_of(make_gammas(2, dead=0.05)))


@pytest.fixture(scope="module")
def model():
    return build("Inpainter")[1]


def test_all_sensors_are_found_as_photons_and_times(model):
    with torch.no_grad():
        found = model(ITEMS)
    codec = model.encoder.features.codec
    for values in found:
        assert values.shape == (2, SENSORS)
    assert torch.equal(found.photons, codec.decode_photons(found.photons_encoded))
    assert torch.equal(found.time_ns, codec.decode_time(found.time_encoded, found.expected_ns))


def test_a_correction_goes_to_the_sensor_of_its_cell(model):
    """Move the last layer of one face: the sensors of that face move, and no other."""
    with torch.no_grad():
        before = model(ITEMS).photons_encoded
        for number, name in enumerate(("inner", "outer", "us", "ds", "top", "bottom")):
            decoder = model.grids[name] if name in model.grids else model.hexes[name]
            decoder.out.bias[0] += 1
            step = model(ITEMS).photons_encoded - before
            decoder.out.bias[0] -= 1
            own = torch.from_numpy(face_of() == number)
            torch.testing.assert_close(step[:, own], torch.ones_like(step[:, own]), rtol=0, atol=1e-5)
            assert step[:, ~own].abs().max() < 1e-6


@pytest.mark.parametrize("sensor", [2000, 1022, 4100, 4240, 4380, 4500, 4630, 4700])
def test_a_cell_is_corrected_beside_its_own_neighbours(model, sensor):
    """Rows and columns are not swapped: one bright sensor moves what is around it, in its own face."""
    changed = ITEMS.clone()
    changed[:, sensor, PHOTONS], changed[:, sensor, PHOTONS_VALID] = 50_000, 1

    def corrections(items):
        found = model(items)
        return found.photons_encoded - model.simple(model.encoder.features(items)[0])[..., 0]

    with torch.no_grad():
        moved = (corrections(changed) - corrections(ITEMS)).abs().sum(dim=0).numpy()
    own = np.flatnonzero(face_of() == face_of()[sensor])
    near = own[np.argsort(np.linalg.norm(PLACES[own, :3] - PLACES[sensor, :3], axis=1))[:5]]
    assert moved[near].mean() > 3 * np.median(moved[own])


def test_the_mean_of_the_neighbours_by_hand(model):
    with torch.no_grad():
        sensors = model.encoder.features(ITEMS)[0]
        simple = model.simple(sensors)
    for sensor in (0, 2000, 4240, 4742, 4600):
        distance = np.linalg.norm(PLACES[:, :3] - PLACES[sensor, :3], axis=1)
        distance[sensor] = np.inf
        near = np.argsort(distance, kind="stable")[:NEIGHBOURS]
        for event in range(2):
            own = sensors[event, near]
            for column in (0, 1):
                good = own[:, 2 + column] > 0
                wanted = own[good, column].mean().item() if good.any() else 0.0
                assert simple[event, sensor, column].item() == pytest.approx(wanted, abs=1e-5)
