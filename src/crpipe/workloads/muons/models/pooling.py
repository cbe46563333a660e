"""Pooling of muons into their events: mean and maximum, exact in float32."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor


def exact(tensor: Tensor) -> AbstractContextManager[object]:
    """Compute in float32 inside a block, whatever the trainer's precision.

    For small layers whose result is subtracted, sampled or compared: bfloat16 has three digits.
    """
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def mean_of(values: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Average the muons of each event, in float32: [B, H]."""
    values = values.float()
    sums = values.new_zeros(kept.shape[0], values.shape[1]).index_add_(0, event, values)
    return sums / kept[:, None]


def largest_of(values: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Take the largest value of each event, feature by feature: [B, H]."""
    largest: Tensor = _Largest.apply(values, event, len(kept))  # type: ignore[no-untyped-call]
    return largest


class _Largest(torch.autograd.Function):
    """Maximum whose gradient goes to the muons that reach it.

    torch's own backward also counts ties, which costs more than the forward pass; here muons that tie
    (identical ones) each get the gradient.
    """

    @staticmethod
    def forward(values: Tensor, event: Tensor, events: int) -> Tensor:
        """Reduce [M, H] to [events, H]."""
        index = event[:, None].expand_as(values)
        lowest = values.new_full((events, values.shape[1]), -torch.inf)
        return lowest.scatter_reduce(0, index, values, "amax")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        """Keep what the backward pass compares."""
        ctx.save_for_backward(inputs[0], inputs[1], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Spread the gradient, by operations that can themselves be differentiated."""
        values, event, largest = ctx.saved_tensors
        with torch.no_grad():
            # Ones and zeros in the place of the floats: booleans would be turned into floats first.
            reached = largest.index_select(0, event).eq_(values)
        return gradient.index_select(0, event).mul_(reached), None, None


class Pooled(NamedTuple):
    """The muons of each event, pooled: [B, H] each, in float32."""

    mean: Tensor
    largest: Tensor


def pooled(x: Tensor, event: Tensor, kept: Tensor) -> Pooled:
    """Pool muons by mean and maximum."""
    return Pooled(mean_of(x, event, kept), largest_of(x, event, kept).float())
