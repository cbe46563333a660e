"""MuonFlow: conditional flow matching for muon bundles, on the same batches and multiplicities as MuonGan.

Trains by plain regression, without an adversary; pays with many network passes when it generates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from crpipe.train.workload import OptimizerSpec, Phase
from crpipe.workloads.muons import batches as bundles
from crpipe.workloads.muons import features
from crpipe.workloads.muons.models.base import BundleWorkload
from crpipe.workloads.muons.models.layers import mean_of
from crpipe.workloads.muons.models.networks import FlowNetworks, Velocity, multiplicity_phase
from crpipe.workloads.muons.options import MuonFlowOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.events.batch import Events
    from crpipe.train.workload import Batch, Metrics
    from crpipe.workloads.muons.export import SamplerGraphs


class MuonFlow(BundleWorkload[MuonFlowOptions]):
    """The workload; see crpipe.train.workload for what each method does for the trainer."""

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Build a batch; see bundles.collate."""
        kind, most = self.options.features, self.options.max_muons
        return bundles.collate(events, index, most=most, kind=kind, seed=seed)

    def model(self) -> nn.Module:
        """Build velocity and multiplicity networks."""
        return FlowNetworks(self.options)

    def phases(self) -> list[Phase]:
        """Multiplicity, then velocity."""
        return [
            multiplicity_phase(self.options.multiplicity_learning_rate),
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
        muons = batch["muons"]
        noise = torch.randn(muons.shape, generator=generator, device=muons.device)
        time = torch.rand(len(batch["kept"]), 1, generator=generator, device=muons.device)
        return self.velocity_objective(model, batch, noise, time)

    def velocity_objective(
        self, model: nn.Module, batch: Batch, noise: Tensor, time: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Compute ``velocity_loss`` from given random numbers, [M, D] and [B, 1]."""
        muons, event, kept = batch["muons"], batch["event"], batch["kept"]
        share = time.index_select(0, event)
        between = (1.0 - share) * noise + share * muons
        network = cast("FlowNetworks", model).velocity
        velocity = network(between, time, bundles.filled_context(batch), event, kept)
        squares = ((velocity - (muons - noise)) ** 2).sum(dim=1, keepdim=True)
        errors = mean_of(squares, event, kept)
        return bundles.sum_over_events(errors, batch) / bundles.events_of(batch), {}

    def generate(
        self, model: nn.Module, events: Events, multiplicity: NDArray[np.int64], generator: torch.Generator
    ) -> Events:
        """Generate bundles of the given multiplicities for the conditions in ``events``.

        Muons depend on each other, so memory grows with the largest bundle, by about 2 kB a muon.
        """
        networks = cast("FlowNetworks", model)

        def make(context: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda event: features.decode(
                self._flow(networks.velocity, context, event, generator), self.options.features, generator
            )

        return bundles.generate(events, multiplicity, make, generator, joint=True)

    def sampler(self, model: nn.Module) -> SamplerGraphs:
        """Return the graphs that an export writes."""
        from crpipe.workloads.muons import export  # noqa: PLC0415 - onnx is slow, and an extra

        return export.of_flow(cast("FlowNetworks", model), self.options)

    def _flow(self, network: Velocity, context: Tensor, event: Tensor, generator: torch.Generator) -> Tensor:
        """Turn fresh noise into features [M, D]."""
        width = features.width(self.options.features)
        noise = torch.randn(len(event), width, generator=generator, device=event.device)
        kept = torch.bincount(event, minlength=len(context)).float()
        return network.follow(noise, context, event, kept, self.options.sampling_steps)
