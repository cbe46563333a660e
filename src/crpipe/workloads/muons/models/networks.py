"""Networks over ragged bundles: muons [M, D], the event of each muon [M], and one context row per event.

Events of a bundle tensor all hold at least one muon; ``kept`` [B] is how many of them are present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import leaky_relu, linear, softplus

from crpipe.workloads.muons import features
from crpipe.workloads.muons.models import multiplicity
from crpipe.workloads.muons.models.pooling import Pooled, exact, mean_of, pooled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from crpipe.workloads.muons.options import MuonFlowOptions, MuonGanOptions


SLOPE = 0.2
GLOBAL = 16  # width of an event's running summary
_GENTLE = 0.3  # initial scale of the modulation: so that the event does not saturate its muons


class Modulation(NamedTuple):
    """How an event modulates its muons: scale and shift of each layer, and a direct path for the latent."""

    layers: tuple[Tensor, ...]  # depth times [B, 2 H], factor and shift
    skip: Tensor  # [B, 2 D], centre and spread


class Generator(nn.Module):
    """Muons that are independent of each other given conditions, multiplicity and a latent of their event.

    Exactly exchangeable, without a limit on the multiplicity, and linear in the muons: a bundle of 10⁶ can
    be made piece by piece.
    """

    def __init__(self, context: int, features: int, hidden: int, depth: int = 3) -> None:
        super().__init__()
        self.muon_latent, self.event_latent = 4, 8
        self.event_net = nn.Sequential(
            nn.Linear(context + self.event_latent, 2 * hidden),
            nn.SiLU(),
            nn.Linear(2 * hidden, 2 * hidden),
            nn.SiLU(),
        )
        modulation = [nn.Linear(2 * hidden, 2 * hidden) for _ in range(depth)]
        self.skip = nn.Linear(2 * hidden, 2 * features)
        self.lift = nn.Linear(self.muon_latent, hidden)
        self.mix = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 1))
        self.out = nn.Linear(hidden, features)
        with torch.no_grad():
            for layer in modulation:
                layer.weight.mul_(_GENTLE)
                layer.bias.zero_()
        self.modulation = nn.ModuleList(modulation)

    def forward(self, context: Tensor, event: Tensor, event_noise: Tensor, noise: Tensor) -> Tensor:
        """Make features [M, D] from context [B, C] and normal noise [B, event_latent], [M, muon_latent]."""
        return self.muons(self.modulate(context, event_noise), event, noise)

    def modulate(self, context: Tensor, event_noise: Tensor) -> Modulation:
        """Compute how each event modulates its muons."""
        hidden = self.event_net(torch.cat([context, event_noise], dim=1))
        with exact(hidden):
            centre, spread = self.skip(hidden.float()).chunk(2, dim=1)
        skip = torch.cat([centre, 0.5 * softplus(spread)], dim=1)
        layers = [_factor_and_shift(cast("nn.Linear", layer), hidden) for layer in self.modulation]
        return Modulation(tuple(layers), skip)

    def muons(self, modulation: Modulation, event: Tensor, noise: Tensor) -> Tensor:
        """Make the muons whose events are ``event``: [M, D]."""
        x = self.lift(noise)
        for depth, layer in enumerate(modulation.layers):
            factor, shift = layer.index_select(0, event).chunk(2, dim=1)
            x = _activate(torch.addcmul(shift, x, factor))
            if depth < len(self.mix):
                x = _residual(cast("nn.Linear", self.mix[depth]), x)
        centre, spread = modulation.skip.index_select(0, event).chunk(2, dim=1)
        direct = noise[:, : centre.shape[1]]
        with exact(x):
            made: Tensor = self.out(x.float()) + centre + spread * direct
        return made


class Critic(nn.Module):
    """A point network, pooled by mean and maximum, with one round that adds the event's summary to its muons.

    The score is unbounded: no normalising, no clamp, so that the penalty acts on its true slope.
    """

    def __init__(self, context: int, features: int, hidden: int) -> None:
        super().__init__()
        self.point = nn.Linear(features, hidden)
        self.point_context = nn.Linear(context, hidden, bias=False)
        self.point_mix = nn.Linear(hidden, hidden)
        self.summary = nn.Linear(2 * hidden + context, GLOBAL)
        self.exchange = GlobalLocal(context, hidden, 2 * hidden)
        self.decide = nn.Sequential(
            nn.Linear(2 * hidden + GLOBAL + context, 2 * hidden),
            nn.LeakyReLU(SLOPE, inplace=True),
            nn.Linear(2 * hidden, hidden),
            nn.LeakyReLU(SLOPE, inplace=True),
            nn.Linear(hidden, 1),
        )

    def forward(self, muons: Tensor, context: Tensor, event: Tensor, kept: Tensor) -> Tensor:
        """Score each event: [B]; large_bundles.scores does the same with less memory."""
        x = self.embed(muons, self.context_features(context), event)
        seen = pooled(x, event, kept)
        summary = self.summarise(seen, context)
        x = self.exchange.broadcast(x, summary, event)
        return self.score_head(pooled(x, event, kept), summary, context)

    def context_features(self, context: Tensor) -> Tensor:
        """Compute features of each event's context, added to those of its muons: [B, H]."""
        return linear(context, self.point_context.weight, self.point.bias)

    def embed(self, muons: Tensor, context_features: Tensor, event: Tensor) -> Tensor:
        """Embed each muon by itself, with ``context_features`` [B, H] of its event: [M, H]."""
        x = _activate(_onto(context_features.index_select(0, event), muons, self.point.weight))
        return _activate(_residual(self.point_mix, x))

    def summarise(self, seen: Pooled, context: Tensor) -> Tensor:
        """Summarise the pooled muons of each event: [B, G]."""
        first = _activate(_joined(self.summary, *seen, context))
        return self.exchange.update(first, seen, context)

    def score_head(self, seen: Pooled, summary: Tensor, context: Tensor) -> Tensor:
        """Score events by their muons after the exchange: [B]."""
        first, *rest = self.decide
        with exact(summary):
            score = _joined(cast("nn.Linear", first), *seen, summary.float(), context)
            for layer in rest:
                score = layer(score)
        return score[:, 0]


class GlobalLocal(nn.Module):
    """One round of exchange between an event's summary and its muons (EPiC layer: Buhmann et al. 2023).

    pooled: width of the pooled muons that a summary is updated with.
    """

    def __init__(self, context: int, hidden: int, pooled: int) -> None:
        super().__init__()
        self.collect = nn.Linear(pooled + GLOBAL + context, hidden)
        self.condense = nn.Linear(hidden, GLOBAL)
        self.local = nn.Linear(hidden, hidden)
        self.spread = nn.Linear(GLOBAL, hidden, bias=False)
        self.local_mix = nn.Linear(hidden, hidden)

    def forward(
        self, summary: Tensor, x: Tensor, seen: Sequence[Tensor], context: Tensor, event: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Update the summaries [B, G] by the muons that were seen, and the muons [M, H] by the summaries."""
        summary = self.update(summary, seen, context)
        return summary, self.broadcast(x, summary, event)

    def update(self, summary: Tensor, seen: Sequence[Tensor], context: Tensor) -> Tensor:
        """Update the summaries: [B, G]."""
        collected = _activate(_joined(self.collect, *seen, summary, context))
        return _activate(self.condense(collected).add_(summary))

    def broadcast(self, x: Tensor, summary: Tensor, event: Tensor) -> Tensor:
        """Add their event's summary to the features of the muons: [M, H]."""
        # Biases are added where there is one row for each event, products onto what was gathered.
        spread = linear(summary, self.spread.weight, self.local.bias)
        mixed = _activate(_onto(spread.index_select(0, event), x, self.local.weight))
        return _activate(_onto(x + self.local_mix.bias, mixed, self.local_mix.weight))


def _onto(base: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add ``x @ weight.T`` to a tensor that nothing else needs: no pass of its own for the sum.

    Autocast leaves operations in place alone, so there the sum is a new tensor.
    """
    if torch.is_autocast_enabled(base.device.type):
        return torch.addmm(base, x, weight.t())
    return base.addmm_(x, weight.t())


def _joined(layer: nn.Linear, *parts: Tensor) -> Tensor:
    """Give ``layer(torch.cat(parts, dim=1))`` without making that tensor."""
    weights = torch.split(layer.weight, [part.shape[1] for part in parts], dim=1)
    total = linear(parts[0], weights[0], layer.bias)
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = _onto(total, part, weight)
    return total


def _residual(layer: nn.Linear, x: Tensor) -> Tensor:
    """Give ``layer(x) + x``."""
    return _onto(x + layer.bias, x, layer.weight)


def _activate(x: Tensor) -> Tensor:
    """Rectify in place what nothing else needs: a new tensor for each muon costs more than the arithmetic."""
    return leaky_relu(x, SLOPE, inplace=True)


def _factor_and_shift(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """Give factors about 1 and shifts about 0: [B, 2 H]; the bias alone turns scales into factors."""
    scale, shift = layer.bias.chunk(2)
    return linear(hidden, layer.weight, torch.cat([1 + scale, shift]))


class Networks(nn.Module):
    """Everything that a checkpoint of this workload holds."""

    def __init__(self, options: MuonGanOptions) -> None:
        super().__init__()
        width = features.width(options.features)
        self.generator = Generator(features.CONTEXT, width, options.hidden)
        self.critic = Critic(features.CONTEXT, width, options.hidden)
        self.multiplicity = multiplicity.Multiplicity(features.CONDITIONS)


_WAVES = 4  # frequencies of the time's sine and cosine features


_CONTEXT = features.CONTEXT + 1 + 2 * _WAVES


class Velocity(nn.Module):
    """The velocity of each muon at a time between noise (0) and data (1).

    Muons influence each other through the mean alone: unlike an extreme, it hardly depends on their number.
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
        embedded = self.event_net(context)
        summary = leaky_relu(self.summary(embedded), SLOPE)
        x = leaky_relu(self.lift(muons) + self.lift_context(embedded).index_select(0, event), SLOPE)
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

    def __init__(self, options: MuonFlowOptions) -> None:
        super().__init__()
        self.velocity = Velocity(features.width(options.features), options.hidden, options.layers)
        self.multiplicity = multiplicity.Multiplicity(features.CONDITIONS)
