"""The files that an export of a muon generator adds: two ONNX graphs, and a script that runs them."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.files import write_text
from crpipe.inference.export import Graphs
from crpipe.workloads.muons.export.graph import LAW, MUONS, check_graphs, write_graphs
from crpipe.workloads.muons.layout import MUON, PRIMARY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.inference.provenance import Limits, Provenance
    from crpipe.workloads.muons.models.sampling import SamplerGraphs

SCRIPT = "sample.py"

_CHECKED_EVENTS = 64
_HEAVIEST = 56.0  # of the air-shower simulator
_SIMULATOR = "crpipe.workloads.muons.simulator.files:AirShowers"
# A primary for examples, moved into the ranges of the training data.
_EXAMPLE = {"energy_gev": 1e6, "zenith_rad": 0.3, "mass_number": 1.0, "depth_m": 1950.0}


def write(sampler: SamplerGraphs, made: Provenance, folder: Path) -> Graphs:
    """Write graphs and script; raise CheckpointError when the graphs differ from the model."""
    limits = limits_of(made)
    primaries = _primaries(limits)
    write_graphs(sampler, primaries, folder)
    difference = check_graphs(sampler, primaries, folder)
    # The script's text, not its module: it imports onnxruntime, which is an extra.
    write_text(folder / SCRIPT, _script())
    noise: list[dict[str, Any]] = [
        {name: getattr(each, name) for name in ("name", "rows", "columns", "law")} for each in sampler.noise
    ]
    description = {
        "units": {
            "primary": {field.name: field.unit for field in PRIMARY},
            "muon": {field.name: field.unit for field in MUON},
        },
        "sampler": {
            "noise": noise,
            "joint": sampler.joint,
            "tolerance": sampler.tolerance,
            "difference": difference,
            "notes": list(sampler.notes),
            "limits": {name: list(ends) for name, ends in limits.items()},
        },
    }
    return Graphs((LAW, MUONS, SCRIPT), description)


def limits_of(made: Provenance) -> Limits:
    """Give the ranges of the primaries: as measured, else as configured for the simulator, else none."""
    if made.seen.limits or not simulated(made.keys):
        return made.seen.limits
    keys = {name.removeprefix("simulator."): value for name, value in made.keys.items()}
    return {
        "energy_gev": (keys["energy_min_gev"], keys["energy_max_gev"]),
        "zenith_rad": (0.0, math.radians(keys["zenith_max_deg"])),
        "mass_number": (1.0, _HEAVIEST),
        "depth_m": (keys["depth_min_m"], keys["depth_max_m"]),
    }


def simulated(keys: Mapping[str, Any]) -> bool:
    """Report whether the air-shower simulator made the training data."""
    return keys.get("source.simulator") == _SIMULATOR


def example(limits: Limits) -> dict[str, float]:
    """Give a primary within the ranges of the training data."""
    anything = (-math.inf, math.inf)
    return {
        name: min(max(value, limits.get(name, anything)[0]), limits.get(name, anything)[1])
        for name, value in _EXAMPLE.items()
    }


def _primaries(limits: Limits) -> NDArray[np.float32]:
    """Draw primaries to check the graphs with, from the ranges of the training data: [N, 4]."""
    rng = np.random.default_rng(0)
    anywhere = example(limits)
    columns = []
    for field in PRIMARY:
        low, high = limits.get(field.name, (anywhere[field.name],) * 2)
        columns.append(rng.uniform(low, high, _CHECKED_EVENTS))
    return np.stack(columns, axis=1).astype(np.float32)


def _script() -> str:
    return files("crpipe.workloads.muons.export").joinpath("standalone.py").read_text()
