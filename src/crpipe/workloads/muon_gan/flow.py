"""MuonFlow: conditional flow matching for muon bundles, on the same batches and multiplicities as MuonGan.

Trains by plain regression, without an adversary; pays with many network passes when it generates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.functional import leaky_relu

from crpipe.train.workload import OptimizerSpec, Phase
from crpipe.workloads.muon_gan import bundles, features, multiplicity, sampler
from crpipe.workloads.muon_gan.config import MuonFlowConfig
from crpipe.workloads.muon_gan.model import GLOBAL, SLOPE, GlobalLocal, exact, mean_of
from crpipe.workloads.muon_gan.shared import BundleWorkload

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.data.batch import Events
    from crpipe.train.workload import Batch, Metrics
    from crpipe.workloads.sampler import Sampler

_WAVES = 4  # frequencies in which the network sees the time
_CONTEXT = bundles.CONTEXT + 1 + 2 * _WAVES


class Velocity(nn.Module):
    """Which way each muon moves at a time between noise (0) and data (1).

    Muons see each other through the mean alone: unlike an extreme, it hardly depends on how many there are.
    """

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.event_net = nn.Sequential(
            nn.Linear(_CONTEXT, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.summary = nn.Linear(hidden, GLOBAL)
        self.lift = nn.Linear(width, hidden)
        self.lift_context = nn.Linear(hidden, hidden, bias=False)
        self.exchange = nn.ModuleList(GlobalLocal(_CONTEXT, hidden, hidden) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.LeakyReLU(SLOPE), nn.Linear(hidden, width))

    def forward(self, muons: Tensor, time: Tensor, context: Tensor, event: Tensor, kept: Tensor) -> Tensor:
        """Give velocities [M, D] at ``time`` [B, 1] of each event."""
        phase = time * torch.pi * torch.arange(1, _WAVES + 1, device=time.device)
        context = torch.cat([context, time, torch.sin(phase), torch.cos(phase)], dim=1)
        told = self.event_net(context)
        summary = leaky_relu(self.summary(told), SLOPE)
        x = leaky_relu(self.lift(muons) + self.lift_context(told).index_select(0, event), SLOPE)
        for layer in self.exchange:
            summary, x = layer(summary, x, [mean_of(x, event, kept)], context, event)
        with exact(x):
            velocity: Tensor = self.out(x.float())
        return velocity

    def follow(self, muons: Tensor, context: Tensor, event: Tensor, kept: Tensor, steps: int) -> Tensor:
        """Move muons [M, D] from noise to features by the midpoint rule."""
        for number in range(steps):
            time = context.new_full((context.shape[0], 1), number / steps)
            half = muons + self(muons, time, context, event, kept) / (2 * steps)
            muons = muons + self(half, time + 1 / (2 * steps), context, event, kept) / steps
        return muons


class FlowNetworks(nn.Module):
    """Everything that a checkpoint of this workload holds."""

    def __init__(self, options: MuonFlowConfig) -> None:
        super().__init__()
        self.velocity = Velocity(features.width(options.features), options.hidden, options.layers)
        self.multiplicity = multiplicity.Multiplicity(features.CONDITIONS)


class MuonFlow(BundleWorkload[MuonFlowConfig]):
    """The workload; see crpipe.train.workload for what each method owes to the trainer."""

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Make a batch; see bundles.collate."""
        kind, most = self.options.features, self.options.max_muons
        return bundles.collate(events, index, most=most, kind=kind, seed=seed)

    def model(self) -> nn.Module:
        """Build velocity and multiplicity networks."""
        return FlowNetworks(self.options)

    def phases(self) -> list[Phase]:
        """Multiplicity, then velocity."""
        return [
            multiplicity.phase(self.options.multiplicity_learning_rate),
            Phase(
                "velocity",
                lambda model: cast("FlowNetworks", model).velocity.parameters(),
                self.velocity_loss,
                OptimizerSpec("adam", self.options.learning_rate),
                average=True,
            ),
        ]

    def velocity_loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Metrics]:
        """Regress the straight way from noise to data (Lipman et al. 2023, eq. 23, with no final width).

        Averaged over the muons of an event, summed over events, divided by all events of the batch.
        """
        muons, event, kept = batch["muons"], batch["event"], batch["kept"]
        noise = torch.randn(muons.shape, generator=generator, device=muons.device)
        time = torch.rand(len(kept), 1, generator=generator, device=muons.device)
        share = time.index_select(0, event)
        between = (1.0 - share) * noise + share * muons
        network = cast("FlowNetworks", model).velocity
        velocity = network(between, time, bundles.filled_context(batch), event, kept)
        squares = ((velocity - (muons - noise)) ** 2).sum(dim=1, keepdim=True)
        return mean_of(squares, event, kept).sum() / len(batch["multiplicity"]), {}

    def predict(
        self,
        model: nn.Module,
        events: Events,
        generator: torch.Generator,
        multiplicity: NDArray[np.int64] | None = None,
    ) -> Events:
        """Generate bundles for the conditions in ``events``; see BundleGenerator.

        Muons see each other, so memory grows with the largest bundle, by about 2 kB a muon.
        """
        networks = cast("FlowNetworks", model)

        def make(context: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda event: features.decode(
                self._flow(networks.velocity, context, event, generator), self.options.features, generator
            )

        return bundles.generate(networks.multiplicity, events, multiplicity, make, generator, whole=True)

    def sampler(self, model: nn.Module) -> Sampler:
        """Give what an export hands on."""
        return sampler.of_flow(cast("FlowNetworks", model), self.options)

    def _flow(self, network: Velocity, context: Tensor, event: Tensor, generator: torch.Generator) -> Tensor:
        """Turn fresh noise into features [M, D]."""
        width = features.width(self.options.features)
        noise = torch.randn(len(event), width, generator=generator, device=event.device)
        kept = torch.bincount(event, minlength=len(context)).float()
        return network.follow(noise, context, event, kept, self.options.sampling_steps)
