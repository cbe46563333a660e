"""Writes the ONNX graphs of trained models, and checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.core.errors import CheckpointError
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import graph_difference, write_graph
from crpipe.workloads.xec.export.graph import InpainterGraph, RegressorGraph
from crpipe.workloads.xec.layout import SENSORS, TRUTH, TRUTHS
from crpipe.workloads.xec.reading.options import RootFilesOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
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
    return _write(RegressorGraph(model, threshold_of(made)), outputs, folder / REGRESSOR)


def write_inpainter(model: MaskedModel, made: Provenance, folder: Path) -> Graphs:
    """Write the graph of an inpainter; raise CheckpointError where it differs from the model."""
    outputs = {"found_npho": "photons of each sensor", "found_time": "time of each sensor, in s"}
    return _write(InpainterGraph(model, threshold_of(made)), outputs, folder / INPAINTER)


def threshold_of(made: Provenance) -> float:
    """Give the photons below which a sensor has no time, as the reader of the training had it."""
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
