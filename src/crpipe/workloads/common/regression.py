"""Robust regressions, as modules: fitted once to training events, then part of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

_FARTHEST = 4.0  # standard deviations of a feature; beyond, an event counts as one at this distance
_RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 1e3)  # the last one leaves a constant
_HELD_BACK = 5  # one event of so many judges the ridge
_FEWEST = 25  # events; from fewer nothing is learned
_ITERATIONS = 5
_TAIL = 1e-3  # share of the values on either side beyond which no prediction goes
_STEPS = 8  # of conjugate gradients, at most
_WIDTH = 0.6827  # share of the values within one width of their median
_TINY = 1e-30
_WIDTHS = 2.0  # from the median, beyond which no value counts more and no prediction goes


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def begin_at_zero(layer: Layer) -> Layer:
    """Set a layer to zero and return it: training begins at the prediction that its network corrects."""
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class QuadraticRegression(nn.Module):
    """Predicts T values from F features: a polynomial of second degree, zero until it is fitted.

    The fit minimises the mean distance to the true values, not its square: events of the tails, which no
    method gets right, would otherwise decide. All that it learns are buffers.
    """

    centre: Tensor
    spread: Tensor
    coefficients: Tensor
    low: Tensor
    high: Tensor
    first: Tensor
    second: Tensor

    def __init__(self, features: int, values: int, *, joint: bool = False) -> None:
        """joint: the values are one vector, whose distance counts; else each value counts by itself."""
        super().__init__()
        self.joint = joint
        first, second = torch.triu_indices(features, features)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("spread", torch.ones(features))
        self.register_buffer("coefficients", torch.zeros(values, 1 + features + len(first)))
        self.register_buffer("low", torch.zeros(values))
        self.register_buffer("high", torch.zeros(values))

    def forward(self, features: Tensor) -> Tensor:
        """Predict from features [B, F]: [B, T], within the range of the values of the fit.

        No matrix product: with train.precision bfloat16 or train.tf32 it would keep three digits or four.
        """
        terms = self._terms(features)
        predicted = torch.stack([(terms * each).sum(dim=1) for each in self.coefficients.unbind()], dim=1)
        return torch.minimum(torch.maximum(predicted, self.low), self.high)

    def standardised(self, features: Tensor) -> Tensor:
        """Return features [B, F] about 0, with a spread of 1 in the events of the fit."""
        return ((features - self.centre) / self.spread).clamp(-_FARTHEST, _FARTHEST)

    def _terms(self, features: Tensor) -> Tensor:
        """Return 1, the standardised features, and the products of any two: [B, 1 + F + F (F + 1) / 2]."""
        z = self.standardised(features)
        products = z.index_select(1, self.first) * z.index_select(1, self.second)
        return torch.cat([torch.ones_like(z[:, :1]), z, products], dim=1)

    def fit(self, features: Tensor, values: Tensor) -> None:
        """Fit to N events: features [N, F] and values [N, T], finite; from fewer than 25 learn nothing."""
        if len(features) < _FEWEST:
            return
        self.centre.copy_(features.mean(dim=0))
        self.spread.copy_(features.std(dim=0).clamp_min(1e-6))
        ends = torch.quantile(values.double(), values.new_tensor([_TAIL, 1 - _TAIL]).double(), dim=0)
        self.low.copy_(ends[0])
        self.high.copy_(ends[1])
        terms = self._terms(features.to(self.centre)).cpu()
        true = values.double().cpu()
        columns = [true] if self.joint else [true[:, at : at + 1] for at in range(true.shape[1])]
        self.coefficients.copy_(torch.cat([_fitted(terms, each) for each in columns], dim=1).T)


class StoppedRegression(nn.Module):
    """Predicts T values from very many features F: linear, zero until it is fitted.

    The fit takes as many steps of conjugate gradients as are best for events held back, or none. This does
    what a ridge does, also for thousands of features, and costs a few products with them. All that it learns
    are buffers.
    """

    centre: Tensor
    coefficients: Tensor
    middle: Tensor
    most: Tensor

    def __init__(self, features: int, values: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("coefficients", torch.zeros(values, features))
        self.register_buffer("middle", torch.zeros(values))
        self.register_buffer("most", torch.zeros(values))

    def forward(self, features: Tensor) -> Tensor:
        """Predict from features [B, F]: [B, T]. No matrix product, as in QuadraticRegression."""
        off = features - self.centre
        predicted = torch.stack([(off * each).sum(dim=1) for each in self.coefficients.unbind()], dim=1)
        return self.middle + torch.minimum(torch.maximum(predicted, -self.most), self.most)

    def fit(self, features: Tensor, values: Tensor) -> None:
        """Fit to N events: features [N, F] and values [N, T], finite; from fewer than 25 learn nothing."""
        if len(features) < _FEWEST:
            return
        middle = values.median(dim=0).values
        width = torch.quantile((values - middle).abs().double(), _WIDTH, dim=0).to(values).clamp_min(1e-12)
        scaled = ((values - middle) / width).clamp(-_WIDTHS, _WIDTHS)
        held_back = torch.arange(len(features), device=features.device) % _HELD_BACK == 0
        centre, off = features.mean(dim=0), []
        judge, judged = features[held_back], scaled[held_back]
        for solution in _descent(features, centre, scaled, ~held_back):
            predicted = judge @ solution - centre @ solution
            off.append((predicted - judged).abs().mean(dim=0))
        best = torch.stack(off).argmin(dim=0)
        self.centre.copy_(centre)
        for step, solution in enumerate(_descent(features, centre, scaled, torch.ones_like(held_back))):
            self.coefficients[best == step] = (solution * width).T[best == step]
        self.middle.copy_(torch.where(best > 0, middle, 0))
        self.most.copy_(_WIDTHS * width)


def _descent(features: Tensor, centre: Tensor, values: Tensor, kept: Tensor) -> Iterator[Tensor]:
    """Yield the solutions [F, T] after 0, 1, … _STEPS steps of conjugate gradients for the events ``kept``.

    The columns of ``values`` do not depend on each other. No copy of the features is centred.
    """

    def back(errors: Tensor) -> Tensor:
        shown = errors * kept[:, None]
        return features.T @ shown - centre[:, None] * shown.sum(dim=0)

    solution = values.new_zeros(features.shape[1], values.shape[1])
    yield solution
    rest = back(values)
    direction, square = rest, rest.square().sum(dim=0)
    for _ in range(_STEPS):
        moved = (features @ direction - centre @ direction) * kept[:, None]
        length = square / moved.square().sum(dim=0).clamp_min(_TINY)
        solution = solution + length * direction
        yield solution
        rest = rest - length * back(moved)
        before, square = square, rest.square().sum(dim=0)
        direction = rest + square / before.clamp_min(_TINY) * direction


def _fitted(terms: Tensor, true: Tensor) -> Tensor:
    """Return the coefficients [P, T] of one vector of values [N, T] by iteratively reweighted least squares.

    terms: [N, P]. The ridge is the one with the least mean root of the distance in events held back.
    """
    kept = torch.arange(len(terms)) % _HELD_BACK > 0
    even = terms.new_ones(len(terms), 1)
    moments = _moments(terms[kept], true[kept], even[kept])
    tried = [
        _distance(terms[~kept], true[~kept], _solution(*moments, ridge)).sqrt().mean() for ridge in _RIDGES
    ]
    ridge = _RIDGES[int(torch.stack(tried).argmin())]
    solution = _solution(*_moments(terms, true, even), ridge)
    for _ in range(_ITERATIONS):
        distance = _distance(terms, true, solution)
        near = distance.median().clamp_min(1e-12) / 2
        weights = near / distance.clamp_min(near)
        solution = _solution(*_moments(terms, true, weights[:, None].to(terms.dtype)), ridge)
    return solution


def _distance(terms: Tensor, true: Tensor, solution: Tensor) -> Tensor:
    return torch.linalg.vector_norm(terms @ solution.to(terms) - true, dim=1)


def _moments(terms: Tensor, true: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted means of the products of terms, [P, P], and of terms and true values, [P, T]."""
    weighted = terms * (weights / weights.sum())
    return (weighted.T @ terms).double(), weighted.T.double() @ true


def _solution(square: Tensor, mixed: Tensor, ridge: float) -> Tensor:
    """Solve the normal equations; the constant term, the first one, is free."""
    penalty = torch.full((len(square),), ridge, dtype=square.dtype)
    penalty[0] = 1e-12
    return torch.linalg.solve(square + torch.diag(penalty), mixed)
