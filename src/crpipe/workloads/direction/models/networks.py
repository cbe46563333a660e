"""Networks over the sensors of an event: a transformer and a DeepSet, both over padded groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from crpipe.workloads.formulas import Gelu

if TYPE_CHECKING:
    from crpipe.workloads.direction.options import DeepSetOptions, FlatTransformerOptions


def _normed(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:])


class Attention(nn.Module):
    """Attention between the tokens of an event, with queries and keys of length one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.outward.weight)  # a block begins as the identity

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Attend: x [E, L, width], there [E, L] true for tokens, false for padding."""
        events, tokens, width = x.shape
        split = self.inward(x).view(events, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        # In bfloat16 a norm is float32 again; the attention wants one type.
        query, key = _normed(query).to(value.dtype), _normed(key).to(value.dtype)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=there[:, None, None, :])
        found: Tensor = self.outward(mixed.transpose(1, 2).reshape(events, tokens, width))
        return found


class FeedForward(nn.Module):
    """Two layers with the square of a rectifier between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inward = nn.Linear(width, hidden, bias=False)
        self.outward = nn.Linear(hidden, width, bias=False)
        nn.init.zeros_(self.outward.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token: [E, L, width]."""
        found: Tensor = self.outward(functional.relu(self.inward(x)).square())
        return found


class SensorTransformer(nn.Module):
    """One token for each sensor and one for the event, whose last state gives the direction."""

    def __init__(self, features: int, options: FlatTransformerOptions) -> None:
        super().__init__()
        width = options.width
        self.enter = nn.Linear(features, width)
        self.event = nn.Parameter(0.02 * torch.randn(width))
        self.attention = nn.ModuleList(Attention(width, options.heads) for _ in range(options.layers))
        self.feed_forward = nn.ModuleList(
            FeedForward(width, options.feedforward) for _ in range(options.layers)
        )
        self.head = nn.Sequential(nn.Linear(width, options.head), Gelu(), nn.Linear(options.head, 3))

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Give a vector for each event: x [E, L, features], there [E, L] false for padding; [E, 3]."""
        own = self.event.expand(x.shape[0], 1, -1)
        x = torch.cat([own, _normed(self.enter(x))], dim=1)
        there = torch.cat([there.new_ones(x.shape[0], 1), there], dim=1)
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = x + attention(_normed(x), there)
            x = x + feed_forward(_normed(x))
        found: Tensor = self.head(_normed(x[:, 0]))
        return found


class SensorDeepSet(nn.Module):
    """Each sensor by itself, then each beside the sum of all, then the sum alone."""

    def __init__(self, features: int, options: DeepSetOptions) -> None:
        super().__init__()
        hidden = options.hidden
        self.each = nn.Sequential(nn.Linear(features, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.beside = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.whole = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, 3))

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Give a vector for each event: x [E, L, features], there [E, L] false for padding; [E, 3]."""
        each = self.each(x)
        pooled = _pooled(each, there)
        both = torch.cat([each, pooled[:, None].expand(-1, each.shape[1], -1)], dim=2)
        found: Tensor = self.whole(_pooled(self.beside(both), there))
        return found


def _pooled(x: Tensor, there: Tensor) -> Tensor:
    """Give mean and maximum over the sensors of each event: [E, 2 x hidden]."""
    shown = there[:, :, None]
    mean = torch.where(shown, x, 0.0).sum(dim=1) / there.sum(dim=1, keepdim=True)
    return torch.cat([mean, torch.where(shown, x, -torch.inf).amax(dim=1)], dim=1)
