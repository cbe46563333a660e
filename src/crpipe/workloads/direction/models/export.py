"""What an export of a trained model adds: one ONNX graph from raw pulses to directions, and its card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.events.batch import Events
from crpipe.inference import card
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import largest_difference, refuse_difference, run_graph, write_graph
from crpipe.workloads.direction.layout import TRUTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.events.layout import Layout
    from crpipe.workloads.direction.models.graph import PulseGraph

    Predict = Callable[[Events], NDArray[np.float64]]

GRAPH = "direction.onnx"
OUTPUTS = ("direction", "length")
TOLERANCE = 1e-5  # of 1 + the value
_CHECKED_EVENTS = (1, 3, 8)
_INTRODUCTION = (
    "Reconstructs where a neutrino came from, from the pulses of one trigger of IceCube. Grouping by sensor,",
    "the cut to the first sensors and pulses, the geometry and all scaling are inside the graph.",
)


def write(graph: PulseGraph, predict: Predict, layout: Layout, folder: Path) -> Graphs:
    """Write the graph; raise CheckpointError where it gives other vectors [B, 3] than ``predict``."""
    path = folder / GRAPH
    rows = {"pulses": "pulses", "multiplicity": "events"}
    sensors = len(graph.model.features.places)
    write_graph(path, graph, _tensors(example(3, 0, sensors)), rows, OUTPUTS)
    found, wanted = [], []
    for events in _CHECKED_EVENTS:
        block = example(events, events, sensors)
        direction, length = run_graph(path, _tensors(block))
        found.append(direction * length[:, None])
        with torch.no_grad():
            wanted.append(predict(block))
    worst = largest_difference(found, wanted)
    refuse_difference(path, worst, TOLERANCE)
    described: dict[str, Any] = {
        "inputs": {
            "pulses": [
                f"{field.name} ({field.unit})" if field.unit else field.name for field in layout.items
            ],
            "multiplicity": "pulses of each event, at least one",
        },
        "outputs": {
            "direction": "unit vector to where the neutrino came from",
            "length": "kappa, or nothing",
        },
        "difference": worst,
    }
    return Graphs((GRAPH,), {"graph": described})


def example(events: int, seed: int, sensors: int) -> Events:
    """Make events of 1 to 1,000 pulses, in the order of time, to check a graph with.

    A few of the sensors have many pulses, so that both cuts are made.
    """
    rng = np.random.default_rng(seed)
    multiplicity = rng.integers(1, 1001, events).astype(np.uint32)
    total = int(multiplicity.sum())
    sensor = np.floor(sensors * rng.random(total) ** 3)
    time = 1e4 + np.cumsum(rng.random(total)) * 50
    columns = [sensor, time, rng.exponential(1.0, total), rng.integers(0, 2, total)]
    unknown = {field.name: np.full(events, np.nan) for field in TRUTH}
    return Events(unknown, multiplicity, np.stack(columns, axis=1).astype(np.float32))


def _tensors(events: Events) -> dict[str, Tensor]:
    multiplicity = torch.from_numpy(events.multiplicity.astype(np.int64))
    return {"pulses": torch.from_numpy(events.items), "multiplicity": multiplicity}


def sections(graphs: Graphs, *, kappa: bool) -> Mapping[str, Sequence[str]]:
    """Give the lines of the card that only this workload can write; kappa: whether the length is one."""
    difference = graphs.description["graph"]["difference"]
    return {
        "": _INTRODUCTION,
        card.USE: list(_use(kappa=kappa)),
        card.DEVIATIONS: [
            f"- Graph and checkpoint differ by at most {difference:.0e} of 1 + the value, as checked.",
            "- The graph predicts once, without the mean over turns of `model.rotations`.",
            "- The pulses of an event have to be in the order of time, as they are in the files.",
        ],
    }


def _use(*, kappa: bool) -> Iterator[str]:
    yield from ("Needs `pip install numpy onnxruntime`; neither crpipe nor torch.", "", "```python")
    yield from ("import numpy as np", "import onnxruntime", "")
    yield f'session = onnxruntime.InferenceSession("{GRAPH}", providers=["CPUExecutionProvider"])'
    yield "pulses = np.array(  # sensor_id, time_ns, charge_pe, auxiliary; event after event"
    yield "    [[2, 6170, 1.3, 1], [1, 9774, 1.5, 0], [1, 9822, 0.2, 0], [0, 9000, 0.9, 1]],"
    yield "    np.float32,"
    yield ")"
    yield "multiplicity = np.array([3, 1])  # pulses of each event"
    inputs = '{"pulses": pulses, "multiplicity": multiplicity}'
    yield f"direction, length = session.run(None, {inputs})"
    yield "azimuth = np.arctan2(direction[:, 1], direction[:, 0]) % (2 * np.pi)"
    yield "zenith = np.arccos(np.clip(direction[:, 2], -1, 1))"
    yield "print(azimuth, zenith, length)"
    yield from ("```", "")
    if kappa:
        yield "`length` is the concentration kappa of a von Mises-Fisher distribution: the larger, the surer;"
        yield "about 68 % of its directions are within 1.5 / sqrt(kappa) rad where kappa is large."
    else:
        yield "`length` means nothing: this model was trained without an uncertainty."
