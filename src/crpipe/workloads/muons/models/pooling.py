"""Pooling of muons into their events: mean and maximum, exact in float32.

Muons are in the order of their events.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import embedding_bag

from crpipe.workloads.muons.models.dense import is_fused

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
    return sums_of(values, event, kept.shape[0]) / kept[:, None]


def spread_out(values: Tensor, event: Tensor) -> Tensor:
    """Give each muon the values [B, H] of its event: [M, H]."""
    if is_fused(values):
        spread: Tensor = _SpreadOut.apply(values, event)  # type: ignore[no-untyped-call]
        return spread
    return values.index_select(0, event)


def sums_of(values: Tensor, event: Tensor, events: int) -> Tensor:
    """Add up the muons of each event, in float32: [B, H]."""
    if is_fused(values):
        sums: Tensor = _Sums.apply(values, event, events)  # type: ignore[no-untyped-call]
        return sums
    values = values.float()
    return values.new_zeros(events, values.shape[1]).index_add_(0, event, values)


def _added_up(values: Tensor, event: Tensor, events: int) -> Tensor:
    """Do so and round to the type of the values."""
    if is_fused(values) and values.dtype == torch.bfloat16:
        return _add_up(values, event, events)
    return sums_of(values, event, events).to(values.dtype)


def _add_up(values: Tensor, event: Tensor, events: int) -> Tensor:
    """Do so muon after muon of an event, which is several times as fast on a CPU as adding by index.

    bfloat16 is added in float32 as well, and then rounded.
    """
    count = torch.bincount(event, minlength=events)
    rows = torch.arange(len(event))
    added: Tensor = embedding_bag(rows, values, count.cumsum(0) - count, mode="sum")
    return added


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, event: Tensor, events: int) -> Tensor:
        ctx.save_for_backward(event)
        ctx.kind = values.dtype
        return _add_up(values.float(), event, events)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (event,) = ctx.saved_tensors
        return spread_out(gradient.to(ctx.kind), event), None, None


class _SpreadOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, event: Tensor) -> Tensor:
        ctx.save_for_backward(event)
        ctx.events = len(values)
        return values.index_select(0, event)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (event,) = ctx.saved_tensors
        return _added_up(gradient, event, ctx.events), None


def largest_of(values: Tensor, event: Tensor, kept: Tensor) -> Tensor:
    """Take the largest value of each event, feature by feature: [B, H]."""
    largest: Tensor = _Largest.apply(values, event, len(kept))  # type: ignore[no-untyped-call]
    return largest


class _Largest(torch.autograd.Function):
    """Maximum whose gradient goes to the muons that reach it.

    torch's own backward also counts ties, which costs more than the forward pass; here muons that tie
    (identical ones) each get the gradient. In bfloat16 different muons tie, so there they share it.
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
            ties = _added_up(reached, event, len(largest)) if values.dtype == torch.bfloat16 else None
        gradient = gradient if ties is None else gradient / ties
        return gradient.index_select(0, event).mul_(reached), None, None


class Pooled(NamedTuple):
    """The muons of each event, pooled: [B, H] each, in float32."""

    mean: Tensor
    largest: Tensor


def pooled(x: Tensor, event: Tensor, kept: Tensor) -> Pooled:
    """Pool muons by mean and maximum."""
    return Pooled(mean_of(x, event, kept), largest_of(x, event, kept).float())
