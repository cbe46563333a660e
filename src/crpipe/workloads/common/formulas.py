"""Functions of float32 tensors whose results do not depend on the version of the C library.

torch computes most functions with vectors of its own library, also at the end of a tensor. For the few here
it calls libm for elements that do not fill a vector, and glibc changed those in 2.41 (docs/weeks.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_VECTORS = 64  # elements that fill the vectors of one turn of torch's loop, on any processor


def softplus(x: Tensor) -> Tensor:
    """Compute log(1 + exp(x))."""
    return x.clamp_min(0.0) + torch.log1p(torch.exp(-x.abs()))


def gelu(x: Tensor) -> Tensor:
    """Compute x Phi(x), Phi the integral of the normal density.

    torch's own where it has no such ends: on a GPU, in bfloat16, in a compiled or exported graph.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.gelu(x)
    return _Gelu.apply(x)  # type: ignore[no-untyped-call]


class _Gelu(torch.autograd.Function):
    """torch's own kernels for what fills the vectors of every thread, and the formula for the rest.

    The formula for all would take twice as long.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        flat, body = x.view(-1), _whole_vectors(x)
        rest = flat[body:]
        return torch.cat([functional.gelu(flat[:body]), rest * _share(rest)]).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        flat, grad, body = x.view(-1), gradient.reshape(-1), _whole_vectors(x)
        rest = flat[body:]
        slope = _share(rest) + rest * torch.exp(-0.5 * rest * rest) / math.sqrt(2 * math.pi)
        vectorised = torch.ops.aten.gelu_backward(grad[:body], flat[:body])
        return torch.cat([vectorised, grad[body:] * slope]).view_as(x)


def _share(x: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.erf(x * math.sqrt(0.5))


def _whole_vectors(x: Tensor) -> int:
    """Count the elements that torch's threads divide into whole vectors."""
    return x.numel() - x.numel() % (_VECTORS * torch.get_num_threads())


class Gelu(nn.Module):
    """The same as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to each element."""
        return gelu(x)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Compute the angle of a point, in float64; for numbers of events, not of items."""
    return torch.atan2(y.double(), x.double()).to(y.dtype)
