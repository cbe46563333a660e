"""Losses of residuals, one number for each event."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from crpipe.workloads.xec.options import TaskOptions

LEAST_LOG_SIGMA, MOST_LOG_SIGMA = -7.0, 5.0


def smooth_l1(residual: Tensor, beta: float) -> Tensor:
    """Give the Huber loss over beta, of any shape: a square below ``beta``, a line above; a line for 0."""
    size = residual.abs()
    if beta == 0:
        return size
    return torch.where(size < beta, 0.5 * size.square() / beta, size - 0.5 * beta)


def gaussian_nll(residual: Tensor, log_sigma: Tensor, beta: float) -> Tensor:
    """Give minus the log of a Gaussian density, of any shape.

    beta: each value is weighed by its own variance to this power, without a gradient through the weight, so
    that events with a large uncertainty are not neglected (beta-NLL, Seitzer et al. 2022).
    """
    each = 0.5 * (residual * torch.exp(-log_sigma)).square() + log_sigma + 0.5 * math.log(2 * math.pi)
    return each * torch.exp(2 * beta * log_sigma.detach()) if beta else each


def task_loss(residual: Tensor, log_sigma: Tensor | None, task: TaskOptions) -> Tensor:
    """Give the loss of one task for each event, the mean over its components: [B].

    residual: [B, D] predicted minus true, in units of the task. log_sigma: [B, D], only for gaussian_nll.
    """
    if log_sigma is not None:
        return gaussian_nll(residual, log_sigma, task.beta).mean(dim=1)
    if task.loss == "mse":
        return residual.square().mean(dim=1)
    return smooth_l1(residual, task.beta if task.loss == "smooth_l1" else 0.0).mean(dim=1)
