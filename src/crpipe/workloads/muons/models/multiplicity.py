"""How many muons an event has: a zero-inflated mixture of negative binomials given the conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from crpipe.train.workload import OptimizerSpec, Phase
from crpipe.workloads.muons.models.dense import Dense
from crpipe.workloads.muons.models.pooling import exact
from crpipe.workloads.muons.static_shapes import weights

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.train.workload import Batch, Metrics

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
        self.net = nn.Sequential(
            Dense(conditions, hidden),
            nn.SiLU(),
            Dense(hidden, hidden),
            nn.SiLU(),
            Dense(hidden, hidden),
            nn.SiLU(),
        )
        self.head = Dense(hidden, 3 * components + 1)
        with torch.no_grad():
            self.head.weight.mul_(0.1)

    def forward(self, conditions: Tensor) -> Mixture:
        """Give the mixture for each event; in float64, where lgamma of 10⁵ still resolves single muons."""
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
    """Give the exact log probability of each event's multiplicity: [N] float64."""
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
    chosen = (rng.random((len(steps), 1)) * steps[:, -1:] > steps).sum(axis=1)
    rows = np.arange(len(steps))
    mean, shape = np.exp(log_mean[rows, chosen]), np.exp(log_shape[rows, chosen])
    drawn = rng.poisson(rng.gamma(shape, mean / shape))
    empty = rng.random(len(drawn)) * (1.0 + np.exp(-empty_logit)) < 1.0
    return np.where(empty, 0, drawn)


def phase(learning_rate: float) -> Phase:
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
