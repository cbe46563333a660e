"""From the encoder's tokens to energy, place, time and angle: each task corrects a regression."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from crpipe.workloads.common.formulas import Gelu
from crpipe.workloads.common.regression import QuadraticRegression, StoppedRegression, begin_at_zero
from crpipe.workloads.xec.layout import SENSORS, TRUTH, TRUTHS, Truth
from crpipe.workloads.xec.models.encoder import TOKENS, SensorEncoder
from crpipe.workloads.xec.models.features import SUMS, U_CM, V_CM, LightSums
from crpipe.workloads.xec.sensors import INNER_RADIUS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

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


def cosine_loss(predicted: Tensor, truth: Tensor) -> Tensor:
    """Return 1 - cos of the angle between directions, [B]; predicted, truth: theta, phi [B, 2] in rad."""
    one, other = (
        torch.stack(
            [angle[:, 0].sin() * angle[:, 1].cos(), angle[:, 0].sin() * angle[:, 1].sin(), angle[:, 0].cos()]
        )
        for angle in (predicted, truth)
    )
    return 0.5 * (one - other).square().sum(dim=0)  # exact for small angles, where 1 - cos is not


# Units of losses and of the network's corrections until the regression is fitted; then, its resolutions.
UNITS: dict[Truth, tuple[float, ...]] = {
    "energy": (0.05,),
    "position": (U_CM, V_CM, 10.0),
    "time": (1.0,),
    "angle": (1.0, 1.0),
}
PERIODIC = "phi_rad"
WITHIN = 0.6827  # share of the events within one sigma of a Gaussian
_LEAST_ENERGY = 1e-6
_FINEST = 1e-3  # least resolution of the regression, in units of UNITS


class Head(nn.Module):
    """Two small networks, over all tokens and over the sums of the light, whose results are added.

    Gives corrections, and log sigmas behind them where it has to. The sums are learned within a few hundred
    steps, the tokens much later.
    """

    def __init__(self, width: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(TOKENS * width, hidden),
            nn.LayerNorm(hidden),
            Gelu(),
            nn.Linear(hidden, hidden),
            Gelu(),
            begin_at_zero(nn.Linear(hidden, outputs)),
        )
        self.sums = nn.Sequential(
            nn.Linear(SUMS, hidden),
            Gelu(),
            nn.Linear(hidden, hidden),
            Gelu(),
            begin_at_zero(nn.Linear(hidden, outputs)),
        )

    def forward(self, tokens: Tensor, sums: Tensor) -> Tensor:
        """Return [B, outputs] from tokens [B, 7, width] and standardised sums [B, SUMS]."""
        return self.layers(tokens.flatten(1)) + self.sums(sums)


class GammaModel(nn.Module):
    """A regression on sums of the light, one on the share of each sensor, and what corrects them.

    The second one, ``sensors``, knows where the light is in finer detail than the sums. Encoder and heads of
    the tasks correct both.

    unit_TASK: [D] a step of 1 of the network. sigma_TASK: [D] factor of predicted uncertainties.
    """

    def __init__(self, options: RegressorOptions, places: NDArray[np.float64]) -> None:
        super().__init__()
        self.tasks = options.tasks
        self.light = options.photons_at_50_mev
        self.encoder = SensorEncoder(options, places, self.light)
        self.heads = nn.ModuleDict()
        self.names: list[Truth] = [name for name in TRUTHS if name in options.tasks]
        for name in self.names:
            outputs = len(UNITS[name]) * (2 if options.tasks[name].loss == "gaussian_nll" else 1)
            self.heads[name] = Head(options.width, options.head, outputs)
            self.register_buffer(f"unit_{name}", self._first_unit(name))
            self.register_buffer(f"sigma_{name}", torch.ones(len(UNITS[name])))
        columns = sum(len(UNITS[name]) for name in self.names)
        self.regression = QuadraticRegression(SUMS, columns)
        self.sensors = StoppedRegression(SENSORS, columns)
        if options.balance == "learned":
            zeros = {name: nn.Parameter(torch.zeros(())) for name in self.heads}
            self.log_variance = nn.ParameterDict(zeros)

    def forward(self, items: Tensor) -> dict[Truth, tuple[Tensor, Tensor | None]]:
        """Predict for items [B, 4760, 4]: for each task [B, D] in the units of its columns.

        Beside it the log of the uncertainty [B, D] in units of the task, or None.
        """
        encoded = self.encoder(items)
        predictions: dict[Truth, tuple[Tensor, Tensor | None]] = {}
        sums = self.regression.standardised(encoded.sums.vector)
        for name, estimate in self._estimates(encoded.sums).items():
            out = self.heads[name](encoded.tokens, sums).float()
            count, log_sigma = estimate.shape[1], None
            if out.shape[1] > count:
                log_sigma = out[:, count:].clamp(LEAST_LOG_SIGMA, MOST_LOG_SIGMA)
            step = out[:, :count] * self.get_buffer(f"unit_{name}")
            predictions[name] = (shifted(name, estimate, step, log=self.tasks[name].log), log_sigma)
        return predictions

    def estimates(self, items: Tensor) -> dict[Truth, Tensor]:
        """Predict by the regressions alone: for each task [B, D] in the units of its columns.

        Of an energy they learn the logarithm of the ratio to the simple estimate.
        """
        return self._estimates(self.encoder.features(items)[1])

    def _estimates(self, sums: LightSums) -> dict[Truth, Tensor]:
        sizes = [len(UNITS[name]) for name in self.names]
        steps = (self.regression(sums.vector) + self.sensors(sums.shares)).split(sizes, dim=1)
        return {
            name: shifted(name, self._simple(name, sums), step, log=name == "energy")
            for name, step in zip(self.names, steps, strict=True)
        }

    def fit(self, blocks: Iterable[tuple[Tensor, dict[Truth, Tensor]]]) -> None:
        """Fit the regressions, one after another, and the units by their resolution.

        blocks: items [B, 4760, 4] and the true values of each task [B, D] in the units of its columns.
        """
        vectors, shares, steps, simple, true = [], [], [], [], []
        for items, truth in blocks:
            sums = self.encoder.features(items)[1]
            first = {name: self._simple(name, sums) for name in self.names}
            vectors.append(sums.vector)
            shares.append(sums.shares)
            away = [difference(name, truth[name], first[name], log=name == "energy") for name in self.names]
            steps.append(torch.cat(away, dim=1))
            simple.append(first)
            true.append(truth)
        if not vectors:
            return
        vector, wanted = torch.cat(vectors), torch.cat(steps)
        self.regression.fit(vector, wanted)
        learned = self.regression(vector)
        self.sensors.fit(torch.cat(shares), wanted - learned)
        learned = learned + torch.cat([self.sensors(part) for part in shares])
        sizes = [len(UNITS[name]) for name in self.names]
        for name, step in zip(self.names, learned.split(sizes, dim=1), strict=True):
            first_of, true_of = (torch.cat([each[name] for each in part]) for part in (simple, true))
            fitted = shifted(name, first_of, step, log=name == "energy")
            off = difference(name, fitted, true_of, log=self.tasks[name].log)
            width = torch.quantile(off.abs().double(), WITHIN, dim=0)
            self.get_buffer(f"unit_{name}").copy_(
                torch.maximum(width, _FINEST * self._first_unit(name).to(width))
            )

    def _first_unit(self, name: Truth) -> Tensor:
        return torch.tensor((1.0,) if self.tasks[name].log else UNITS[name])

    def _simple(self, name: Truth, sums: LightSums) -> Tensor:
        """Estimate a task without anything learned: [B, D] in the units of its columns."""
        if name == "energy":
            return UNITS["energy"][0] * (sums.light / self.light)[:, None]
        if name == "position":
            return torch.stack([sums.u_cm, sums.v_cm, sums.w_cm], dim=1)
        if name == "time":
            return sums.start_ns[:, None]
        around = math.pi - sums.v_cm / INNER_RADIUS  # a gamma from the origin to the middle of the light
        away = math.pi / 2 - torch.atan(sums.u_cm / INNER_RADIUS)
        return torch.stack([away, wrapped(around)], dim=1)


def shifted(name: Truth, estimate: Tensor, step: Tensor, *, log: bool) -> Tensor:
    """Return the values that are ``step`` away from an estimate, as by ``difference``: [B, D] each."""
    if log:
        return estimate * step.exp()
    if name == "angle":
        theta, phi = (estimate + step).unbind(dim=1)
        return torch.stack([theta, wrapped(phi)], dim=1)
    return estimate + step


def difference(name: Truth, predicted: Tensor, truth: Tensor, *, log: bool) -> Tensor:
    """Return predicted minus true values, [B, D] each in the units of the columns; log: of the logarithms."""
    if log:
        return predicted.clamp_min(_LEAST_ENERGY).log() - truth.clamp_min(_LEAST_ENERGY).log()
    parts = [
        wrapped(part) if field.name == PERIODIC else part
        for field, part in zip(TRUTH[name], (predicted - truth).unbind(dim=1), strict=True)
    ]
    return torch.stack(parts, dim=1)


def sigma_of(model: GammaModel, name: Truth, value: Tensor, log_sigma: Tensor) -> Tensor:
    """Return uncertainties [B, D] in the units of their columns, calibrated, from logs in its units."""
    sigma = log_sigma.exp() * model.get_buffer(f"unit_{name}") * model.get_buffer(f"sigma_{name}")
    return sigma * value if model.tasks[name].log else sigma


def wrapped(angle: Tensor) -> Tensor:
    """Turn angles, in rad, into the interval from -π to π."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
