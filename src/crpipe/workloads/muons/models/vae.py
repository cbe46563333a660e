"""MuonVae: the exact density of muons given their event, with a latent of the event, and its multiplicity.

A variational autoencoder trains by likelihood, without an adversary; generation is one pass of small layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from crpipe.train.workload import Batch, Metrics, OptimizerSpec, Phase
from crpipe.workloads.muons import batches as bundles
from crpipe.workloads.muons import features
from crpipe.workloads.muons.models.base import BundleWorkload
from crpipe.workloads.muons.models.density import UNIFORMS, VaeNetworks
from crpipe.workloads.muons.models.layers import sums_of
from crpipe.workloads.muons.models.networks import multiplicity_phase
from crpipe.workloads.muons.options import MuonVaeOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from crpipe.events.batch import Events

_KIND: features.Kind = "polar"
_LEADING = 8  # of so many muons of a window, one is chosen by its energy: tails are few muons


class MuonVae(BundleWorkload[MuonVaeOptions]):
    """The workload; see crpipe.train.workload for what each method does for the trainer."""

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Build a batch; see bundles.collate."""
        most = self.options.max_muons
        leading = most // _LEADING
        return bundles.collate(events, index, most=most, kind=_KIND, seed=seed, leading=leading)

    def model(self) -> nn.Module:
        """Build density, encoder and multiplicity networks."""
        return VaeNetworks(self.options)

    def phases(self) -> list[Phase]:
        """Multiplicity, then muons."""
        return [
            multiplicity_phase(self.options.multiplicity_learning_rate),
            Phase(
                "muons",
                _weights,
                self.muons_loss,
                OptimizerSpec("adam", self.options.learning_rate),
                average=True,
                watched_metric="nll_per_muon",  # an event of many muons costs as much more
            ),
        ]

    def muons_loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Metrics]:
        """Bound the negative log likelihood of an event's muons, in nats (Kingma and Welling 2014, eq. 10).

        Of a large event the leading muons and a window of the others are seen; of the rest, that its energies
        are lower. Summed over events, divided by all events of the batch.
        """
        networks = cast("VaeNetworks", model)
        muons, event, kept = batch["muons"], batch["event"], batch["kept"]
        context = bundles.filled_context(batch)
        mean, log_width = networks.encoder(muons, batch["lead"], context, event, kept)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        modulation = networks.density.modulate(context, mean + torch.exp(log_width) * noise)
        each = networks.density.log_density(muons, batch["below"], modulation, event)
        likelihood = sums_of(each[:, None], event, len(kept))[:, 0]
        divergence = 0.5 * (mean * mean + torch.exp(2.0 * log_width) - 1.0 - 2.0 * log_width).sum(dim=1)
        total, events = bundles.sum_over_events(divergence - likelihood, batch), bundles.events_of(batch)
        muons_seen = bundles.sum_over_events(kept, batch)
        return total / events, {
            "divergence": (bundles.sum_over_events(divergence, batch) / events).detach(),
            "nll_per_muon": (total / muons_seen.clamp_min(1.0)).detach(),
        }

    def generate(
        self, model: nn.Module, events: Events, multiplicity: NDArray[np.int64], generator: torch.Generator
    ) -> Events:
        """Generate bundles of the given multiplicities for the conditions in ``events``."""
        density = cast("VaeNetworks", model).density

        def make(context: Tensor) -> Callable[[Tensor], Tensor]:
            size = len(context), density.latent
            latent = torch.randn(size, generator=generator, device=context.device)
            modulation = density.modulate(context, latent)

            def muons(event: Tensor) -> Tensor:
                size = len(event), UNIFORMS
                uniform = torch.rand(size, generator=generator, device=event.device)
                return features.decode(density.muons(modulation, event, uniform), _KIND, generator)

            return muons

        return bundles.generate(events, multiplicity, make, generator)


def _weights(model: nn.Module) -> Iterator[nn.Parameter]:
    for name in ("density", "encoder"):
        yield from model.get_submodule(name).parameters()
