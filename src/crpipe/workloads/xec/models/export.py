"""What an export of a trained model adds: one ONNX graph from raw branches, checked, and its card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.core.errors import CheckpointError
from crpipe.inference import card
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import graph_difference, write_graph
from crpipe.workloads.xec.layout import SENSORS, TRUTH, TRUTHS
from crpipe.workloads.xec.models.graph import InpainterGraph, RegressorGraph
from crpipe.workloads.xec.reading.options import RootFilesOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from crpipe.inference.provenance import Provenance
    from crpipe.workloads.xec.models.decoder import MaskedModel
    from crpipe.workloads.xec.models.heads import GammaModel
    from crpipe.workloads.xec.options import RegressorOptions

REGRESSOR, INPAINTER = "regressor.onnx", "inpainter.onnx"
TOLERANCE = 1e-5  # of 1 + the value
_CHECKED_EVENTS = (1, 3, 5)
_INPUTS = ("npho", "relative_time")


def write_regressor(model: GammaModel, options: RegressorOptions, made: Provenance, folder: Path) -> Graphs:
    """Write the graph of a regressor; raise CheckpointError where it differs from the model."""
    outputs: dict[str, str] = {}
    for name in (name for name in TRUTHS if name in model.heads):
        fields = TRUTH[name]
        outputs[name] = ", ".join(f"{field.name} ({field.unit})" for field in fields)
        if options.tasks[name].loss == "gaussian_nll":
            outputs[f"{name}_sigma"] = "uncertainties of these"
    return _write(RegressorGraph(model, _threshold(made)), outputs, folder / REGRESSOR)


def write_inpainter(model: MaskedModel, made: Provenance, folder: Path) -> Graphs:
    """Write the graph of an inpainter; raise CheckpointError where it differs from the model."""
    outputs = {"found_npho": "photons of each sensor", "found_time": "time of each sensor, in s"}
    return _write(InpainterGraph(model, _threshold(made)), outputs, folder / INPAINTER)


def _threshold(made: Provenance) -> float:
    default = RootFilesOptions().npho_threshold
    return float(made.keys.get("reader.npho_threshold", default))


def _write(graph: nn.Module, outputs: Mapping[str, str], path: Path) -> Graphs:
    rows = dict.fromkeys(_INPUTS, "events")
    write_graph(path, graph, example(3, 0), rows, tuple(outputs))
    graph.eval()
    worst = max(graph_difference(path, graph, example(events, events)) for events in _CHECKED_EVENTS)
    if not worst <= TOLERANCE:  # so that NaN is refused
        raise CheckpointError(
            f"{path}: the exported graph differs from the model by {worst:.1e} (at most {TOLERANCE:g} is "
            "allowed); are the weights finite?"
        )
    described: dict[str, Any] = {
        "inputs": {
            "npho": f"photons as in the file, [events, {SENSORS}]; NaN or beyond 9e9: dead",
            "relative_time": f"in s, [events, {SENSORS}]; NaN or beyond 9e9: none",
        },
        "outputs": dict(outputs),
        "difference": worst,
    }
    return Graphs((path.name,), {"graph": described})


def example(events: int, seed: int) -> dict[str, Tensor]:
    """Make raw branches to check a graph with: bright, dark and dead sensors."""
    random = np.random.default_rng(seed)
    npho = random.exponential(60, (events, SENSORS)) * random.exponential(1, (events, 1))
    npho[random.random(npho.shape) < 0.02] = 1e10  # noqa: PLR2004
    npho[:, :5] = np.nan
    time = 1e-9 * random.normal(0, 20, npho.shape)
    time[random.random(npho.shape) < 0.3] = 1e10  # noqa: PLR2004
    arrays = {"npho": npho.astype(np.float32), "relative_time": time.astype(np.float32)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def regressor_sections(made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Give the lines of the card that only a regressor can write."""
    introduction = "Reconstructs gammas from the 4,760 photosensors of the liquid xenon detector of MEG II."
    return _sections(introduction, list(_use_regressor(graphs)), made, graphs)


def inpainter_sections(made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Give the lines of the card that only an inpainter can write."""
    introduction = "Finds what dead photosensors of the liquid xenon detector of MEG II would have seen."
    return _sections(introduction, list(_use_inpainter()), made, graphs)


def _sections(
    introduction: str, use: list[str], made: Provenance, graphs: Graphs
) -> Mapping[str, Sequence[str]]:
    difference = graphs.description["graph"]["difference"]
    return {
        "": (introduction, "Validity, encoding, geometry and all scaling are inside the graph."),
        card.USE: use,
        card.DEVIATIONS: [
            f"- Graph and checkpoint differ by at most {difference:.0e} of 1 + the value, as checked.",
            f"- Sensors of fewer than {_threshold(made):g} photons have no time, as in training.",
        ],
    }


def _use_regressor(graphs: Graphs) -> Iterator[str]:
    names = list(graphs.description["graph"]["outputs"])
    yield from _opening(REGRESSOR)
    yield f"{', '.join(names)}{',' if len(names) == 1 else ''} = session.run(None, inputs)"
    first = names[0]
    yield f"for run, event, value in zip(events['run'], events['event'], {first}):"
    yield f'    print(run, event, value, "{graphs.description["graph"]["outputs"][first]}")'
    yield from ("```", "")


def _use_inpainter() -> Iterator[str]:
    yield from _opening(INPAINTER)
    yield "photons, time = session.run(None, inputs)"
    yield "dead = ~(abs(events['npho']) <= 9e9)"
    yield "events['npho'][dead] = photons[dead]"
    yield from ("```", "")


def _opening(name: str) -> Iterator[str]:
    yield from ("Needs `pip install onnxruntime uproot`; neither crpipe nor torch.", "", "```python")
    yield from ("import onnxruntime", "import uproot", "")
    yield f'session = onnxruntime.InferenceSession("{name}", providers=["CPUExecutionProvider"])'
    yield 'branches = ["run", "event", "npho", "relative_time"]'
    yield 'events = uproot.open("gammas.root")["tree"].arrays(branches, entry_stop=100, library="np")'
    yield 'inputs = {name: events[name].astype("float32") for name in branches[2:]}'
