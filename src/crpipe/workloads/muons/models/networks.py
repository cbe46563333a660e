"""Networks over ragged bundles: muons [M, D], the event of each muon [M], and one context row per event.

Events of a bundle tensor all hold at least one muon; ``kept`` [B] is how many of them are present. Muons are
in the order of their events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import leaky_relu

from crpipe.train.workload import Batch, Metrics, OptimizerSpec, Phase
from crpipe.workloads.common.formulas import softplus
from crpipe.workloads.muons import features
from crpipe.workloads.muons.models.layers import (
    SLOPE,
    Dense,
    Pooled,
    dense,
    exact,
    pooled,
    residual,
    silu_layers,
    spread_out,
    weights,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from crpipe.workloads.muons.options import MuonGanOptions

# How many muons an event has: a zero-inflated mixture of negative binomials given the conditions.

_LOG_MEAN = (-12.0, 16.0)
_LOG_SHAPE = (-4.0, 8.0)
_FEW_EMPTY = -4.0  # start with 2 % of extra zeros: the mixture explains what it can


class Mixture(NamedTuple):
    """Parameters for N events and K components, float64.

    log_weight, log_mean, log_shape: [N, K]; a component has variance mean + mean²/shape.
    empty_logit: [N], of the extra probability of no muon at all.
    """

    log_weight: Tensor
    log_mean: Tensor
    log_shape: Tensor
    empty_logit: Tensor


class Multiplicity(nn.Module):
    """A small network from conditions [N, C] to the mixture's parameters."""

    def __init__(self, conditions: int, hidden: int = 64, components: int = 3) -> None:
        super().__init__()
        self.components = components
        self.net = silu_layers(conditions, hidden, hidden, hidden)
        self.head = Dense(hidden, 3 * components + 1)
        with torch.no_grad():
            self.head.weight.mul_(0.1)

    def forward(self, conditions: Tensor) -> Mixture:
        """Return the mixture for each event; in float64, where lgamma of 10⁵ still resolves single muons."""
        with exact(conditions):
            out = self.head(self.net(conditions)).double()
        weight, mean, shape, empty = out.split([self.components] * 3 + [1], dim=1)
        return Mixture(
            functional.log_softmax(weight, dim=1),
            mean.clamp(*_LOG_MEAN),
            shape.clamp(*_LOG_SHAPE),
            empty[:, 0] + _FEW_EMPTY,
        )


def log_likelihood(mixture: Mixture, multiplicity: Tensor) -> Tensor:
    """Return the exact log probability of each event's multiplicity: [N] float64."""
    count = multiplicity.double()[:, None]
    shape, log_total = mixture.log_shape.exp(), torch.logaddexp(mixture.log_shape, mixture.log_mean)
    log_binomial = (
        torch.lgamma(count + shape)
        - torch.lgamma(shape)
        - torch.lgamma(count + 1.0)
        + shape * (mixture.log_shape - log_total)
        + count * (mixture.log_mean - log_total)
    )
    log_mixture = functional.logsigmoid(-mixture.empty_logit) + torch.logsumexp(
        mixture.log_weight + log_binomial, dim=1
    )
    log_empty = torch.logaddexp(functional.logsigmoid(mixture.empty_logit), log_mixture)
    return torch.where(multiplicity == 0, log_empty, log_mixture)


def sample(mixture: Mixture, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one multiplicity for each event: [N]. A negative binomial is a Poisson of a gamma variate."""
    log_weight, log_mean, log_shape, empty_logit = (part.cpu().numpy() for part in mixture)
    steps = np.cumsum(np.exp(log_weight), axis=1)
    component = (rng.random((len(steps), 1)) * steps[:, -1:] > steps).sum(axis=1)
    rows = np.arange(len(steps))
    mean, shape = np.exp(log_mean[rows, component]), np.exp(log_shape[rows, component])
    drawn = rng.poisson(rng.gamma(shape, mean / shape))
    empty = rng.random(len(drawn)) * (1.0 + np.exp(-empty_logit)) < 1.0
    return np.where(empty, 0, drawn)


def multiplicity_phase(learning_rate: float) -> Phase:
    """Train ``model["multiplicity"]`` by exact likelihood; events without muons count like all others."""
    return Phase(
        "multiplicity",
        lambda model: model.get_submodule("multiplicity").parameters(),
        _loss,
        OptimizerSpec("adam", learning_rate),
        average=True,
        # One surprising event of 10⁶ muons costs 10⁵ and more, for each muon no more than any other.
        watched_metric="nll_per_muon",
    )


def _loss(model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Metrics]:  # noqa: ARG001 - the protocol's signature; nothing random here
    mixture = model.get_submodule("multiplicity")(batch["conditions"])
    nll = -log_likelihood(mixture, batch["multiplicity"])
    per_muon = nll.detach() / batch["multiplicity"].clamp_min(1)
    loss = _mean(nll, batch).float()
    return loss, {"nll": loss.detach(), "nll_per_muon": _mean(per_muon, batch).float()}


def _mean(values: Tensor, batch: Batch) -> Tensor:
    weight = weights(batch)
    return (values * weight).sum() / weight.sum()


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
        self.event_net = silu_layers(context + self.event_latent, 2 * hidden, 2 * hidden)
        modulation = [Dense(2 * hidden, 2 * hidden) for _ in range(depth)]
        self.skip = Dense(2 * hidden, 2 * features)
        self.lift = Dense(self.muon_latent, hidden)
        self.mix = nn.ModuleList(Dense(hidden, hidden) for _ in range(depth - 1))
        self.out = Dense(hidden, features)
        with torch.no_grad():
            for layer in modulation:
                layer.weight.mul_(_GENTLE)
                layer.bias.zero_()
        self.modulation = nn.ModuleList(modulation)

    def forward(self, context: Tensor, event: Tensor, event_noise: Tensor, noise: Tensor) -> Tensor:
        """Return features [M, D] from context [B, C] and normal noise [B, event_latent], [M, muon_latent]."""
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
        """Generate the muons whose events are ``event``: [M, D]."""
        x = self.lift(noise)
        for depth, layer in enumerate(modulation.layers):
            factor, shift = spread_out(layer, event).chunk(2, dim=1)
            # In place: a new tensor for each muon costs more than the arithmetic.
            x = leaky_relu(torch.addcmul(shift, x, factor), SLOPE, inplace=True)
            if depth < len(self.mix):
                x = residual(cast("nn.Linear", self.mix[depth]), x)
        centre, spread = spread_out(modulation.skip, event).chunk(2, dim=1)
        direct = noise[:, : centre.shape[1]]
        with exact(x):
            values: Tensor = self.out(x.float()) + centre + spread * direct
        return values


class Critic(nn.Module):
    """A point network, pooled by mean and maximum, with one round that adds the event's summary to its muons.

    The score is unbounded: no normalising, no clamp, so that the penalty acts on its true slope.
    """

    def __init__(self, context: int, features: int, hidden: int) -> None:
        super().__init__()
        self.point = Dense(features, hidden)
        self.point_context = Dense(context, hidden, bias=False)
        self.point_mix = Dense(hidden, hidden)
        self.summary = Dense(2 * hidden + context, GLOBAL)
        self.exchange = GlobalLocal(context, hidden, 2 * hidden)
        self.decide = nn.Sequential(
            Dense(2 * hidden + GLOBAL + context, 2 * hidden),
            nn.LeakyReLU(SLOPE, inplace=True),
            Dense(2 * hidden, hidden),
            nn.LeakyReLU(SLOPE, inplace=True),
            Dense(hidden, 1),
        )

    def forward(self, muons: Tensor, context: Tensor, event: Tensor, kept: Tensor) -> Tensor:
        """Score each event: [B]; gan.scores does the same with less memory."""
        x = self.embed(muons, context, event)
        seen = pooled(x, event, kept)
        summary = self.summarise(seen, context)
        x = self.exchange.broadcast(x, summary, event)
        return self.score_head(pooled(x, event, kept), summary, context)

    def embed(self, muons: Tensor, context: Tensor, event: Tensor) -> Tensor:
        """Embed each muon by itself, with the context [B, C] of its event: [M, H]."""
        return self.embed_lifted(self.lift(muons, context, event))

    def lift(self, muons: Tensor, context: Tensor, event: Tensor) -> Tensor:
        """Compute the first half of ``embed``."""
        weight = torch.cat([self.point.weight, self.point_context.weight], dim=1)
        inputs = torch.cat([muons, context.index_select(0, event)], dim=1)
        return dense(inputs, weight, self.point.bias, rectify=True)

    def embed_lifted(self, x: Tensor) -> Tensor:
        """Compute the second half of ``embed``."""
        return residual(self.point_mix, x, rectify=True)

    def summarise(self, seen: Pooled, context: Tensor) -> Tensor:
        """Summarise the pooled muons of each event: [B, G]."""
        first = _joined(self.summary, *seen, context)
        return self.exchange.update(first, seen, context)

    def score_head(self, seen: Pooled, summary: Tensor, context: Tensor) -> Tensor:
        """Score events by their muons after the exchange: [B]."""
        first, _, second, _, last = (cast("nn.Linear", layer) for layer in self.decide)
        x = _joined(first, *seen, summary, context)
        with exact(x):
            x = dense(x.float(), second.weight, second.bias, rectify=True)
            score: Tensor = last(x)
        return score[:, 0]


class GlobalLocal(nn.Module):
    """One round of exchange between an event's summary and its muons (EPiC layer: Buhmann et al. 2023).

    pooled: width of the pooled muons that a summary is updated with.
    """

    def __init__(self, context: int, hidden: int, pooled: int) -> None:
        super().__init__()
        self.collect = Dense(pooled + GLOBAL + context, hidden)
        self.condense = Dense(hidden, GLOBAL)
        self.local = Dense(hidden, hidden)
        self.spread = Dense(GLOBAL, hidden, bias=False)
        self.local_mix = Dense(hidden, hidden)

    def update(self, summary: Tensor, seen: Sequence[Tensor], context: Tensor) -> Tensor:
        """Update the summaries: [B, G]."""
        collected = _joined(self.collect, *seen, summary, context)
        return dense(collected, self.condense.weight, self.condense.bias, onto=summary, rectify=True)

    def broadcast(self, x: Tensor, summary: Tensor, event: Tensor) -> Tensor:
        """Add their event's summary to the features of the muons: [M, H]."""
        # A bias is added where there is one row for each event.
        heard = spread_out(dense(summary, self.spread.weight, self.local.bias), event)
        mixed = dense(x, self.local.weight, None, onto=heard, rectify=True)
        return dense(mixed, self.local_mix.weight, self.local_mix.bias, onto=x, rectify=True)


def _joined(layer: nn.Linear, *parts: Tensor) -> Tensor:
    """Rectify ``layer`` of the parts side by side."""
    return dense(torch.cat(parts, dim=1), layer.weight, layer.bias, rectify=True)


def _factor_and_shift(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """Return factors about 1 and shifts about 0: [B, 2 H]; the bias alone turns scales into factors."""
    scale, shift = layer.bias.chunk(2)
    return dense(hidden, layer.weight, torch.cat([1 + scale, shift]))


class Networks(nn.Module):
    """Everything that a checkpoint of this workload holds."""

    def __init__(self, options: MuonGanOptions) -> None:
        super().__init__()
        width = features.width(options.features)
        self.generator = Generator(features.CONTEXT, width, options.hidden)
        self.critic = Critic(features.CONTEXT, width, options.hidden)
        self.multiplicity = Multiplicity(features.CONDITIONS)
