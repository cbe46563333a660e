"""What an export of a trained model adds: one ONNX graph from raw pulses to directions, and its card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from crpipe.core.errors import CheckpointError
from crpipe.inference import card
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import graph_difference, write_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from crpipe.events.layout import Layout
    from crpipe.workloads.direction.models.graph import PulseGraph

GRAPH = "direction.onnx"
OUTPUTS = ("direction", "length")
TOLERANCE = 1e-5  # of 1 + the value
_CHECKED_EVENTS = (1, 3, 8)
_INTRODUCTION = (
    "Reconstructs where a neutrino came from, from the pulses of one trigger of IceCube. Grouping by sensor,",
    "the cut to the first sensors and pulses, the geometry and all scaling are inside the graph.",
)


def write(graph: PulseGraph, layout: Layout, folder: Path) -> Graphs:
    """Write the graph; raise CheckpointError where it differs from the model, at three numbers of events."""
    path, worst = folder / GRAPH, 0.0
    rows = {"pulses": "pulses", "multiplicity": "events"}
    write_graph(path, graph, example(3, 0), rows, OUTPUTS)
    for events in _CHECKED_EVENTS:
        worst = max(worst, graph_difference(path, graph, example(events, events)))
    if not worst <= TOLERANCE:  # so that NaN is refused
        raise CheckpointError(
            f"{path}: the exported graph differs from the model by {worst:.1e} (at most {TOLERANCE:g} is "
            "allowed); are the weights finite?"
        )
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


def example(events: int, seed: int) -> dict[str, Tensor]:
    """Make inputs of a graph: ``events`` events of 1 to 200 pulses, in the order of time."""
    draw = torch.Generator().manual_seed(seed)
    multiplicity = torch.randint(1, 201, (events,), generator=draw)
    total = int(multiplicity.sum())
    sensor = torch.randint(0, 60, (total,), generator=draw)
    time = 1e4 + torch.rand(total, generator=draw).cumsum(0) * 50
    charge = torch.rand(total, generator=draw) * 3
    auxiliary = torch.randint(0, 2, (total,), generator=draw).float()
    return {"pulses": torch.stack([sensor.float(), time, charge, auxiliary], 1), "multiplicity": multiplicity}


def sections(graphs: Graphs, *, kappa: bool) -> Mapping[str, Sequence[str]]:
    """Give the lines of the card that only this workload can write; kappa: whether the length is one."""
    difference = graphs.description["graph"]["difference"]
    return {
        "": _INTRODUCTION,
        card.USE: list(_use(kappa=kappa)),
        card.DEVIATIONS: [
            f"- Graph and checkpoint differ by at most {difference:.0e} of 1 + the value, as checked.",
            "- The pulses of an event have to be in the order of time, as they are in the files.",
        ],
    }


def _use(*, kappa: bool) -> Iterator[str]:
    yield from ("Needs `pip install numpy onnxruntime`; neither crpipe nor torch.", "", "```python")
    yield from ("import numpy as np", "import onnxruntime", "")
    yield f'session = onnxruntime.InferenceSession("{GRAPH}", providers=["CPUExecutionProvider"])'
    yield "pulses = np.array(  # sensor_id, time_ns, charge_pe, auxiliary; event after event"
    yield "    [[4066, 6170, 1.3, 1], [3512, 9774, 1.5, 0], [3512, 9822, 0.2, 0], [60, 9000, 0.9, 1]],"
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
