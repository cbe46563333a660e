"""Scores and muons of a bundle too large to be held at once: in pieces, computed again for the gradients.

Only features, noise and pooled values of the whole bundle are kept, and the hidden layers of one piece.
Results equal those of one pass but for rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from crpipe.workloads.muons.models.pooling import Pooled, largest_of, mean_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from crpipe.workloads.muons.models.networks import Critic, Generator, Modulation

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
    """Call now, keep the arguments alone, and call again when the gradients need what was in between."""
    return checkpoint(work, *args, use_reentrant=False, preserve_rng_state=False)
