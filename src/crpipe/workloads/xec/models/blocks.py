"""Building blocks: ConvNeXt V2 blocks on grids and on hexagons, and a transformer block over a few tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from crpipe.workloads.formulas import gelu

_KERNEL = 7
_WIDER = 4
_SMALL = 1e-6


class ResponseNorm(nn.Module):
    """Global response normalisation (ConvNeXt V2): channels compete by their norm over all places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [B, places, channels]."""
        strength = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        share = strength / (strength.mean(dim=2, keepdim=True) + _SMALL)
        return torch.addcmul(self.shift, x, 1 + self.gain * share)


class Mixer(nn.Module):
    """The part that both blocks share: norm, wider layer, response norm, and back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.wider = nn.Linear(channels, _WIDER * channels)
        self.response = ResponseNorm(_WIDER * channels)
        self.back = nn.Linear(_WIDER * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the channels of each place: [B, places, channels]."""
        found: Tensor = self.back(self.response(gelu(self.wider(self.norm(x)))))
        return found


class GridBlock(nn.Module):
    """A ConvNeXt V2 block on a grid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(channels, channels, _KERNEL, padding=_KERNEL // 2, groups=channels)
        self.mixer = Mixer(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x [B, rows, columns, channels]."""
        spread = self.around(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        found: Tensor = x + self.mixer(spread.flatten(1, 2)).view(x.shape)
        return found


class HexBlock(nn.Module):
    """The same on a hexagonal face: each sensor, and its neighbours by direction, with a weight for each.

    neighbours: [places, 6], ``places`` where there is none.
    """

    def __init__(self, channels: int, neighbours: Tensor) -> None:
        super().__init__()
        self.register_buffer("neighbours", neighbours, persistent=False)
        bound = (neighbours.shape[1] + 1) ** -0.5
        self.own = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))
        self.other = nn.Parameter(torch.empty(neighbours.shape[1], channels).uniform_(-bound, bound))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.mixer = Mixer(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x [B, places, channels]."""
        padded = functional.pad(x, (0, 0, 0, 1))
        spread = x * self.own + self.shift
        for direction, weight in enumerate(self.other.unbind()):
            index = self.get_buffer("neighbours")[:, direction]
            spread = torch.addcmul(spread, padded.index_select(1, index), weight)
        found: Tensor = x + self.mixer(spread)
        return found


class TokenBlock(nn.Module):
    """Attention between the tokens of an event and a feed-forward network, each after a norm."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.wider = nn.Linear(width, feedforward)
        self.back = nn.Linear(feedforward, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x [B, tokens, width]."""
        split = self.inward(self.before(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.drop(self.outward(mixed.transpose(1, 2).flatten(2)))
        found: Tensor = x + self.drop(self.back(gelu(self.wider(self.after(x)))))
        return found
