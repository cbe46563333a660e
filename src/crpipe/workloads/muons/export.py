"""What an export adds: graphs, a sampler in numpy, and the part of the model card about bundles."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from crpipe import __version__
from crpipe.core.files import write_text
from crpipe.inference import card
from crpipe.inference.export import Graphs
from crpipe.inference.onnx_graph import Graph
from crpipe.workloads.muons import features
from crpipe.workloads.muons.features import Kind, context_of
from crpipe.workloads.muons.layout import MUON, PRIMARY
from crpipe.workloads.muons.models.density import UNIFORMS, Density, VaeNetworks
from crpipe.workloads.muons.options import MuonGanOptions, MuonVaeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.inference.card import Limits, Provenance
    from crpipe.workloads.muons.models.networks import Generator, Mixture, Multiplicity, Networks

# A trained generator as graphs whose noise is an input: what an export writes.


@dataclass(frozen=True, slots=True)
class Noise:
    """One random input of ``SamplerGraphs.muons``: [rows, columns], standard normal or uniform in 0..1."""

    name: str
    rows: Literal["events", "muons"]
    columns: int
    law: Literal["normal", "uniform"]


@dataclass(frozen=True, slots=True)
class SamplerGraphs:
    """Two modules without any random number of their own; primaries [B, 4] are as in layout.PRIMARY.

    multiplicity: ``(primaries)`` → a networks.Mixture, for any events.
    muons: ``(primaries, multiplicity [B], event [M], *noise)`` → [M, 3] (energy_gev, x_m, y_m); every event
        has muons.
    tolerance: largest difference for the same noise on two machines, in GeV or m relative to 1 + the value.
    notes: what a user should know about how this generator works, one sentence or two each.
    """

    multiplicity: nn.Module
    muons: nn.Module
    noise: tuple[Noise, ...]
    tolerance: float
    notes: tuple[str, ...]


# Cartesian features count in 500 m: there, rounding alone is some 1e-5 m, also close to the axis.
_TOLERANCE = {"radial": 1e-5, "cartesian": 1e-4}
_VAE_TOLERANCE = 1e-4  # a quantile far out in a tail is steep
_AZIMUTH = Noise("azimuth_uniform", "muons", 1, "uniform")
_NOTES = (
    "Each row is drawn by itself: bundles of one primary at two depths share no muon and no fluctuation.",
    "Energies that the network puts below the muon's mass are reflected at it.",
)
_RADIAL = (
    "The azimuth around the shower axis is uniform and independent for each muon: no ellipse, no charge."
)
_INDEPENDENT = (
    "Muons of one event are independent of each other given the primary, the multiplicity and one latent "
    "vector of the event."
)


def sampler_of(model: nn.Module, options: MuonGanOptions | MuonVaeOptions) -> SamplerGraphs:
    """Return the graphs of a generator of muons and of its multiplicity model."""
    if isinstance(options, MuonVaeOptions):
        return _of_vae(cast("VaeNetworks", model))
    return _of_gan(cast("Networks", model), options.features)


def _of_gan(networks: Networks, kind: Kind) -> SamplerGraphs:
    generator, radial = networks.generator, kind == "radial"
    noise = (
        Noise("event_noise", "events", generator.event_latent, "normal"),
        Noise("muon_noise", "muons", generator.muon_latent, "normal"),
    )
    return SamplerGraphs(
        Law(networks.multiplicity),
        GanMuons(generator, kind),
        (*noise, _AZIMUTH) if radial else noise,
        tolerance=_TOLERANCE[kind],
        notes=(*_NOTES, _RADIAL, _INDEPENDENT) if radial else (*_NOTES, _INDEPENDENT),
    )


def _of_vae(networks: VaeNetworks) -> SamplerGraphs:
    noise = (
        Noise("event_noise", "events", networks.density.latent, "normal"),
        Noise("muon_uniform", "muons", UNIFORMS, "uniform"),
        _AZIMUTH,
    )
    return SamplerGraphs(
        Law(networks.multiplicity),
        VaeMuons(networks.density),
        noise,
        tolerance=_VAE_TOLERANCE,
        notes=(_NOTES[0], _RADIAL, _INDEPENDENT),
    )


class Law(nn.Module):
    """From primaries [N, 4] to the mixture that multiplicities are drawn from."""

    def __init__(self, network: Multiplicity) -> None:
        super().__init__()
        self.network = network

    def forward(self, primaries: Tensor) -> Mixture:
        """Return the mixture's parameters."""
        return self.network(features.condition_tensor(primaries))


class GanMuons(nn.Module):
    """Muons of the conditional GAN."""

    def __init__(self, generator: Generator, kind: Kind) -> None:
        super().__init__()
        self.generator, self.kind = generator, kind

    def forward(
        self,
        primaries: Tensor,
        multiplicity: Tensor,
        event: Tensor,
        event_noise: Tensor,
        muon_noise: Tensor,
        azimuth_uniform: Tensor | None = None,
    ) -> Tensor:
        """Generate muons [M, 3]."""
        context = context_of(features.condition_tensor(primaries), multiplicity)
        muons = self.generator(context, event, event_noise, muon_noise)
        return features.physical(muons, self.kind, None if azimuth_uniform is None else azimuth_uniform[:, 0])


class VaeMuons(nn.Module):
    """Muons of the density, with the latent of their event as noise."""

    def __init__(self, density: Density) -> None:
        super().__init__()
        self.density = density

    def forward(
        self,
        primaries: Tensor,
        multiplicity: Tensor,
        event: Tensor,
        event_noise: Tensor,
        muon_uniform: Tensor,
        azimuth_uniform: Tensor,
    ) -> Tensor:
        """Generate muons [M, 3]."""
        context = context_of(features.condition_tensor(primaries), multiplicity)
        muons = self.density.muons(self.density.modulate(context, event_noise), event, muon_uniform)
        return features.physical(muons, "polar", azimuth_uniform[:, 0])


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
    """Generate inputs with bundles of 1 to 40 muons, and noise."""
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


def write(sampler: SamplerGraphs, provenance: Provenance, folder: Path) -> Graphs:
    """Write graphs and script; raise CheckpointError when the graphs differ from the model."""
    limits = limits_of(provenance)
    graphs = sampler_graphs(sampler, _primaries(limits))
    difference = max(graph.export(folder / name) for name, graph in graphs.items())
    # The script's text, not its module: it imports onnxruntime, which is an extra.
    write_text(folder / SCRIPT, files("crpipe.workloads.muons").joinpath("standalone.py").read_text())
    description = {
        "units": {
            "primary": {field.name: field.unit for field in PRIMARY},
            "muon": {field.name: field.unit for field in MUON},
        },
        "sampler": {
            "noise": [asdict(each) for each in sampler.noise],
            "tolerance": sampler.tolerance,
            "difference": difference,
            "notes": list(sampler.notes),
            "limits": {name: list(ends) for name, ends in limits.items()},
        },
    }
    return Graphs((LAW, MUONS, SCRIPT), description)


def limits_of(provenance: Provenance) -> Limits:
    """Return the ranges of the primaries: as measured, else as configured for the simulator, else none."""
    if provenance.seen.limits or not simulated(provenance.keys):
        return provenance.seen.limits
    keys = {name.removeprefix("simulator."): value for name, value in provenance.keys.items()}
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


_INTRODUCTION = (
    "A generator of muon bundles in deep ice. For a primary (energy, zenith angle, mass number, vertical",
    "depth in the ice) it draws how many muons arrive at that depth, and of each the energy and the place",
    "across the shower axis. It imitates the simulation that it was trained on.",
)


def sections(provenance: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
    """Return the lines of the sections that only this workload can write."""
    return {
        "": _INTRODUCTION,
        card.USE: list(_use(provenance)),
        card.VALID: list(_valid_for(provenance)),
        card.DEVIATIONS: list(_deviations(provenance, graphs)),
        card.LICENCE: list(_licence(provenance)),
    }


def _use(provenance: Provenance) -> Iterator[str]:
    yield from ("Needs `pip install numpy onnxruntime`; neither crpipe nor torch.", "", "```python")
    yield from ("import numpy as np", "from sample import Sampler", "")
    values = ", ".join(f"{value:.6g}" for value in example(limits_of(provenance)).values())
    yield f"primaries = [[{values}]] * 3  # energy_gev, zenith_rad, mass_number, depth_m"
    yield 'multiplicity, muons = Sampler(".").bundles(primaries, np.random.default_rng(1))'
    yield "print(multiplicity, muons.shape)  # muons: energy_gev, x_m, y_m; event after event"
    yield from ("```", "")
    yield "Or, for a table: `python sample.py primaries.npy bundles.npz --seed 1`."


def _valid_for(provenance: Provenance) -> Iterator[str]:
    limits = limits_of(provenance)
    if not provenance.seen.unknown:
        origin = "measured on the training shards"
    elif limits:
        origin = f"as configured for the simulator; not measured: {provenance.seen.unknown}"
    else:
        origin = f"not known: {provenance.seen.unknown}"
    yield f"The training data are within these ranges ({origin})."
    if limits:
        yield from ("", *card.limits_table(provenance, limits))
    yield ""
    yield "Nothing is known outside of them: `bundles` warns, and `Sampler.outside` finds the primaries."
    yield "Between the two ends there may be few events."
    yield from card.outliers_lines(provenance)


def _deviations(provenance: Provenance, graphs: Graphs) -> Iterator[str]:
    sampler = graphs.description["sampler"]
    if simulated(provenance.keys):
        simulator = "crpipe's own simulator (docs/physics.md#the-simulator)"
        yield f"- The training data come from {simulator}, a parametrisation."
    yield from (f"- {note}" for note in sampler["notes"])
    most = provenance.keys.get("model.max_muons")
    if most:
        yield f"- In training, a larger bundle was replaced by a random window of at most {most} muons."
    yield (
        f"- With the same noise this export and the checkpoint differ by at most {sampler['difference']:.0e} "
        "of 1 + the value (GeV, m), checked when it was written."
    )


def _licence(provenance: Provenance) -> Iterator[str]:
    if simulated(provenance.keys):
        yield "`sample.py` and crpipe: MIT. The weights come from crpipe's own simulator alone: nobody else's"
        yield "data restrict their use."
    else:
        yield "`sample.py` and crpipe: MIT. The weights carry no terms of their own; they follow those of the"
        yield f"data in `{provenance.keys['source.uri']}`: ask its owners before you publish."
    yield ""
    yield f"Cite crpipe {__version__} as its CITATION.cff says, with the fingerprint above, and the"
    yield "simulation that made the data."
