"""What keeps the critic Lipschitz with respect to the distance between two bundles of one multiplicity.

The distance is the root mean square over muons paired in order of energy. Each function gives one value
per event; averaging and weighting are the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from crpipe.workloads.muons.models.pooling import mean_of

if TYPE_CHECKING:
    from torch import Tensor

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
    """Give the critic's slope between each real event and its generated partner: [B].

    gap: [B] difference of their scores, already at hand: no further pass through the critic is needed.
    real, fake: [M, D], ordered by energy.
    """
    squares = ((real - fake) ** 2).sum(dim=1, keepdim=True)
    return gap.abs() / torch.sqrt(mean_of(squares, event, kept)[:, 0] + _FLOOR)


def gradient_slopes(gradient: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Give the critic's slope for each event, [B], from its score's gradient by the muons: [M, D].

    The steepest change per root-mean-square displacement is sqrt(N) times the norm of the gradient
    (Gulrajani et al. 2017, eq. 3).
    """
    squares = mean_of((gradient**2).sum(dim=1, keepdim=True), event, kept)[:, 0]
    return torch.sqrt(squares * kept**2 + _FLOOR**2)


def between(real: Tensor, fake: Tensor, share: Tensor, event: Tensor) -> Tensor:
    """Mix paired bundles, each event with its own ``share`` [B] of the real one: [M, D]."""
    part = share.index_select(0, event)[:, None]
    return part * real + (1.0 - part) * fake
