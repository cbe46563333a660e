"""Exported graphs: from raw branches to what crpipe predicts, and the card's example without crpipe.

That a written graph computes what its model does is tested by crpipe.contract: each one takes seconds.
"""

import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from crpipe.events.batch import concatenate
from crpipe.inference import card
from crpipe.inference.export import Exportable
from crpipe.workloads.xec import export
from crpipe.workloads.xec.export import InpainterGraph, RegressorGraph, example, items_of
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.reading.options import RootFilesOptions
from crpipe.workloads.xec.reading.root import RootFiles
from root_files import make_sensors, make_truth, write_root
from xenon_models import ALL_TASKS, build, predict, workload

# Tasks in another order than that of the layout: names of outputs must not depend on it.
TASKS = {"angle": {}, "time": {"loss": "gaussian_nll"}, "position": {}, "energy": {"loss": "gaussian_nll"}}
OUTPUTS = {  # and their columns
    "Regressor": {"energy": 1, "energy_sigma": 1, "position": 3, "time": 1, "time_sigma": 1, "angle": 2},
    "Inpainter": {"found_npho": SENSORS, "found_time": SENSORS},
}
KEYS = {"reader.npho_threshold": 30.0, "reader.sentinel": [-999.0], "reader.saturated": None}
MADE = SimpleNamespace(keys=KEYS)
ODD = np.array(
    [
        *([np.nan, 0], [np.inf, 0], [-np.inf, 0], [1e10, 1e10], [9.1e9, 0], [8.9e9, 0], [-9.1e9, 0]),
        *([-3, 1e-8], [0, 1e-8], [99.99, 1e-8], [100, 1e-8], [500, np.nan], [500, 1e10], [500, -1e10]),
        *([500, np.inf], [500, -2.5e-8], [3, 1e-8]),
    ],
    np.float32,
)


DEFAULT = RootFilesOptions()


def raw(events=3, *, infinite=False):
    """Make branches with every odd value that a file may hold; infinite light, too, where it is read."""
    npho, time = make_sensors(events)
    odd = ODD if infinite else ODD[ODD[:, 0] != np.inf]
    npho[:, 2000 : 2000 + len(odd)], time[:, 2000 : 2000 + len(odd)] = odd.T[:, None]
    return npho, time


def read(path, npho, time, options=DEFAULT):
    write_root(path, npho, time, **make_truth(len(npho)))
    return concatenate(list(RootFiles(options).rows(path, {})))


@pytest.mark.parametrize(
    "options",
    [
        *({"npho_threshold": threshold} for threshold in (0.0, 3.0, 100.0)),
        *({"sentinel": [500, -3, 1e10]}, {"sentinel": 100.1}, {"saturated": 450.0}),
        {"sentinel": [0, 1e-8], "saturated": 99.9, "npho_threshold": 50.0},
    ],
)
def test_items_are_those_of_the_reader_bit_for_bit(tmp_path, options):
    npho, time = raw(infinite=True)
    read_with = RootFilesOptions(**options)
    wanted = read(tmp_path / "gammas.root", npho, time, read_with).items.reshape(3, SENSORS, -1)[..., :4]
    found = items_of(torch.from_numpy(npho), torch.from_numpy(time), read_with)
    assert np.array_equal(found, wanted)
    assert 0 < wanted[..., 3].sum() < wanted[..., 2].sum() < wanted[..., 2].size


def test_a_regressor_of_raw_branches_gives_the_predictions(tmp_path):
    made, model = build(tasks=ALL_TASKS | {"energy": {"loss": "gaussian_nll"}})
    npho, time = raw()
    wanted = predict(made, model, read(tmp_path / "gammas.root", npho, time))
    with torch.no_grad():
        found = RegressorGraph(model, DEFAULT)(torch.from_numpy(npho), torch.from_numpy(time))
    columns = [
        *(["energy_gev"], ["energy_gev_sigma"], ["u_cm", "v_cm", "w_cm"]),
        *(["gamma_time_ns"], ["theta_rad", "phi_rad"]),
    ]
    for values, names in zip(found, columns, strict=True):
        np.testing.assert_allclose(values, np.stack([wanted[name] for name in names], axis=1), rtol=1e-5)


def test_an_inpainter_of_raw_branches_finds_the_dead_sensors(tmp_path):
    made, model = build("Inpainter", predict_mask=0.0)
    npho, time = raw()
    wanted = predict(made, model, read(tmp_path / "gammas.root", npho, time))
    with torch.no_grad():
        photons, seconds = InpainterGraph(model, DEFAULT)(torch.from_numpy(npho), torch.from_numpy(time))
    for event in range(3):
        ids = wanted["sensor_id"][event].astype(int)
        np.testing.assert_allclose(photons[event, ids], wanted["photons"][event], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(1e9 * seconds[event, ids], wanted["time_ns"][event], rtol=1e-5, atol=1e-5)


@pytest.fixture(params=OUTPUTS)
def exported(request, tmp_path, monkeypatch):
    """A workload, the graph and its names of outputs as they would be written, and what is said of them."""
    kept = []

    class Unwritten:
        def __init__(self, graph, rows, outputs, *_):
            kept.extend((graph, outputs))

        def export(self, path):
            return 1e-6

    monkeypatch.setattr(export, "Graph", Unwritten)
    made, model = build(request.param, **({"tasks": TASKS} if request.param == "Regressor" else {}))
    graphs = made.graphs(model, MADE, tmp_path)
    return made, *kept, graphs


def test_outputs_are_what_their_names_say(exported):
    made, graph, names, graphs = exported
    wanted = OUTPUTS[type(made).__name__]
    assert isinstance(made, Exportable)
    assert graph.options == RootFilesOptions(npho_threshold=30, sentinel=(-999,))
    with torch.no_grad():
        found = graph(**example(2, 5))
    assert {name: values.shape[1] for name, values in zip(names, found, strict=True)} == wanted
    described = graphs.description["graph"]
    assert list(described["inputs"]) == ["npho", "relative_time"]
    assert all("beyond 9e9, or -999:" in text for text in described["inputs"].values())
    assert list(described["outputs"]) == list(names) == list(wanted)


def write_stand_in(path, outputs):
    """Write a graph of these outputs: the first columns of relative_time, of each event."""
    kind = onnx.TensorProto
    nodes, columns = [], []
    for name, width in outputs.items():
        columns.append(onnx.numpy_helper.from_array(np.arange(width), f"of_{name}"))
        nodes.append(onnx.helper.make_node("Gather", ["relative_time", f"of_{name}"], [name], axis=1))
    inputs, results = (
        [onnx.helper.make_tensor_value_info(name, kind.FLOAT, ["events", n]) for name, n in each.items()]
        for each in ({"npho": SENSORS, "relative_time": SENSORS}, outputs)
    )
    graph = onnx.helper.make_graph(nodes, "stand-in", inputs, results, columns)
    opset = onnx.helper.make_opsetid("", 18)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), path)


def test_the_example_of_the_card_runs_as_it_is_printed_without_crpipe(exported, tmp_path):
    made, _, _, graphs = exported
    text = "\n".join(made.card(MADE, graphs)[card.USE])
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in lines.splitlines() if line.strip()]) <= 10
    write_stand_in(tmp_path / graphs.files[0], OUTPUTS[type(made).__name__])
    npho, time = make_sensors(4, seed=3)
    npho[:, 7], npho[:, 8], npho[:, 9] = np.nan, -999, np.inf
    write_root(tmp_path / "gammas.root", npho, time)
    blocked = "import sys\nsys.modules['torch'] = sys.modules['crpipe'] = None\n"
    after = "\nimport numpy\nnumpy.save('after.npy', events['npho'])\n"
    words = [sys.executable, "-I", "-W", "error", "-c", blocked + lines + after]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if type(made).__name__ == "Regressor":
        rows = [line.split() for line in done.stdout.splitlines()]
        assert [row[:2] for row in rows] == [["1", str(event)] for event in range(4)]
        energies = [float(re.search(r"\[(.*?)\]", line)[1]) for line in done.stdout.splitlines()]
        np.testing.assert_allclose(energies, time[:, 0], rtol=1e-4)
        assert all(line.endswith("energy_gev (GeV)") for line in done.stdout.splitlines())
    else:
        dead = ~(np.abs(npho) <= 9e9) & (npho != np.inf) | (npho == -999)
        found = np.load(tmp_path / "after.npy")
        assert np.array_equal(found[~dead], npho[~dead])
        assert np.array_equal(found[dead], time[dead])


def test_a_list_of_dead_sensors_is_not_in_the_graph_and_the_card_says_so(exported):
    made, _, _, graphs = exported
    without, with_list = (
        "\n".join(made.card(SimpleNamespace(keys=keys), graphs)[card.DEVIATIONS])
        for keys in (KEYS, KEYS | {"reader.dead": True})
    )
    assert "fewer than 30 photons" in without
    assert "give NaN" not in without
    assert "give NaN" in with_list


def test_an_autoencoder_has_no_graph():
    assert not isinstance(workload("MaskedAutoencoder"), Exportable)
