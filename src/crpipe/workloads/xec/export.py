"""What an export adds: graphs of the models, and the part of the card that tells how to use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.inference import card
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import Graph
from crpipe.workloads.xec.layout import LARGEST, SENSORS, TRUTH, TRUTHS
from crpipe.workloads.xec.models.heads import UNITS, GammaModel, sigma_of
from crpipe.workloads.xec.reading.options import RootFilesOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from crpipe.inference.card import Provenance
    from crpipe.workloads.xec.models.decoder import MaskedModel
    from crpipe.workloads.xec.options import RegressorOptions

# The trained models as functions of the raw branches of a ROOT file, all scaling inside, for an export.


def items_of(npho: Tensor, relative_time: Tensor, options: RootFilesOptions) -> Tensor:
    """Turn raw branches, [B, 4760] each, into the items that models read, as the reader does: [B, 4760, 4].

    relative_time: in s. options: of the reader; see ``flag_sensors``.
    """
    valid = (npho.abs() <= LARGEST) | (npho == torch.inf)  # false for NaN
    timed = (relative_time.abs() <= LARGEST) & (npho >= options.npho_threshold)
    for sentinel in options.sentinel:
        valid &= npho != npho.new_tensor(sentinel)
        timed &= relative_time != relative_time.new_tensor(sentinel)
    timed &= valid
    photons = torch.where(valid, npho, 0.0)
    if options.saturated is not None:
        photons = photons.clamp(max=options.saturated)
    time = torch.where(timed, relative_time * _NS, 0.0)
    return torch.stack([photons, time, valid.to(npho.dtype), timed.to(npho.dtype)], dim=2)


class RegressorGraph(nn.Module):
    """Predictions of all tasks from raw branches, in the order of ``outputs``."""

    def __init__(self, model: GammaModel, options: RootFilesOptions) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, npho: Tensor, relative_time: Tensor) -> tuple[Tensor, ...]:
        """Return each task [B, D] in the units of its columns, and its uncertainties, if any."""
        outputs: list[Tensor] = []
        for name, (value, log_sigma) in self.model(items_of(npho, relative_time, self.options)).items():
            outputs.append(value)
            if log_sigma is not None:
                outputs.append(sigma_of(self.model, name, value, log_sigma))
        return tuple(outputs)


class InpainterGraph(nn.Module):
    """Photons and times of all sensors, found from those that are valid."""

    def __init__(self, model: MaskedModel, options: RootFilesOptions) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, npho: Tensor, relative_time: Tensor) -> tuple[Tensor, Tensor]:
        """Return photons and times in s, [B, 4760] each: found ones, also for the sensors that are valid."""
        estimate = self.model(items_of(npho, relative_time, self.options))
        return estimate.photons, estimate.time_ns / _NS


# Writes the ONNX graphs of trained models, and checks them.

REGRESSOR, INPAINTER = "regressor.onnx", "inpainter.onnx"
TOLERANCE = 1e-5  # of 1 + the value, in units of the tasks or encoded
_NS = 1e9
_CHECKED_EVENTS = (1, 3, 5)
_INPUTS = ("npho", "relative_time")


def write_regressor(
    model: GammaModel, options: RegressorOptions, provenance: Provenance, folder: Path
) -> Graphs:
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

    def compared(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [values / values.new_tensor(unit) for values, unit in zip(tensors, units, strict=True)]

    return _write(RegressorGraph(model, options_of(provenance)), outputs, folder / REGRESSOR, compared)


def write_inpainter(model: MaskedModel, provenance: Provenance, folder: Path) -> Graphs:
    """Write the graph of an inpainter; raise CheckpointError where it differs from the model."""
    outputs = {"found_npho": "photons of each sensor", "found_time": "time of each sensor, in s"}
    codec = model.encoder.features.codec

    def compared(tensors: Sequence[Tensor]) -> list[Tensor]:
        photons, time = tensors
        return [codec.encode_photons(photons), time * _NS / codec.time_scale]

    return _write(InpainterGraph(model, options_of(provenance)), outputs, folder / INPAINTER, compared)


def options_of(provenance: Provenance) -> RootFilesOptions:
    """Return how the reader of the training flagged sensors: the options that ``items_of`` needs."""
    names = ("npho_threshold", "sentinel", "saturated")
    keys = {name: provenance.keys.get(f"reader.{name}") for name in names}
    return RootFilesOptions(**{name: value for name, value in keys.items() if value is not None})


def _write(
    graph: RegressorGraph | InpainterGraph,
    outputs: Mapping[str, str],
    path: Path,
    compared: Callable[[Sequence[Tensor]], list[Tensor]],
) -> Graphs:
    """Write a graph and check it; ``compared`` turns its outputs into the units that training compares.

    In others a difference means nothing: times in s are all near 0, and photons near 0 have a steep decoder.
    """
    rows, checks = dict.fromkeys(_INPUTS, "events"), [example(events, events) for events in _CHECKED_EVENTS]
    exported = Graph(graph, rows, tuple(outputs), example(3, 0), TOLERANCE, checks, compared)
    difference = exported.export(path)
    more = "".join(f", or {value:g}" for value in graph.options.sentinel)  # beside what LARGEST leaves out
    described: dict[str, Any] = {
        "inputs": {
            "npho": f"photons as in the file, [events, {SENSORS}]; NaN or beyond 9e9{more}: dead",
            "relative_time": f"in s, [events, {SENSORS}]; NaN or beyond 9e9{more}: none",
        },
        "outputs": dict(outputs),
        "difference": difference,
    }
    return Graphs((path.name,), {"graph": described})


def example(events: int, seed: int) -> dict[str, Tensor]:
    """Generate raw branches to check a graph with: bright, dark and dead sensors."""
    random = np.random.default_rng(seed)
    npho = random.exponential(60, (events, SENSORS)) * random.exponential(1, (events, 1))
    npho[random.random(npho.shape) < 0.02] = 1e10  # noqa: PLR2004
    npho[:, :5] = np.nan
    time = 1e-9 * random.normal(0, 20, npho.shape)
    time[random.random(npho.shape) < 0.3] = 1e10  # noqa: PLR2004
    arrays = {"npho": npho.astype(np.float32), "relative_time": time.astype(np.float32)}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def regressor_sections(provenance: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Return the lines of the card that only a regressor can write."""
    introduction = "Reconstructs gammas from the 4,760 photosensors of the liquid xenon detector of MEG II."
    return _sections(introduction, list(_use_regressor(graphs)), provenance, graphs)


def inpainter_sections(provenance: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Return the lines of the card that only an inpainter can write."""
    introduction = "Finds what dead photosensors of the liquid xenon detector of MEG II would have seen."
    return _sections(introduction, list(_use_inpainter(options_of(provenance))), provenance, graphs)


def _sections(
    introduction: str, use: list[str], provenance: Provenance, graphs: Graphs
) -> Mapping[str, Sequence[str]]:
    difference, options = graphs.description["graph"]["difference"], options_of(provenance)
    deviations = [
        f"- Graph and checkpoint differ by at most {difference:.0e} of 1 + the value, in units of training,",
        "  as checked with random photons; with those of gammas, float32 rounds by up to some 1e-4.",
        f"- Sensors of fewer than {options.npho_threshold:g} photons have no time, as in training.",
    ]
    if options.saturated is None:
        deviations.append("- An event in which npho is inf has no prediction: training refused such events.")
    if provenance.keys.get("reader.dead"):
        deviations.append("- The graph does not know the list of dead sensors: give NaN as their photons.")
    return {
        "": (introduction, "Validity, encoding, geometry and all scaling are inside the graph."),
        card.USE: use,
        card.DEVIATIONS: deviations,
    }


def _use_regressor(graphs: Graphs) -> Iterator[str]:
    names = list(graphs.description["graph"]["outputs"])
    yield from _opening(REGRESSOR)
    yield f"{', '.join(names)}{',' if len(names) == 1 else ''} = session.run(None, inputs)"
    first = names[0]
    yield f"for run, event, value in zip(events['run'], events['event'], {first}):"
    yield f'    print(run, event, value, "{graphs.description["graph"]["outputs"][first]}")'
    yield from ("```", "")


def _use_inpainter(options: RootFilesOptions) -> Iterator[str]:
    yield from _opening(INPAINTER)
    yield "photons, time = session.run(None, inputs)"
    light = "events['npho']"
    more = "".join(f" | ({light} == {value!r})" for value in options.sentinel if abs(value) <= LARGEST)
    lit = "" if np.inf in options.sentinel else f" | ({light} == float('inf'))"
    yield f"dead = ~((abs({light}) <= 9e9){lit}){more}"
    yield f"{light}[dead] = photons[dead]"
    yield from ("```", "")


def _opening(name: str) -> Iterator[str]:
    yield from ("Needs `pip install onnxruntime uproot`; neither crpipe nor torch.", "", "```python")
    yield from ("import onnxruntime", "import uproot", "")
    yield f'session = onnxruntime.InferenceSession("{name}", providers=["CPUExecutionProvider"])'
    yield 'branches = ["run", "event", "npho", "relative_time"]'
    yield 'events = uproot.open("gammas.root")["tree"].arrays(branches, entry_stop=100, library="np")'
    yield 'inputs = {name: events[name].astype("float32") for name in branches[2:]}'
