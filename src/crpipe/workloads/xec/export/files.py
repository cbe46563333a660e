"""Writes the ONNX graphs of trained models, and checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import largest_difference, refuse_difference, run_graph, write_graph
from crpipe.workloads.xec.export.graph import InpainterGraph, RegressorGraph
from crpipe.workloads.xec.layout import SENSORS, TRUTH, TRUTHS
from crpipe.workloads.xec.models.heads import UNITS
from crpipe.workloads.xec.reading.options import RootFilesOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from crpipe.inference.provenance import Provenance
    from crpipe.workloads.xec.models.decoder import MaskedModel
    from crpipe.workloads.xec.models.heads import GammaModel
    from crpipe.workloads.xec.options import RegressorOptions

REGRESSOR, INPAINTER = "regressor.onnx", "inpainter.onnx"
TOLERANCE = 1e-5  # of 1 + the value, in units of the tasks or encoded
_NS = 1e9
_CHECKED_EVENTS = (1, 3, 5)
_INPUTS = ("npho", "relative_time")


def write_regressor(model: GammaModel, options: RegressorOptions, made: Provenance, folder: Path) -> Graphs:
    """Write the graph of a regressor; raise CheckpointError where it differs from the model."""
    outputs: dict[str, str] = {}
    units: list[tuple[float, ...]] = []
    for name in (name for name in TRUTHS if name in model.heads):
        fields = TRUTH[name]
        outputs[name] = ", ".join(f"{field.name} ({field.unit})" for field in fields)
        units.append(UNITS[name])
        if options.tasks[name].loss == "gaussian_nll":
            outputs[f"{name}_sigma"] = "uncertainties of these"
            units.append(UNITS[name])

    def compared(found: Sequence[Tensor]) -> list[Tensor]:
        return [values / values.new_tensor(unit) for values, unit in zip(found, units, strict=True)]

    return _write(RegressorGraph(model, threshold_of(made)), outputs, folder / REGRESSOR, compared)


def write_inpainter(model: MaskedModel, made: Provenance, folder: Path) -> Graphs:
    """Write the graph of an inpainter; raise CheckpointError where it differs from the model."""
    outputs = {"found_npho": "photons of each sensor", "found_time": "time of each sensor, in s"}
    codec = model.encoder.features.codec

    def compared(found: Sequence[Tensor]) -> list[Tensor]:
        photons, time = found
        return [codec.encode_photons(photons), time * _NS / codec.time_scale]

    return _write(InpainterGraph(model, threshold_of(made)), outputs, folder / INPAINTER, compared)


def threshold_of(made: Provenance) -> float:
    """Give the photons below which a sensor has no time, as the reader of the training had it."""
    default = RootFilesOptions().npho_threshold
    return float(made.keys.get("reader.npho_threshold", default))


def _write(
    graph: nn.Module,
    outputs: Mapping[str, str],
    path: Path,
    compared: Callable[[Sequence[Tensor]], list[Tensor]],
) -> Graphs:
    """Write a graph and check it; ``compared`` turns its outputs into the units that training compares.

    In others a difference means nothing: times in s are all near 0, and photons near 0 have a steep decoder.
    """
    rows = dict.fromkeys(_INPUTS, "events")
    write_graph(path, graph, example(3, 0), rows, tuple(outputs))
    graph.eval()
    worst = max(_difference(path, graph, example(events, events), compared) for events in _CHECKED_EVENTS)
    refuse_difference(path, worst, TOLERANCE)
    described: dict[str, Any] = {
        "inputs": {
            "npho": f"photons as in the file, [events, {SENSORS}]; NaN or beyond 9e9: dead",
            "relative_time": f"in s, [events, {SENSORS}]; NaN or beyond 9e9: none",
        },
        "outputs": dict(outputs),
        "difference": worst,
    }
    return Graphs((path.name,), {"graph": described})


def _difference(
    path: Path, graph: nn.Module, inputs: Mapping[str, Tensor], compared: Callable[..., list[Tensor]]
) -> float:
    with torch.no_grad():
        wanted = compared(graph(**inputs))
    found = compared([torch.from_numpy(values) for values in run_graph(path, inputs)])
    return largest_difference([each.numpy() for each in found], [each.numpy() for each in wanted])


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
