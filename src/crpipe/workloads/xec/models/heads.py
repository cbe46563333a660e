"""From the encoder's tokens to energy, place, time and angle: each task corrects a simple estimate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from crpipe.workloads.common.formulas import Gelu
from crpipe.workloads.xec.layout import TRUTH, TRUTHS
from crpipe.workloads.xec.models.encoder import TOKENS, SensorEncoder
from crpipe.workloads.xec.models.features import U_CM, V_CM
from crpipe.workloads.xec.sensors import INNER_RADIUS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from crpipe.workloads.xec.layout import Truth
    from crpipe.workloads.xec.models.features import LightSums
    from crpipe.workloads.xec.options import RegressorOptions, TaskOptions

# Losses of residuals, one number for each event.

LEAST_LOG_SIGMA, MOST_LOG_SIGMA = -7.0, 5.0


def smooth_l1(residual: Tensor, beta: float) -> Tensor:
    """Return the Huber loss over beta, of any shape: a square below ``beta``, a line above; a line for 0."""
    size = residual.abs()
    if beta == 0:
        return size
    return torch.where(size < beta, 0.5 * size.square() / beta, size - 0.5 * beta)


def gaussian_nll(residual: Tensor, log_sigma: Tensor, beta: float) -> Tensor:
    """Return minus the log of a Gaussian density, of any shape.

    beta: each value is weighed by its own variance to this power, without a gradient through the weight, so
    that events with a large uncertainty are not neglected (beta-NLL, Seitzer et al. 2022).
    """
    nll = 0.5 * (residual * torch.exp(-log_sigma)).square() + log_sigma + 0.5 * math.log(2 * math.pi)
    return nll * torch.exp(2 * beta * log_sigma.detach()) if beta else nll


def task_loss(residual: Tensor, log_sigma: Tensor | None, task: TaskOptions) -> Tensor:
    """Return the loss of one task for each event, the mean over its components: [B].

    residual: [B, D] predicted minus true, in units of the task. log_sigma: [B, D], only for gaussian_nll.
    """
    if log_sigma is not None:
        return gaussian_nll(residual, log_sigma, task.beta).mean(dim=1)
    if task.loss == "mse":
        return residual.square().mean(dim=1)
    return smooth_l1(residual, task.beta if task.loss == "smooth_l1" else 0.0).mean(dim=1)


# A step of 1 in the network's output, in the units of the columns.
UNITS: dict[Truth, tuple[float, ...]] = {
    "energy": (0.05,),
    "position": (U_CM, V_CM, 10.0),
    "time": (1.0,),
    "angle": (1.0, 1.0),
}
PERIODIC = "phi_rad"
_LEAST_ENERGY = 1e-6
_FASTER = 10.0  # the scale of the energy learns so much faster than other weights


class Head(nn.Module):
    """A small network over all tokens; gives corrections, and log sigmas behind them where it has to."""

    def __init__(self, width: int, hidden: int, outputs: int) -> None:
        super().__init__()
        last = nn.Linear(hidden, outputs)
        nn.init.zeros_(last.weight)  # training begins at the simple estimates
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(
            nn.Linear(TOKENS * width, hidden),
            nn.LayerNorm(hidden),
            Gelu(),
            nn.Linear(hidden, hidden),
            Gelu(),
            last,
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [B, outputs] from tokens [B, 7, width]."""
        return self.layers(tokens.flatten(1))


class GammaModel(nn.Module):
    """Encoder and heads of the tasks that are asked for, and no others."""

    def __init__(self, options: RegressorOptions, places: NDArray[np.float64]) -> None:
        super().__init__()
        self.tasks = options.tasks
        self.encoder = SensorEncoder(options, places, options.photons_at_50_mev)
        self.heads = nn.ModuleDict()
        for name in (name for name in TRUTHS if name in options.tasks):  # in whatever order they are named
            task = options.tasks[name]
            parts = len(TRUTH[name]) * (2 if task.loss == "gaussian_nll" else 1)
            self.heads[name] = Head(options.width, options.head, parts)
        if "energy" in options.tasks:
            self.light = options.photons_at_50_mev
            self.scale = nn.Parameter(torch.zeros(()))
        if options.balance == "learned":
            zeros = {name: nn.Parameter(torch.zeros(())) for name in self.heads}
            self.log_variance = nn.ParameterDict(zeros)

    def forward(self, items: Tensor) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Predict for items [B, 4760, 4]: for each task [B, D] in the units of its columns.

        Beside it the log of the uncertainty [B, D] in units of the task, or None.
        """
        encoded = self.encoder(items)
        predictions = {}
        for name, head in self.heads.items():
            out = head(encoded.tokens).float()
            count = len(UNITS[name])  # type: ignore[index]
            log_sigma = None
            if out.shape[1] > count:
                log_sigma = out[:, count:].clamp(LEAST_LOG_SIGMA, MOST_LOG_SIGMA)
            predictions[name] = (self._value(name, out[:, :count], encoded.sums), log_sigma)
        return predictions

    def _value(self, name: str, step: Tensor, sums: LightSums) -> Tensor:
        """Correct the simple estimate of a task by the network's step [B, D]."""
        if name == "energy":
            energy = UNITS["energy"][0] * (sums.light / self.light)[:, None] * (_FASTER * self.scale).exp()
            return energy * step.exp() if self.tasks["energy"].log else energy * (1 + step)
        if name == "position":
            simple = torch.stack([sums.u_cm, sums.v_cm, sums.w_cm], dim=1)
            return simple + step * step.new_tensor(UNITS["position"])
        if name == "time":
            return sums.start_ns[:, None] + UNITS["time"][0] * step
        around = math.pi - sums.v_cm / INNER_RADIUS  # a gamma from the origin to the middle of the light
        away = math.pi / 2 - torch.atan(sums.u_cm / INNER_RADIUS)
        theta, phi = (torch.stack([away, around], dim=1) + step).unbind(dim=1)
        return torch.stack([theta, wrapped(phi)], dim=1)


def residual(name: Truth, predicted: Tensor, truth: Tensor, *, log: bool) -> Tensor:
    """Return predicted minus true values, [B, D] each in the units of the columns, in units of the task."""
    if name == "energy" and log:
        return predicted.clamp_min(_LEAST_ENERGY).log() - truth.clamp_min(_LEAST_ENERGY).log()
    difference = predicted - truth
    columns = [field.name for field in TRUTH[name]]
    parts = [
        wrapped(part) if column == PERIODIC else part
        for column, part in zip(columns, difference.unbind(dim=1), strict=True)
    ]
    return torch.stack(parts, dim=1) / difference.new_tensor(UNITS[name])


def sigma_of(name: Truth, value: Tensor, log_sigma: Tensor, task: TaskOptions) -> Tensor:
    """Return uncertainties [B, D] in the units of their columns, from logs in units of the task."""
    sigma = log_sigma.exp()
    return sigma * value if name == "energy" and task.log else sigma * sigma.new_tensor(UNITS[name])


def wrapped(angle: Tensor) -> Tensor:
    """Turn angles, in rad, into the interval from -π to π."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
