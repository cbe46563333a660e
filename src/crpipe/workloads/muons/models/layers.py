"""Layers for ragged events: mean and maximum of their muons, dense layers, and shapes that stay the same.

Muons are in the order of their events.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, leaky_relu, linear

from crpipe.loading.microbatch import rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.train.workload import Batch

# Linear layers, with what is added to them and the rectifier after them in one pass where that is possible.
#
# On a CPU oneDNN computes them, in float32 and under autocast to bfloat16: torch's own products in float32
# come from MKL, which uses half of the vector width of other makers' processors. Elsewhere plain torch
# does.

SLOPE = 0.2
# Products and sums of a layer; below, oneDNN saves less than each call of it costs. For each new number of
# rows it makes a program, in about 0.4 ms, and keeps it: batches of training come in few shapes.
_WORTH_IT = 5e6
_WORTH_A_PROGRAM = 1e8  # the same for a number of rows that is no such shape, as outside of training
# Rows. For the gradient of weights oneDNN needs copies: those of a piece stay in the caches.
_PIECE = 1 << 13


def is_fused(x: Tensor) -> bool:
    """Report whether the CPU's fused passes apply to a tensor with rows, here and now.

    They do not in graphs that are compiled or exported.
    """
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.shape[0] > 0
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


def _kind_of_products(x: Tensor) -> torch.dtype | None:
    """Return what oneDNN multiplies here: float32, bfloat16 or, None, nothing."""
    if not is_fused(x):
        return None
    if torch.is_autocast_enabled("cpu"):
        rough = torch.get_autocast_dtype("cpu") == torch.bfloat16
        return torch.bfloat16 if rough and torch.ops.mkldnn._is_mkldnn_bf16_supported() else None  # noqa: SLF001
    return torch.float32 if x.dtype == torch.float32 else None


def dense(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, onto: Tensor | None = None, rectify: bool = False
) -> Tensor:
    """Return ``x @ weight.T + bias + onto``, rectified if asked for: [M, N].

    x: [M, K]. weight: [N, K]. onto: [M, N]; without ``bias`` it may be overwritten.
    """
    kind = _kind_of_products(x)
    if kind:
        return _Dense.apply(x, weight, bias, onto, rectify, kind)  # type: ignore[no-untyped-call]
    output = linear(x, weight, bias) if onto is None else _onto(onto, x, weight, bias)
    return leaky_relu(output, SLOPE, inplace=True) if rectify else output


def residual(layer: nn.Linear, x: Tensor, *, rectify: bool = False) -> Tensor:
    """Return ``layer(x) + x``, rectified if asked for."""
    if torch.is_autocast_enabled(x.device.type):  # bfloat16 cannot hold a small weight plus 1
        return dense(x, layer.weight, layer.bias, onto=x, rectify=rectify)
    one = torch.eye(layer.weight.shape[0], device=x.device, dtype=layer.weight.dtype)
    return dense(x, layer.weight + one, layer.bias, rectify=rectify)


class Dense(nn.Linear):
    """A linear layer whose products are those of this module."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        return dense(x, self.weight, self.bias)


def silu_layers(*widths: int) -> nn.Sequential:
    """Stack dense layers from each width to the next, with SiLU after each."""
    return nn.Sequential(*(each for pair in pairwise(widths) for each in (Dense(*pair), nn.SiLU())))


def _onto(base: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Add to a tensor that nothing else needs: no pass of its own for the sum.

    Autocast leaves operations in place alone, so there the sum is a new tensor.
    """
    total = base if bias is None else base + bias
    if torch.is_autocast_enabled(base.device.type):
        return torch.addmm(total, x, weight.t())
    return total.addmm_(x, weight.t())


class _Dense(torch.autograd.Function):
    """Products in bfloat16 add up in float32, and weights get gradients in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        onto: Tensor | None,
        rectify: bool,
        kind: torch.dtype,
    ) -> Tensor:
        ctx.kinds = x.dtype, onto.dtype if onto is not None else None
        ctx.rectified, ctx.adds_x = rectify, onto is x
        x = x.to(kind)
        onto = x if ctx.adds_x else _as(kind, onto)
        weight = weight.to(kind)
        output = _product(x, weight, _as(kind, bias), onto, rectify=rectify)
        ctx.save_for_backward(x, weight, *([output] if rectify else []))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *outputs = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, wants_onto, *_ = ctx.needs_input_grad
        gradient = gradient.contiguous()
        if ctx.rectified:
            gradient = torch.ops.aten.leaky_relu_backward(gradient, outputs[0], SLOPE, self_is_result=True)
        of_weight, of_bias = _of_layer(gradient, x, weight) if wants_weight else (None, None)
        if wants_bias and of_bias is None:
            of_bias = gradient.sum(0)
        of_x = _product(gradient, weight.t(), onto=gradient if ctx.adds_x else None) if wants_x else None
        of_x_kind, of_onto_kind = ctx.kinds
        return (
            _as(of_x_kind, of_x),
            of_weight,
            of_bias if wants_bias else None,
            gradient.to(of_onto_kind) if wants_onto and not ctx.adds_x else None,
            None,
            None,
        )


def _is_worth_it(x: Tensor, weight: Tensor) -> bool:
    rows = x.shape[0]
    return rows * weight.numel() >= (_WORTH_IT if rounded(rows) == rows else _WORTH_A_PROGRAM)


def _as(kind: torch.dtype, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(kind)


def _of_layer(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of a layer's weight and, where it costs nothing, of its bias."""
    if x.dtype == torch.bfloat16:  # the sum over a piece is rounded to bfloat16, the sum of pieces is not
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = torch.zeros(len(weight))
        for rows, inputs in zip(torch.split(gradient, _PIECE), torch.split(x, _PIECE), strict=True):
            of_weight += rows.t() @ inputs
            of_bias += rows.sum(0)
        return of_weight, of_bias
    if not _is_worth_it(x, weight):
        return gradient.t() @ x, None
    of_weight, of_bias = torch.zeros_like(weight), weight.new_zeros(len(weight))
    for piece in zip(torch.split(gradient, _PIECE), torch.split(x, _PIECE), strict=True):
        copies = (rows.contiguous().to_mkldnn() for rows in piece)
        gradients = torch.ops.aten.mkldnn_linear_backward_weights(*copies, weight, bias_defined=True)
        of_weight += gradients[0]
        of_bias += gradients[1]
    return of_weight, of_bias


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    onto: Tensor | None = None,
    *,
    rectify: bool = False,
) -> Tensor:
    linear_pointwise = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - torch compiles to it; its version is pinned
    if x.dtype == torch.float32 and not _is_worth_it(x, weight):
        output = linear(x, weight, bias)
        output = output if onto is None else output.add_(onto)
    elif onto is None:
        after, numbers = ("leaky_relu", [SLOPE]) if rectify else ("none", [])
        return cast("Tensor", linear_pointwise(x, weight, bias, after, numbers, ""))
    else:
        output = linear_pointwise.binary(x, onto, weight, bias, "add")
    return leaky_relu(output, SLOPE, inplace=True) if rectify else output


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
    """Return each muon the values [B, H] of its event: [M, H]."""
    if is_fused(values):
        return _SpreadOut.apply(values, event)  # type: ignore[no-untyped-call]
    return values.index_select(0, event)


def sums_of(values: Tensor, event: Tensor, events: int) -> Tensor:
    """Add up the muons of each event, in float32: [B, H]."""
    if is_fused(values):
        return _Sums.apply(values, event, events)  # type: ignore[no-untyped-call]
    values = values.float()
    return values.new_zeros(events, values.shape[1]).index_add_(0, event, values)


def _added_up(values: Tensor, event: Tensor, events: int) -> Tensor:
    """Add up the muons of each event and round to the type of the values."""
    if is_fused(values) and values.dtype == torch.bfloat16:
        return _add_up(values, event, events)
    return sums_of(values, event, events).to(values.dtype)


def _add_up(values: Tensor, event: Tensor, events: int) -> Tensor:
    """Add muon after muon of an event, which is several times as fast on a CPU as adding by index.

    bfloat16 is added in float32 as well, and then rounded.
    """
    count = torch.bincount(event, minlength=events)
    rows = torch.arange(len(event))
    return embedding_bag(rows, values, count.cumsum(0) - count, mode="sum")


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
    """Return the largest value of each event, feature by feature: [B, H]."""
    return _Largest.apply(values, event, len(kept))  # type: ignore[no-untyped-call]


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


# Numbers of rows that repeat from batch to batch: events and items that count for nothing fill them up.

LEAST = 1024  # items; below, the products are so small that nothing is gained


def padding(events: int, items: int) -> NDArray[np.int64]:
    """Count the items of each event that is added to ``events`` with ``items`` in all: [D], each at least 1.

    With them both numbers are shapes. A single event stays alone (see gan.needed), and few items
    as they are. Example: 1,000 events with 2,000 items get 8 events (1,008) with 2 items each (2,016).
    """
    if events <= 1 or items < LEAST:
        return np.zeros(0, np.int64)
    added = rounded(events + 1) - events
    missing = rounded(items + added) - items
    return np.diff(np.arange(added + 1) * missing // added)


def padded_owner(event: NDArray[np.int64], events: int) -> NDArray[np.int64]:
    """Add the rows of ``padding`` to the event of each item, which are in 0..events-1: [M']."""
    more = padding(events, len(event))
    return np.concatenate([event, np.repeat(events + np.arange(len(more)), more)])


def weights(batch: Batch) -> Tensor:
    """Return what each event of a batch counts for: [B]; nothing for padding."""
    if "weight" not in batch:
        return batch["counts"]
    return batch["counts"] * batch["weight"].index_select(0, batch["order"])
