"""The exported graph: raw pulses to the directions that crpipe predicts, without crpipe."""

import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch

from crpipe.events.batch import concatenate
from crpipe.inference import card
from crpipe.workloads.direction.export import PulseGraph
from crpipe.workloads.direction.layout import pulses, unit_vectors
from directions import WORKLOADS, build, changed, make_events, make_places, predict

BOTH = [
    pytest.param(each, marks=pytest.mark.slow)  # an export takes seconds
    for each in [
        ("FlatTransformer", "von_mises_fisher"),
        ("DeepSet", "angle"),
        ("HierarchicalTransformer", "von_mises_fisher"),
    ]
]
CUTS = {"pulses_per_dom": 3, "max_doms": 8}
MADE = SimpleNamespace(layout=pulses())


def blocks():
    """Blocks of 1, 3 and 50 events: of one pulse, of more than is seen, without coincidences, with ties."""
    many = np.random.default_rng(2).integers(1, 120, 50)
    plain = [make_events([60]), make_events([1, 300, 7], seed=1), make_events(many, seed=2)]
    crowded = make_events([40, 1, 90], seed=3, sensors=12)  # many pulses on each sensor
    noise = changed(make_events([30, 2, 5], seed=4), slice(None), auxiliary=1)
    at_once = changed(make_events([30, 2, 5], seed=5), slice(None), time=7000)
    return [*plain, crowded, noise, at_once, concatenate([noise, crowded, at_once, plain[0]])]


def wanted(workload, model, events):
    found = predict(workload, model, events)
    return unit_vectors(found["azimuth"], found["zenith"]), found.get("kappa")


def compare(direction, size, expected):
    np.testing.assert_allclose(direction, expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(direction, axis=1), 1, atol=1e-5)
    if expected[1] is not None:
        np.testing.assert_allclose(size, expected[1], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module", params=BOTH, ids="-".join)
def exported(request, tmp_path_factory):
    name, choice = request.param
    workload, model = build(name, loss=choice, **CUTS)
    folder = tmp_path_factory.mktemp("exported")
    return workload, model, folder, workload.graphs(model, MADE, folder)


@pytest.mark.parametrize(
    "options", [{}, {"time": "absolute", **CUTS}, {"pulses_per_dom": 1, "max_doms": 1}], ids=str
)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_module_of_raw_pulses_gives_the_predictions(name, options):
    workload, model = build(name, **options)
    graph = PulseGraph(model, workload.options.pulses_per_dom, workload.options.max_doms)
    for events in blocks():
        multiplicity = torch.from_numpy(events.multiplicity.astype(np.int64))
        with torch.no_grad():
            direction, size = graph(torch.from_numpy(events.items), multiplicity)
        compare(direction.numpy(), size.numpy(), wanted(workload, model, events))


def test_the_graph_gives_the_predictions_for_any_number_of_events(exported):
    workload, model, folder, graphs = exported
    (file,) = graphs.files
    session = onnxruntime.InferenceSession(folder / file, providers=["CPUExecutionProvider"])
    for events in blocks():
        inputs = {"pulses": events.items, "multiplicity": events.multiplicity.astype(np.int64)}
        direction, size = session.run(["direction", "length"], inputs)
        compare(direction, size, wanted(workload, model, events))


def test_the_example_of_the_card_runs_as_it_is_printed_without_crpipe(exported):
    workload, _, folder, graphs = exported
    text = "\n".join(workload.card(MADE, graphs)[card.USE])
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    blocked = "import sys\nsys.modules['torch'] = sys.modules['crpipe'] = None\n"
    words = [sys.executable, "-I", "-c", blocked + example]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = np.array(re.findall(r"[-+\w.]+", done.stdout), float)
    assert numbers.shape == (6,)
    assert np.isfinite(numbers).all()
    assert ("kappa" in text) == (workload.options.loss == "von_mises_fisher")


@pytest.mark.slow
def test_a_model_of_a_small_detector_that_averages_over_turns_is_exported_and_the_card_says_so(tmp_path):
    workload, model = build("DeepSet", places=make_places(5), rotations=4)
    graphs = workload.graphs(model, MADE, tmp_path)
    assert any("rotations" in line for line in workload.card(MADE, graphs)[card.DEVIATIONS])
