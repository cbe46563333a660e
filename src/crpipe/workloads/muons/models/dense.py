"""Linear layers, with what is added to them and the rectifier after them in one pass where that is possible.

On a CPU oneDNN computes them, in float32 and under autocast to bfloat16: torch's own products in float32 come
from MKL, which uses half of the vector width of other makers' processors. Elsewhere plain torch does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu, linear

from crpipe.loading.shapes import rounded

if TYPE_CHECKING:
    from torch import Tensor

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
    """Give what oneDNN multiplies here: float32, bfloat16 or, None, nothing."""
    if not is_fused(x):
        return None
    if torch.is_autocast_enabled("cpu"):
        rough = torch.get_autocast_dtype("cpu") == torch.bfloat16
        return torch.bfloat16 if rough and torch.ops.mkldnn._is_mkldnn_bf16_supported() else None  # noqa: SLF001
    return torch.float32 if x.dtype == torch.float32 else None


def dense(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, onto: Tensor | None = None, rectify: bool = False
) -> Tensor:
    """Give ``x @ weight.T + bias + onto``, rectified if asked for: [M, N].

    x: [M, K]. weight: [N, K]. onto: [M, N]; without ``bias`` it may be overwritten.
    """
    kind = _kind_of_products(x)
    if kind:
        made: Tensor = _Dense.apply(x, weight, bias, onto, rectify, kind)  # type: ignore[no-untyped-call]
        return made
    made = linear(x, weight, bias) if onto is None else _onto(onto, x, weight, bias)
    return leaky_relu(made, SLOPE, inplace=True) if rectify else made


def residual(layer: nn.Linear, x: Tensor, *, rectify: bool = False) -> Tensor:
    """Give ``layer(x) + x``, rectified if asked for."""
    if torch.is_autocast_enabled(x.device.type):  # bfloat16 cannot hold a small weight plus 1
        return dense(x, layer.weight, layer.bias, onto=x, rectify=rectify)
    one = torch.eye(layer.weight.shape[0], device=x.device, dtype=layer.weight.dtype)
    return dense(x, layer.weight + one, layer.bias, rectify=rectify)


class Dense(nn.Linear):
    """A linear layer whose products are those of this module."""

    def forward(self, x: Tensor) -> Tensor:
        """Give ``x @ weight.T + bias``."""
        return dense(x, self.weight, self.bias)


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
        made = _product(x, weight, _as(kind, bias), onto, rectify=rectify)
        ctx.save_for_backward(x, weight, *([made] if rectify else []))
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *made = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, wants_onto, *_ = ctx.needs_input_grad
        gradient = gradient.contiguous()
        if ctx.rectified:
            gradient = torch.ops.aten.leaky_relu_backward(gradient, made[0], SLOPE, self_is_result=True)
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
    """Give the gradients of a layer's weight and, where it costs nothing, of its bias."""
    if x.dtype == torch.bfloat16:  # the sum over a piece is rounded to bfloat16, the sum of pieces is not
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = torch.zeros(len(weight))
        for rows, known in zip(torch.split(gradient, _PIECE), torch.split(x, _PIECE), strict=True):
            of_weight += rows.t() @ known
            of_bias += rows.sum(0)
        return of_weight, of_bias
    if not _is_worth_it(x, weight):
        return gradient.t() @ x, None
    of_weight, of_bias = torch.zeros_like(weight), weight.new_zeros(len(weight))
    for piece in zip(torch.split(gradient, _PIECE), torch.split(x, _PIECE), strict=True):
        copies = (rows.contiguous().to_mkldnn() for rows in piece)
        found = torch.ops.aten.mkldnn_linear_backward_weights(*copies, weight, bias_defined=True)
        of_weight += found[0]
        of_bias += found[1]
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
        made = linear(x, weight, bias)
        made = made if onto is None else made.add_(onto)
    elif onto is None:
        after, numbers = ("leaky_relu", [SLOPE]) if rectify else ("none", [])
        return cast("Tensor", linear_pointwise(x, weight, bias, after, numbers, ""))
    else:
        made = linear_pointwise.binary(x, onto, weight, bias, "add")
    return leaky_relu(made, SLOPE, inplace=True) if rectify else made
