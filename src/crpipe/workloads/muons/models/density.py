"""The law of a bundle's muons given its event: mixtures of the energy, and of the radius at that energy.

A muon has the features of features.encode, log energy and log radius, each scaled. Muons are in the order of
their events.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from crpipe.workloads.common.formulas import softplus
from crpipe.workloads.muons import features
from crpipe.workloads.muons.models.layers import Dense, exact, residual, silu_layers, spread_out, sums_of
from crpipe.workloads.muons.models.networks import Multiplicity

if TYPE_CHECKING:
    from crpipe.workloads.muons.options import MuonVaeOptions

PARAMETERS = 4  # of each component
UNIFORMS = 4  # numbers that a muon is made from
_LEAST_LOG_SCALE, _MOST_LOG_SCALE = -7.0, 3.0
# The density across the axis is finite there: the share of muons within r falls at least as r² does.
_MOST_LOG_SCALE_OF_RADII = -math.log(2.0 * math.log(10.0) * features.RADIUS_SCALE)
_LOG_SHAPE = (-3.0, 6.0)
_GENTLE = 0.3  # initial scale of what an event does to its muons
_FIRST_LOG_SCALE = -1.0
# Where the components begin: over the bulk of energies and radii.
_FIRST_ENERGIES, _FIRST_RADII = (-2.5, 2.0), (-2.0, 1.5)
_MOST_ABOVE = 1.0 - 1e-6
_LEAST_UNIFORM = 2.0**-25  # half of the smallest step of a uniform number
_SMALL = 0.02  # below, exp(x) - 1 loses digits, and its logarithm is a short series


class Burr(NamedTuple):
    """A mixture for M muons, K components: [M, K] each.

    A component is the logarithm of a Burr XII variate (Burr 1942): 1 - (1 + exp(t))^-shape is the share
    below x, t = (x - centre) / scale - log shape. Its slopes on both sides are free, 1/scale and shape/scale,
    as those of spectra and of lateral distributions are; a large shape gives a Weibull's sharp end.
    """

    log_weight: Tensor
    centre: Tensor
    log_scale: Tensor
    log_shape: Tensor

    @classmethod
    def of(cls, values: Tensor, most_log_scale: float = _MOST_LOG_SCALE) -> Burr:
        """Read the mixture from a network's output [M, 4 K]."""
        weight, centre, scale, shape = values.chunk(PARAMETERS, dim=1)
        log_weight = torch.log_softmax(weight, dim=1)
        log_scale = most_log_scale - softplus(most_log_scale - scale)
        return cls(log_weight, centre, log_scale.clamp_min(_LEAST_LOG_SCALE), shape.clamp(*_LOG_SHAPE))

    def log_density(self, x: Tensor) -> Tensor:
        """Return the logarithm of the density at x [M]: [M]."""
        log_weight, centre, log_scale, log_shape = self
        t = (x[:, None] - centre) * torch.exp(-log_scale) - log_shape
        each = t - log_scale + log_shape - (torch.exp(log_shape) + 1.0) * softplus(t)
        return torch.logsumexp(log_weight + each, dim=1)

    def log_share_below(self, x: Tensor) -> Tensor:
        """Return the logarithm of the share below x [M]: [M]."""
        log_weight, centre, log_scale, log_shape = self
        t = (x[:, None] - centre) * torch.exp(-log_scale) - log_shape
        above = torch.exp(log_weight - torch.exp(log_shape) * softplus(t)).sum(dim=1)
        return torch.log1p(-above.clamp_max(_MOST_ABOVE))

    def quantile(self, chosen: Tensor, within: Tensor) -> Tensor:
        """Turn two uniform numbers of each muon into a variate: [M]; the first one chooses the component."""
        log_weight, *others = self
        below = torch.ones(2 * log_weight.shape[1:], device=log_weight.device).triu()
        ends = torch.exp(log_weight) @ below  # a running sum; torch's own is not reproducible on a GPU
        component = (chosen[:, None] > ends[:, :-1]).sum(dim=1, keepdim=True)
        centre, log_scale, log_shape = (each.gather(1, component)[:, 0] for each in others)
        excess = -torch.log(within.clamp_min(_LEAST_UNIFORM)) * torch.exp(-log_shape)  # softplus(t)
        small = excess.clamp_max(_SMALL)
        t = torch.where(
            excess < _SMALL,
            torch.log(small.clamp_min(1e-30)) + small / 2 + small * small / 24,
            excess + torch.log(1.0 - torch.exp(-excess.clamp_min(_SMALL))),
        )
        return centre + torch.exp(log_scale) * (t + log_shape)


class Density(nn.Module):
    """Muons that are independent of each other given conditions, multiplicity and a latent of their event.

    Exactly exchangeable, without a limit on the multiplicity, and linear in the muons: a bundle of 10⁶ can
    be made piece by piece.
    """

    def __init__(self, options: MuonVaeOptions) -> None:
        super().__init__()
        hidden, wide, mixture = options.hidden, 2 * options.hidden, PARAMETERS * options.components
        self.latent = options.latent
        self.event_net = silu_layers(features.CONTEXT + options.latent, wide, wide, wide)
        # Of an event: its mixture of energies, that of radii without the energy, four rows that modulate.
        self.widths = [mixture, mixture, hidden, hidden, hidden, hidden]
        self.of_event = Dense(wide, sum(self.widths))
        self.lift, self.mix, self.out = Dense(1, hidden), Dense(hidden, hidden), Dense(hidden, mixture)
        with torch.no_grad():
            self.of_event.weight.mul_(_GENTLE)
            self.out.weight.mul_(_GENTLE)
            self.out.bias.zero_()
            energy, radius, _, factor, other, _ = torch.split(self.of_event.bias, self.widths)
            self.of_event.bias.zero_()
            factor.fill_(1.0)
            other.fill_(1.0)
            for bias, ends in ((energy, _FIRST_ENERGIES), (radius, _FIRST_RADII)):
                _, centre, scale, _ = bias.chunk(PARAMETERS)
                centre.copy_(torch.linspace(*ends, len(centre)))
                scale.fill_(_FIRST_LOG_SCALE)

    def modulate(self, context: Tensor, latent: Tensor) -> Tensor:
        """Compute what each event does to its muons: [B, sum of ``widths``]."""
        values: Tensor = self.of_event(self.event_net(torch.cat([context, latent], dim=1)))
        return values

    def log_density(self, muons: Tensor, below: Tensor, modulation: Tensor, event: Tensor) -> Tensor:
        """Return the logarithm of the density of each muon [M, 2], whose event is ``event``: [M].

        below: [M], so many more muons of its event, of which nothing else is known, have less energy.
        """
        energy, radius, *layers = self._spread(modulation, event)
        with exact(muons):
            law, log_energy = Burr.of(energy.float()), muons[:, 0]
            of_energy = law.log_density(log_energy) + below * law.log_share_below(log_energy)
        return of_energy + self._radii(muons[:, :1], radius, *layers).log_density(muons[:, 1])

    def muons(self, modulation: Tensor, event: Tensor, uniform: Tensor) -> Tensor:
        """Turn uniform numbers [M, UNIFORMS] into the muons whose events are ``event``: [M, 2]."""
        energy, radius, *layers = self._spread(modulation, event)
        chosen, within, chosen_radius, within_radius = uniform.unbind(1)
        first = Burr.of(energy.float()).quantile(chosen, within)
        second = self._radii(first[:, None], radius, *layers).quantile(chosen_radius, within_radius)
        return torch.stack([first, second], dim=1)

    def _spread(self, modulation: Tensor, event: Tensor) -> tuple[Tensor, ...]:
        return torch.split(spread_out(modulation, event), self.widths, dim=1)

    def _radii(
        self, energy: Tensor, radius: Tensor, shift: Tensor, factor: Tensor, second: Tensor, last: Tensor
    ) -> Burr:
        """Return the mixture of the radius of each muon at its energy [M, 1]."""
        x = silu(torch.addcmul(shift, self.lift(energy), factor))
        x = silu(torch.addcmul(last, residual(self.mix, x), second))
        with exact(x):
            return Burr.of(self.out(x.float()) + radius.float(), _MOST_LOG_SCALE_OF_RADII)


class Encoder(nn.Module):
    """The latent's law given the muons: what a training step draws it from (Kingma and Welling 2014)."""

    def __init__(self, options: MuonVaeOptions) -> None:
        super().__init__()
        hidden = options.hidden
        self.lift = Dense(2, hidden)
        self.lift_context = Dense(features.CONTEXT, hidden, bias=False)
        self.mix = Dense(hidden, hidden)
        self.summary = silu_layers(hidden + features.CONTEXT + 1, hidden, hidden)
        self.out = Dense(hidden, 2 * options.latent)
        with torch.no_grad():  # at first the latent says nothing
            self.out.weight.mul_(0.1)
            self.out.bias.zero_()

    def forward(
        self, muons: Tensor, lead: Tensor, context: Tensor, event: Tensor, kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation of each event's latent: [B, L] each.

        lead: [M], 1 for muons that were chosen by their energy, which are no sample of the event.
        """
        x = silu(self.lift(muons) + spread_out(self.lift_context(context), event))
        others = (1.0 - lead)[:, None]
        seen = sums_of(silu(residual(self.mix, x)) * others, event, len(kept))
        seen = seen / sums_of(others, event, len(kept))
        with exact(seen):
            x = self.summary(torch.cat([seen, context.float(), torch.log(kept)[:, None]], dim=1))
            mean, log_width = cast("Tensor", self.out(x)).chunk(2, dim=1)
        return mean, log_width


class VaeNetworks(nn.Module):
    """Everything that a checkpoint of this workload holds."""

    def __init__(self, options: MuonVaeOptions) -> None:
        super().__init__()
        self.density = Density(options)
        self.encoder = Encoder(options)
        self.multiplicity = Multiplicity(features.CONDITIONS)
