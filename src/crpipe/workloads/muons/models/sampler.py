"""The generators of this package as pure functions of primaries and noise, in physical units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import nn

from crpipe.workloads.muons import features
from crpipe.workloads.muons.features import context_of

if TYPE_CHECKING:
    from torch import Tensor

    from crpipe.workloads.muons.features import Kind
    from crpipe.workloads.muons.models.networks import (
        FlowNetworks,
        Generator,
        Mixture,
        Multiplicity,
        Networks,
        Velocity,
    )
    from crpipe.workloads.muons.options import MuonFlowOptions, MuonGanOptions

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

    multiplicity: ``(primaries)`` → a multiplicity.Mixture, for any events.
    muons: ``(primaries, multiplicity [B], event [M], *noise)`` → [M, 3] (energy_gev, x_m, y_m); every event
        has muons.
    joint: muons depend on each other, so a bundle must be made in one piece.
    tolerance: largest difference for the same noise on two machines, in GeV or m relative to 1 + the value.
    notes: what a user should know about how this generator works, one sentence or two each.
    """

    multiplicity: nn.Module
    muons: nn.Module
    noise: tuple[Noise, ...]
    joint: bool
    tolerance: float
    notes: tuple[str, ...]


# Cartesian features count in 500 m: there, rounding alone is some 1e-5 m, also close to the axis.
_TOLERANCE = {"radial": 1e-5, "cartesian": 1e-4}
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


def of_gan(networks: Networks, options: MuonGanOptions) -> SamplerGraphs:
    """Take the generator and the multiplicity model; the critic is not needed any more."""
    generator = networks.generator
    noise = (
        Noise("event_noise", "events", generator.event_latent, "normal"),
        Noise("muon_noise", "muons", generator.muon_latent, "normal"),
    )
    return SamplerGraphs(
        Law(networks.multiplicity),
        GanMuons(generator, options.features),
        noise + _azimuth(options.features),
        joint=False,
        tolerance=_TOLERANCE[options.features],
        notes=(*_notes(options.features), _INDEPENDENT),
    )


def of_flow(networks: FlowNetworks, options: MuonFlowOptions) -> SamplerGraphs:
    """Take the velocity network, with all its steps, and the multiplicity model."""
    noise = (Noise("muon_noise", "muons", features.width(options.features), "normal"),)
    return SamplerGraphs(
        Law(networks.multiplicity),
        FlowMuons(networks.velocity, options),
        noise + _azimuth(options.features),
        joint=True,
        tolerance=_TOLERANCE[options.features],
        notes=_notes(options.features),
    )


def _azimuth(kind: Kind) -> tuple[Noise, ...]:
    return (_AZIMUTH,) if kind == "radial" else ()


def _notes(kind: Kind) -> tuple[str, ...]:
    return (*_NOTES, _RADIAL) if kind == "radial" else _NOTES


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
        """Make muons [M, 3]."""
        context = context_of(features.condition_tensor(primaries), multiplicity)
        made = self.generator(context, event, event_noise, muon_noise)
        return features.physical(made, self.kind, None if azimuth_uniform is None else azimuth_uniform[:, 0])


class FlowMuons(nn.Module):
    """Muons of the flow, every integration step unrolled."""

    def __init__(self, velocity: Velocity, options: MuonFlowOptions) -> None:
        super().__init__()
        self.velocity, self.kind, self.steps = velocity, options.features, options.sampling_steps

    def forward(
        self,
        primaries: Tensor,
        multiplicity: Tensor,
        event: Tensor,
        muon_noise: Tensor,
        azimuth_uniform: Tensor | None = None,
    ) -> Tensor:
        """Make muons [M, 3]."""
        context = context_of(features.condition_tensor(primaries), multiplicity)
        made = self.velocity.follow(muon_noise, context, event, multiplicity.float(), self.steps)
        return features.physical(made, self.kind, None if azimuth_uniform is None else azimuth_uniform[:, 0])
