"""Raw branches become items inside the graph as they do in the reader, sentinels and all."""

import numpy as np
import pytest
import torch

from crpipe.events.batch import concatenate
from crpipe.workloads.xec.export import InpainterGraph, RegressorGraph, items_of
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.reading.options import RootFilesOptions
from crpipe.workloads.xec.reading.root import RootFiles
from root_files import make_sensors, make_truth, write_root
from xenon_models import ALL_TASKS, build, predict

ODD = np.array(
    [
        [np.nan, 0],
        [np.inf, 0],
        [-np.inf, 0],
        [1e10, 1e10],
        [9.1e9, 0],
        [8.9e9, 0],
        [-9.1e9, 0],
        [-3, 1e-8],
        [0, 1e-8],
        [99.99, 1e-8],
        [100, 1e-8],
        [500, np.nan],
        [500, 1e10],
        [500, -1e10],
        [500, np.inf],
        [500, -2.5e-8],
        [3, 1e-8],
    ],
    np.float32,
)


def raw(events=3):
    """Make branches with every odd value that a file may hold."""
    npho, time = make_sensors(events)
    npho[:, 2000 : 2000 + len(ODD)], time[:, 2000 : 2000 + len(ODD)] = ODD.T[:, None]
    return npho, time


def read(path, npho, time, threshold=100.0):
    write_root(path, npho, time, **make_truth(len(npho)))
    reader = RootFiles(RootFilesOptions(npho_threshold=threshold))
    return concatenate(list(reader.rows(path, {})))


@pytest.mark.parametrize("threshold", [0.0, 3.0, 100.0])
def test_items_are_those_of_the_reader_bit_for_bit(tmp_path, threshold):
    npho, time = raw()
    wanted = read(tmp_path / "gammas.root", npho, time, threshold).items.reshape(3, SENSORS, 4)
    found = items_of(torch.from_numpy(npho), torch.from_numpy(time), threshold)
    assert np.array_equal(found, wanted)
    assert 0 < wanted[..., 3].sum() < wanted[..., 2].sum() < wanted[..., 2].size


def test_a_regressor_of_raw_branches_gives_the_predictions(tmp_path):
    made, model = build(tasks=ALL_TASKS | {"energy": {"loss": "gaussian_nll"}})
    npho, time = raw()
    wanted = predict(made, model, read(tmp_path / "gammas.root", npho, time))
    with torch.no_grad():
        found = RegressorGraph(model, 100.0)(torch.from_numpy(npho), torch.from_numpy(time))
    energy, sigma, position, start, angle = (each.numpy() for each in found)
    for values, names in (
        (energy, ["energy_gev"]),
        (sigma, ["energy_gev_sigma"]),
        (position, ["u_cm", "v_cm", "w_cm"]),
        (start, ["gamma_time_ns"]),
        (angle, ["theta_rad", "phi_rad"]),
    ):
        np.testing.assert_allclose(values, np.stack([wanted[name] for name in names], axis=1), rtol=1e-5)


def test_an_inpainter_of_raw_branches_finds_the_dead_sensors(tmp_path):
    made, model = build("Inpainter", predict_mask=0.0)
    npho, time = raw()
    wanted = predict(made, model, read(tmp_path / "gammas.root", npho, time))
    with torch.no_grad():
        photons, seconds = InpainterGraph(model, 100.0)(torch.from_numpy(npho), torch.from_numpy(time))
    for event in range(3):
        ids = wanted["sensor_id"][event].astype(int)
        np.testing.assert_allclose(photons[event, ids], wanted["photons"][event], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(1e9 * seconds[event, ids], wanted["time_ns"][event], rtol=1e-5, atol=1e-5)
