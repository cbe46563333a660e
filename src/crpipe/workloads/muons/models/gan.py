"""MuonGan: a conditional Wasserstein GAN for muon bundles, with its multiplicity by likelihood.

Losses are sums over the events that have muons divided by all events of the batch, weighted where events have
weights: an event without muons scores the same real and generated, so its share of the Wasserstein gap is
exactly zero, and micro-batches weighted by their events add up to the whole batch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from crpipe.train.workload import Batch, Metrics, OptimizerSpec, Phase, Throttle
from crpipe.workloads.muons import batches as bundles
from crpipe.workloads.muons import features
from crpipe.workloads.muons.models.base import BundleWorkload
from crpipe.workloads.muons.models.critic_gradient import critic_gradient
from crpipe.workloads.muons.models.layers import Pooled, largest_of, mean_of, padded_owner, padding
from crpipe.workloads.muons.models.networks import Critic, Generator, Modulation, Networks, multiplicity_phase
from crpipe.workloads.muons.options import MuonGanOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from crpipe.events.batch import Events

# Scores and muons of a bundle too large to be held at once: in pieces, computed again for the gradients.
#
# Only features, noise and pooled values of the whole bundle are kept, and the hidden layers of one piece.
# Results equal those of one pass but for rounding.

# Muons. With 64 hidden values a layer of a piece is 32 MiB, which glibc gives back to the system at once:
# smaller layers left holes in its heap, 1.5 GB of them with an event of a million muons.
PIECE = 1 << 17


def needed(muons: int, events: int) -> bool:
    """Report whether a micro-batch is a single event of more than a piece: no smaller ones can be made of it.

    Micro-batches of several events hold what the budget allows; they are not recomputed.
    """
    return events == 1 and muons > PIECE


def scores(critic: Critic, muons: Tensor, context: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Compute what ``critic(muons, context, event, kept)`` does: [B]."""
    seen = _pooled(lambda piece, owner: critic.embed(piece, context, owner), muons, event, kept)
    summary = critic.summarise(seen, context)

    def after(piece: Tensor, owner: Tensor) -> Tensor:
        return critic.exchange.broadcast(critic.embed(piece, context, owner), summary, owner)

    return critic.score_head(_pooled(after, muons, event, kept), summary, context)


def muons(generator: Generator, modulation: Modulation, event: Tensor, noise: Tensor) -> Tensor:
    """Compute what ``generator.muons(modulation, event, noise)`` does: [M, D]."""
    pairs = zip(torch.split(event, PIECE), torch.split(noise, PIECE), strict=True)
    return torch.cat([_again(generator.muons, modulation, owner, part) for owner, part in pairs])


def _pooled(embed: Callable[[Tensor, Tensor], Tensor], muons: Tensor, event: Tensor, kept: Tensor) -> Pooled:
    """Pool what ``embed`` gives for the muons by mean and maximum."""

    def one(piece: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        x = embed(piece, owner)
        return mean_of(x, owner, kept), largest_of(x, owner, kept)

    pairs = zip(torch.split(muons, PIECE), torch.split(event, PIECE), strict=True)
    means, largest = zip(*(_again(one, *pair) for pair in pairs), strict=True)
    owner = torch.arange(len(kept), device=event.device).repeat(len(largest))
    # Each mean is a piece's sum over the whole multiplicity; muons that tie tie across pieces as well, in
    # bfloat16 pieces share the gradient first.
    return Pooled(torch.stack(means).sum(0), largest_of(torch.cat(largest), owner, kept).float())


def _again(work: Callable[..., Any], *args: Any) -> Any:
    """Call now, keep the arguments alone, and recompute when the gradients need what was in between."""
    return checkpoint(work, *args, use_reentrant=False, preserve_rng_state=False)


# What keeps the critic Lipschitz with respect to the distance between two bundles of one multiplicity.
#
# The distance is the root mean square over muons paired in order of energy. Each function gives one value
# per event; averaging and weighting are the caller's.

Sides = Literal["one", "two"]

_APART = 1000.0  # events lie this far apart in the sort key; features are of order one
_FLOOR = 1e-6  # keeps roots differentiable at zero, far below a distance that matters


def by_energy(muons: Tensor, event: Tensor) -> Tensor:
    """Order muons by energy within their events: [M, D]; float64 resolves events and energies in one key."""
    key = event.double() * _APART + muons[:, 0].double().clamp(-_APART / 2.1, _APART / 2.1)
    return muons.index_select(0, torch.argsort(key))


def excess(slope: Tensor, sides: Sides) -> Tensor:
    """Square how far a slope is above 1 (one side), or away from 1 (two sides)."""
    beyond = slope - 1.0
    return (beyond.clamp_min(0.0) if sides == "one" else beyond) ** 2


def pair_slopes(gap: Tensor, real: Tensor, fake: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Return the critic's slope between each real event and its generated partner: [B].

    gap: [B] difference of their scores, already at hand: no further pass through the critic is needed.
    real, fake: [M, D], ordered by energy.
    """
    squares = ((real - fake) ** 2).sum(dim=1, keepdim=True)
    return gap.abs() / torch.sqrt(mean_of(squares, event, kept)[:, 0] + _FLOOR)


def gradient_slopes(gradient: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Return the critic's slope for each event, [B], from its score's gradient by the muons: [M, D].

    The steepest change per root-mean-square displacement is sqrt(N) times the norm of the gradient
    (Gulrajani et al. 2017, eq. 3).
    """
    squares = mean_of((gradient**2).sum(dim=1, keepdim=True), event, kept)[:, 0]
    return torch.sqrt(squares * kept**2 + _FLOOR**2)


def between(real: Tensor, fake: Tensor, share: Tensor, event: Tensor) -> Tensor:
    """Mix paired bundles, each event with its own ``share`` [B] of the real one: [M, D]."""
    part = share.index_select(0, event)[:, None]
    return part * real + (1.0 - part) * fake


class RealAndFake(NamedTuple):
    """Real events and their generated partners: same context [B, C], same muons kept, [M, D] each."""

    real: Tensor
    fake: Tensor
    context: Tensor
    event: Tensor
    kept: Tensor


class MuonGan(BundleWorkload[MuonGanOptions]):
    """The workload; see crpipe.train.workload for what each method does for the trainer."""

    def collate(self, events: Events, index: NDArray[np.integer[Any]], seed: tuple[int, ...]) -> Batch:
        """Build a batch (bundles.collate); ``penalised`` is ``event``, cut to the gradient penalty's sample.

        sampled: how many events each of the sample counts for: 0 for padding. The cut is made here because
        its length depends on the data: later only the device would know it.
        """
        options = self.options
        batch = bundles.collate(events, index, most=options.max_muons, kind=options.features, seed=seed)
        if options.penalty == "gradient":
            filled = int(batch["counts"][: len(batch["kept"])].sum())
            size = min(math.ceil(options.gp_sample_fraction * filled), options.gp_max_pairs or filled)
            items = int(batch["kept"][:size].sum())
            batch["penalised"] = torch.from_numpy(padded_owner(batch["event"][:items].numpy(), size))
            batch["sampled"] = torch.zeros(size + len(padding(size, items)))
            batch["sampled"][:size] = filled / max(size, 1)
        return batch

    def model(self) -> nn.Module:
        """Build generator, critic and multiplicity network."""
        return Networks(self.options)

    def phases(self) -> list[Phase]:
        """Multiplicity, critic (several times), generator."""
        options = self.options
        return [
            multiplicity_phase(options.multiplicity_learning_rate),
            Phase(
                "critic",
                lambda model: cast("Networks", model).critic.parameters(),
                self.critic_loss,
                self._optimizer(options.critic_learning_rate),
                repeat=options.critic_steps,
                smoothed=("wasserstein",),
                throttle=self._throttle(),
            ),
            Phase(
                "generator",
                lambda model: cast("Networks", model).generator.parameters(),
                self.generator_loss,
                self._optimizer(options.generator_learning_rate),
                average=True,
            ),
        ]

    def critic_loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Metrics]:
        """Widen the gap between real and generated scores, against a penalty on the critic's slope.

        An event that fills a micro-batch alone is scored in pieces; a gradient penalty still takes it whole.
        """
        networks = cast("Networks", model)
        noise = self.draw(model, batch, generator)
        share = None
        if self.options.penalty == "gradient" and _one_in(self.options.gp_every, generator):
            share = torch.rand(len(batch["sampled"]), generator=generator, device=batch["sampled"].device)
        pair = self._pair(networks, batch, noise)
        gap = _gap(networks.critic, pair)
        events = bundles.events_of(batch)
        distance = bundles.sum_over_events(gap, batch) / events
        slopes = self._penalty(networks, batch, pair, gap, share) / events
        loss = self.options.penalty_weight * slopes - distance
        return loss, {"wasserstein": distance.detach(), "penalty": slopes.detach()}

    def generator_loss(
        self, model: nn.Module, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Metrics]:
        """Raise the critic's score of generated bundles."""
        networks, event = cast("Networks", model), batch["event"]
        context = bundles.filled_context(batch)
        fake = _generated(networks.generator, context, event, self.draw(model, batch, generator))
        score = partial(scores, networks.critic) if needed(len(event), len(context)) else networks.critic
        gaps = score(fake, context, event, batch["kept"])
        return -bundles.sum_over_events(gaps, batch) / bundles.events_of(batch), {}

    def generate(
        self, model: nn.Module, events: Events, multiplicity: NDArray[np.int64], generator: torch.Generator
    ) -> Events:
        """Generate bundles of the given multiplicities for the conditions in ``events``."""
        networks = cast("Networks", model)

        def make(context: Tensor) -> Callable[[Tensor], Tensor]:
            network = networks.generator
            modulation = network.modulate(context, _normal(len(context), network.event_latent, generator))
            return lambda event: features.decode(
                network.muons(modulation, event, _normal(len(event), network.muon_latent, generator)),
                self.options.features,
                generator,
            )

        return bundles.generate(events, multiplicity, make, generator)

    def _throttle(self) -> Throttle | None:
        options = self.options
        if not options.critic_throttle_above:
            return None
        limits = (
            options.critic_throttle_above,
            options.critic_throttle_factor,
            options.critic_throttle_least,
        )
        return Throttle("wasserstein", *limits)

    def _optimizer(self, rate: float) -> OptimizerSpec:
        if self.options.optimizer == "sgd":
            return OptimizerSpec("sgd", rate, momentum=self.options.momentum)
        return OptimizerSpec("adam", rate, betas=(0.0, 0.9))

    def draw(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the noise that the partners of a batch are generated from: [B, latent] and [M, latent]."""
        network = cast("Networks", model).generator
        of_event = _normal(len(batch["kept"]), network.event_latent, generator)
        return of_event, _normal(len(batch["event"]), network.muon_latent, generator)

    def _pair(self, networks: Networks, batch: Batch, noise: tuple[Tensor, Tensor]) -> RealAndFake:
        real, event, context = batch["muons"], batch["event"], bundles.filled_context(batch)
        with torch.no_grad():
            fake = _generated(networks.generator, context, event, noise)
        if self.options.penalty == "pair_slope":
            real, fake = by_energy(real, event), by_energy(fake, event)
        return RealAndFake(real, fake, context, event, batch["kept"])

    def _penalty(
        self, networks: Networks, batch: Batch, pair: RealAndFake, gap: Tensor, share: Tensor | None
    ) -> Tensor:
        """Sum the squared excess slopes over the batch's events, or estimate that sum without bias."""
        options = self.options
        if options.penalty == "pair_slope":
            slopes = pair_slopes(gap, pair.real, pair.fake, pair.event, pair.kept)
            return bundles.sum_over_events(excess(slopes, options.penalty_sides), batch)
        if share is None:
            return gap.new_zeros(())
        event, sampled = batch["penalised"], batch["sampled"]
        kept, context = pair.kept[: len(sampled)], pair.context[: len(sampled)]
        real, fake = (by_energy(muons[: len(event)], event) for muons in (pair.real, pair.fake))
        middle = between(real, fake, share, event)
        gradient = critic_gradient(networks.critic, middle, context, event, kept)
        slopes = gradient_slopes(gradient, event, kept)
        values = excess(slopes, options.penalty_sides) * sampled
        return options.gp_every * bundles.sum_over_events(values, batch)


def _one_in(every: int, generator: torch.Generator) -> bool:
    """Return True at random, once in ``every`` times on average.

    Drawn on the host: reading a number from a device would wait for it. Where ``generator`` is on a device,
    torch's own generator is used; the trainer seeds both, so a resumed run draws the same. No steps are
    counted, so nothing needs to be saved, and every micro-batch has the same chance.
    """
    host = generator if generator.device.type == "cpu" else None
    return every == 1 or float(torch.rand((), generator=host)) * every < 1.0


def _gap(critic: Critic, pair: RealAndFake) -> Tensor:
    """Score real and generated events in one pass, and subtract: [B]."""
    events = len(pair.kept)
    score = partial(scores, critic) if needed(len(pair.event), events) else critic
    both = score(
        torch.cat([pair.real, pair.fake]),
        torch.cat([pair.context, pair.context]),
        torch.cat([pair.event, pair.event + events]),
        torch.cat([pair.kept, pair.kept]),
    )
    return both[:events] - both[events:]


def _generated(network: Generator, context: Tensor, event: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
    of_event, of_muon = noise
    if needed(len(event), len(context)):
        return muons(network, network.modulate(context, of_event), event, of_muon)
    return network(context, event, of_event, of_muon)


def _normal(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator, device=generator.device)
