"""Networks over ragged bundles: muons [M, D], the event of each muon [M], and one context row per event.

Events of a bundle tensor all hold at least one muon; ``kept`` [B] is how many of them are present.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import leaky_relu, linear, softplus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

SLOPE = 0.2
GLOBAL = 16  # width of an event's running summary
_GENTLE = 0.3  # initial scale of the modulation: the event steers, but does not saturate, the muons


def exact(tensor: Tensor) -> AbstractContextManager[object]:
    """Compute in float32 inside a block, whatever the trainer's precision.

    For small layers whose result is subtracted, sampled or compared: bfloat16 has three digits.
    """
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def mean_of(values: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Average the muons of each event, in float32: [B, H]."""
    values = values.float()
    sums = values.new_zeros(kept.shape[0], values.shape[1]).index_add_(0, event, values)
    return sums / kept[:, None]


def largest_of(values: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Take the largest value of each event, feature by feature: [B, H]."""
    largest: Tensor = _Largest.apply(values, event, len(kept))  # type: ignore[no-untyped-call]
    return largest


class _Largest(torch.autograd.Function):
    """Maximum whose gradient goes to the muons that reach it.

    torch's own backward also counts ties, which costs more than the forward pass; here muons that tie
    (identical ones) each get the gradient.
    """

    @staticmethod
    def forward(values: Tensor, event: Tensor, events: int) -> Tensor:
        """Reduce [M, H] to [events, H]."""
        index = event[:, None].expand_as(values)
        lowest = values.new_full((events, values.shape[1]), -torch.inf)
        return lowest.scatter_reduce(0, index, values, "amax")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        """Keep what the backward pass compares."""
        ctx.save_for_backward(inputs[0], inputs[1], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Spread the gradient, by operations that can themselves be differentiated."""
        values, event, largest = ctx.saved_tensors
        with torch.no_grad():
            # Ones and zeros in the place of the floats: booleans would be turned into floats first.
            reached = largest.index_select(0, event).eq_(values)
        return gradient.index_select(0, event).mul_(reached), None, None


class Pooled(NamedTuple):
    """What an event sees of its muons: [B, H] each, in float32."""

    mean: Tensor
    largest: Tensor


class Modulation(NamedTuple):
    """What an event tells its muons: scale and shift of each layer, and a direct path for the latent."""

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
        """Work out what each event tells its muons."""
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
    """A point network, pooled by mean and maximum, with one round in which muons see their event's summary.

    The score is unbounded: no normalising, no clamp, so that its slope is what the penalty says.
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
        """Score each event: [B]; pieces.scores does the same with less memory."""
        x = self.look(muons, self.tell_context(context), event)
        seen = pooled(x, event, kept)
        summary = self.summarise(seen, context)
        x = self.exchange.tell(x, summary, event)
        return self.judge(pooled(x, event, kept), summary, context)

    def tell_context(self, context: Tensor) -> Tensor:
        """Work out what each event's context tells its muons: [B, H]."""
        return linear(context, self.point_context.weight, self.point.bias)

    def look(self, muons: Tensor, told: Tensor, event: Tensor) -> Tensor:
        """Look at each muon by itself, knowing its event's context through ``told`` [B, H]: [M, H]."""
        x = _activate(_onto(told.index_select(0, event), muons, self.point.weight))
        return _activate(_residual(self.point_mix, x))

    def summarise(self, seen: Pooled, context: Tensor) -> Tensor:
        """Sum up what was seen of an event's muons: [B, G]."""
        first = _activate(_joined(self.summary, *seen, context))
        return self.exchange.update(first, seen, context)

    def judge(self, seen: Pooled, summary: Tensor, context: Tensor) -> Tensor:
        """Score events by their muons after the exchange: [B]."""
        first, *rest = self.decide
        with exact(summary):
            score = _joined(cast("nn.Linear", first), *seen, summary.float(), context)
            for layer in rest:
                score = layer(score)
        return score[:, 0]


class GlobalLocal(nn.Module):
    """One round of exchange between an event's summary and its muons (EPiC layer: Buhmann et al. 2023).

    pooled: width of what a summary sees of its muons.
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
        return summary, self.tell(x, summary, event)

    def update(self, summary: Tensor, seen: Sequence[Tensor], context: Tensor) -> Tensor:
        """Update the summaries: [B, G]."""
        collected = _activate(_joined(self.collect, *seen, summary, context))
        return _activate(self.condense(collected).add_(summary))

    def tell(self, x: Tensor, summary: Tensor, event: Tensor) -> Tensor:
        """Tell the muons [M, H] their event's summary."""
        # Biases are added where there is one row for each event, products onto what was gathered.
        told = linear(summary, self.spread.weight, self.local.bias)
        heard = _activate(_onto(told.index_select(0, event), x, self.local.weight))
        return _activate(_onto(x + self.local_mix.bias, heard, self.local_mix.weight))


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


def pooled(x: Tensor, event: Tensor, kept: Tensor) -> Pooled:
    """Pool muons by mean and maximum."""
    return Pooled(mean_of(x, event, kept), largest_of(x, event, kept).float())
