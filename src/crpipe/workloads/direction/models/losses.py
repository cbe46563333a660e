"""Losses between predicted vectors of any length and true directions; finite everywhere."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crpipe.workloads.formulas import atan2

_EPSILON = 1e-12  # below any squared length that matters
_SMALL = 1e-2  # concentration below which a series replaces the formula


def length(vectors: Tensor) -> Tensor:
    """Give the lengths of vectors [B, 3]: [B, 1]; the slope is 0, not infinite, at length 0."""
    return (vectors.square().sum(dim=-1, keepdim=True) + _EPSILON).sqrt()


def mean(values: Tensor, counts: Tensor) -> Tensor:
    """Average values [B] over the events of a batch. counts: [B] 1, or 0 for padding."""
    return (values * counts).sum() / counts.sum()


def opening_angle(predicted: Tensor, truth: Tensor) -> Tensor:
    """Give the angle between vectors [B, 3], in rad: [B].

    atan2 of cross and scalar product has a finite slope at 0 and π, where arccos has none.
    """
    unit = predicted / length(predicted)
    cross = torch.linalg.cross(unit, truth)
    sine = (cross.square().sum(dim=-1) + _EPSILON**2).sqrt()
    return atan2(sine, (unit * truth).sum(dim=-1))


def von_mises_fisher(predicted: Tensor, truth: Tensor) -> Tensor:
    """Give minus the log density of true unit vectors [B, 3]: [B].

    The density on the sphere is κ exp(κ cos θ) / (4π sinh κ); κ is the length of the predicted vector, its
    direction the mean. In float32: κ (1 - cos θ) as κ |μ - t|²/2, which keeps its digits at small angles.
    """
    kappa = length(predicted)
    apart = (predicted / kappa - truth).square().sum(dim=-1)
    kappa = kappa[..., 0]
    series = 0.5 + 0.5 * kappa + kappa.square() / 6
    exact = kappa / -torch.expm1(-2 * kappa.clamp_min(_SMALL))
    height = torch.where(kappa < _SMALL, series, exact)
    return 0.5 * kappa * apart - height.log() + math.log(2 * math.pi)
