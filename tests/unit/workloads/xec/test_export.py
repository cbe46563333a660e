"""Exported graphs: from raw branches to what crpipe predicts, without crpipe."""

import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
import uproot

from crpipe.inference import card
from crpipe.inference.export import Exportable
from crpipe.workloads.xec.export import InpainterGraph, RegressorGraph, example, items_of
from root_files import make_sensors, write_root
from xenon_models import WORKLOADS, build, workload

# Tasks in another order than that of the layout: names of outputs must not depend on it.
TASKS = {"angle": {}, "time": {"loss": "gaussian_nll"}, "position": {}, "energy": {"loss": "gaussian_nll"}}
OUTPUTS = {
    "Regressor": ["energy", "energy_sigma", "position", "time", "time_sigma", "angle"],
    "Inpainter": ["found_npho", "found_time"],
}
KEYS = {"reader.npho_threshold": 30.0}
MADE = SimpleNamespace(keys=KEYS)


# An export takes seconds.
@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in ("Regressor", "Inpainter")]
)
def exported(request, tmp_path_factory):
    """A model that comes back from a checkpoint's weights and options alone, and its export."""
    options = {"tasks": TASKS} if request.param == "Regressor" else {}
    before, trained = build(request.param, **options)
    again = WORKLOADS[request.param][1].model_validate(before.options.model_dump(mode="json"))
    made = WORKLOADS[request.param][0](again)
    made.places = before.places
    torch.manual_seed(99)
    model = made.model()
    model.load_state_dict(trained.state_dict(), strict=True)
    folder = tmp_path_factory.mktemp("exported")
    return made, trained, folder, made.graphs(model.eval(), MADE, folder)


def graph_of(made, model):
    return (RegressorGraph if "tasks" in type(made.options).model_fields else InpainterGraph)(model, 30.0)


def session_of(exported):
    _, _, folder, graphs = exported
    (file,) = graphs.files
    return onnxruntime.InferenceSession(folder / file, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("events", [1, 3, 5])
def test_a_graph_computes_what_the_checkpoint_does(exported, events):
    made, model, *_ = exported
    inputs = example(events, 100 + events)
    session = session_of(exported)
    names = OUTPUTS[type(made).__name__]
    assert [output.name for output in session.get_outputs()] == names
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        wanted = graph_of(made, model)(**inputs)
    wanted = dict(zip(names, (each.numpy() for each in wanted), strict=True))
    for name, one in zip(names, found, strict=True):
        other = wanted[name]
        assert one.shape == other.shape
        assert np.isfinite(one).all()
        if name == "found_npho":
            one, other = (np.log1p(np.abs(each) / 100) for each in (one, other))  # noqa: PLW2901
        unit = {"energy": 0.05, "energy_sigma": 0.05, "found_time": 1e-9}.get(name, 1.0)
        assert (np.abs(one - other) / (unit + np.abs(other))).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("exported", ["Regressor"], indirect=True)
def test_outputs_are_what_their_names_say(exported):
    made, model, *_ = exported
    inputs = example(3, 5)
    session = session_of(exported)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {k: v.numpy() for k, v in inputs.items()}), strict=True))
    wanted = dict(
        zip(OUTPUTS["Regressor"], (each.detach() for each in graph_of(made, model)(**inputs)), strict=True)
    )
    assert {name: values.shape[1] for name, values in found.items()} == {
        name: values.shape[1] for name, values in wanted.items()
    }
    assert {name: values.shape[1] for name, values in found.items()} == {
        "energy": 1,
        "energy_sigma": 1,
        "position": 3,
        "time": 1,
        "time_sigma": 1,
        "angle": 2,
    }
    np.testing.assert_allclose(
        found["energy"], model(items_of(**inputs, threshold=30.0))["energy"][0].detach(), rtol=1e-4
    )


def test_what_is_written_is_described(exported):
    made, _, folder, graphs = exported
    assert isinstance(made, Exportable)
    assert sorted(path.name for path in folder.iterdir()) == sorted(graphs.files)
    described = graphs.description["graph"]
    assert list(described["inputs"]) == ["npho", "relative_time"]
    assert list(described["outputs"]) == OUTPUTS[type(made).__name__]
    assert 0 <= described["difference"] <= 1e-5


def write_events(path, events=4):
    npho, time = make_sensors(events, seed=3)
    npho[:, 7] = np.nan
    return write_root(path, npho, time), npho


def test_the_example_of_the_card_runs_as_it_is_printed_without_crpipe(exported):
    made, model, folder, graphs = exported
    text = "\n".join(made.card(MADE, graphs)[card.USE])
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in lines.splitlines() if line.strip()]) <= 10
    path, npho = write_events(folder / "gammas.root")
    blocked = "import sys\nsys.modules['torch'] = sys.modules['crpipe'] = None\n"
    after = "\nimport numpy\nnumpy.save('after.npy', events['npho'])\n"
    words = [sys.executable, "-I", "-W", "error", "-c", blocked + lines + after]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    after = np.load(folder / "after.npy") if done.returncode == 0 else None
    (folder / "after.npy").unlink(missing_ok=True)
    with uproot.open(path) as file:
        inputs = {
            name: torch.from_numpy(file["tree"][name].array(library="np").astype(np.float32))
            for name in ("npho", "relative_time")
        }
    path.unlink()
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        wanted = [each.numpy() for each in graph_of(made, model)(**inputs)]
    if type(made).__name__ == "Regressor":
        rows = [line.split() for line in done.stdout.splitlines()]
        assert [row[:2] for row in rows] == [["1", str(event)] for event in range(4)]
        energies = [float(re.search(r"\[(.*?)\]", line)[1]) for line in done.stdout.splitlines()]
        np.testing.assert_allclose(energies, wanted[0][:, 0], rtol=1e-4)
        assert all(line.endswith("energy_gev (GeV)") for line in done.stdout.splitlines())
    else:
        dead = ~(np.abs(npho) <= 9e9)
        assert np.array_equal(after[~dead], npho[~dead])
        np.testing.assert_allclose(after[dead], wanted[0][dead], rtol=1e-4, atol=1e-3)


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
