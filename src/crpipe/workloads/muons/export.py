"""What an export adds: graphs, a sampler in numpy, and the part of the model card about bundles."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe import __version__
from crpipe.core.files import write_text
from crpipe.inference import card
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import Graph
from crpipe.workloads.muons.layout import MUON, PRIMARY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.inference.card import Limits, Provenance
    from crpipe.workloads.muons.models.sampler import SamplerGraphs

# A sampler as two ONNX graphs that run without torch.


LAW = "multiplicity.onnx"
MUONS = "muons.onnx"
LAW_OUTPUTS = ("log_weight", "log_mean", "log_shape", "empty_logit")


def sampler_graphs(sampler: SamplerGraphs, primaries: NDArray[np.float32]) -> dict[str, Graph]:
    """Describe both graphs by their files, with ``primaries`` [N, 4] as examples."""
    inputs = _example(sampler, torch.from_numpy(primaries))
    rows = {"primaries": "events", "multiplicity": "events", "event": "muons"}
    rows |= {noise.name: noise.rows for noise in sampler.noise}
    law = {"primaries": inputs["primaries"]}
    return {
        LAW: Graph(sampler.multiplicity, rows, LAW_OUTPUTS, law, sampler.tolerance),
        MUONS: Graph(sampler.muons, rows, ("muons",), inputs, sampler.tolerance),
    }


def _example(sampler: SamplerGraphs, primaries: Tensor) -> dict[str, Tensor]:
    """Make inputs with bundles of 1 to 40 muons, and noise."""
    events = len(primaries)
    generator = torch.Generator().manual_seed(0)
    multiplicity = torch.randint(1, 41, (events,), generator=generator)
    event = torch.repeat_interleave(torch.arange(events), multiplicity)
    inputs = {"primaries": primaries, "multiplicity": multiplicity, "event": event}
    draw = {"normal": torch.randn, "uniform": torch.rand}
    for noise in sampler.noise:
        rows = events if noise.rows == "events" else len(event)
        inputs[noise.name] = draw[noise.law](rows, noise.columns, generator=generator)
    return inputs


# The files that an export of a muon generator adds: two ONNX graphs, and a script that runs them.


SCRIPT = "sample.py"

_CHECKED_EVENTS = 64
_HEAVIEST = 56.0  # of the air-shower simulator
_SIMULATOR = "crpipe.workloads.muons.simulator.files:AirShowers"
# A primary for examples, moved into the ranges of the training data.
_EXAMPLE = {"energy_gev": 1e6, "zenith_rad": 0.3, "mass_number": 1.0, "depth_m": 1950.0}


def write(sampler: SamplerGraphs, made: Provenance, folder: Path) -> Graphs:
    """Write graphs and script; raise CheckpointError when the graphs differ from the model."""
    limits = limits_of(made)
    graphs = sampler_graphs(sampler, _primaries(limits))
    difference = max(graph.export(folder / name) for name, graph in graphs.items())
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
    """Return the ranges of the primaries: as measured, else as configured for the simulator, else none."""
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
    """Return a primary within the ranges of the training data."""
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
    return files("crpipe.workloads.muons").joinpath("standalone.py").read_text()


_INTRODUCTION = (
    "A generator of muon bundles in deep ice. For a primary (energy, zenith angle, mass number, vertical",
    "depth in the ice) it draws how many muons arrive at that depth, and of each the energy and the place",
    "across the shower axis. It imitates the simulation that it was trained on.",
)


def sections(made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Return the lines of the sections that only this workload can write."""
    return {
        "": _INTRODUCTION,
        card.USE: list(_use(made)),
        card.VALID: list(_valid_for(made)),
        card.DEVIATIONS: list(_deviations(made, graphs)),
        card.LICENCE: list(_licence(made)),
    }


def _use(made: Provenance) -> Iterator[str]:
    yield from ("Needs `pip install numpy onnxruntime`; neither crpipe nor torch.", "", "```python")
    yield from ("import numpy as np", "from sample import Sampler", "")
    values = ", ".join(f"{value:.6g}" for value in example(limits_of(made)).values())
    yield f"primaries = [[{values}]] * 3  # energy_gev, zenith_rad, mass_number, depth_m"
    yield 'multiplicity, muons = Sampler(".").bundles(primaries, np.random.default_rng(1))'
    yield "print(multiplicity, muons.shape)  # muons: energy_gev, x_m, y_m; event after event"
    yield from ("```", "")
    yield "Or, for a table: `python sample.py primaries.npy bundles.npz --seed 1`."


def _valid_for(made: Provenance) -> Iterator[str]:
    limits = limits_of(made)
    if not made.seen.unknown:
        origin = "measured on the training shards"
    elif limits:
        origin = f"as configured for the simulator; not measured: {made.seen.unknown}"
    else:
        origin = f"not known: {made.seen.unknown}"
    yield f"The training data are within these ranges ({origin})."
    if limits:
        yield from ("", *card.limits_table(made, limits))
    yield ""
    yield "Nothing is known outside of them: `bundles` warns, and `Sampler.outside` finds the primaries."
    yield "Between the two ends there may be few events."
    yield from card.outliers_lines(made)


def _deviations(made: Provenance, graphs: Graphs) -> Iterator[str]:
    sampler = graphs.description["sampler"]
    if simulated(made.keys):
        simulator = "crpipe's own simulator (docs/physics.md#the-simulator)"
        yield f"- The training data come from {simulator}, a parametrisation."
    yield from (f"- {note}" for note in sampler["notes"])
    most = made.keys.get("model.max_muons")
    if most:
        yield f"- In training, a larger bundle was replaced by a random window of at most {most} muons."
    yield (
        f"- With the same noise this export and the checkpoint differ by at most {sampler['difference']:.0e} "
        "of 1 + the value (GeV, m), checked when it was written."
    )


def _licence(made: Provenance) -> Iterator[str]:
    if simulated(made.keys):
        yield "`sample.py` and crpipe: MIT. The weights come from crpipe's own simulator alone: nobody else's"
        yield "data restrict their use."
    else:
        yield "`sample.py` and crpipe: MIT. The weights carry no terms of their own; they follow those of the"
        yield f"data in `{made.keys['source.uri']}`: ask its owners before you publish."
    yield ""
    yield f"Cite crpipe {__version__} as its CITATION.cff says, with the fingerprint above, and the"
    yield "simulation that made the data."
