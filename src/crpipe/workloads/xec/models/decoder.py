"""Decoders of the faces: from the encoder's tokens and grids back to photons and times of each sensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from crpipe.workloads.common.formulas import gelu
from crpipe.workloads.common.regression import begin_at_zero
from crpipe.workloads.xec.layout import PHOTONS_VALID, TIME_VALID
from crpipe.workloads.xec.models.encoder import (
    GridBlock,
    HexBlock,
    SensorEncoder,
    cells_of_sensors,
    hex_neighbours,
)
from crpipe.workloads.xec.models.features import CHANNELS
from crpipe.workloads.xec.sensors import FACES, HEXES, neighbours

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from crpipe.workloads.xec.models.encoder import Encoded, Image
    from crpipe.workloads.xec.options import MaskedOptions

NEIGHBOURS = 8
OUTPUTS = 2  # photons and time
LIGHT_BINS = 10  # of the logarithm of an event's light, for model.reweight_light


class Found(NamedTuple):
    """What a masked model finds, for all sensors of an event: encoded, and as photons and ns; [B, 4760]."""

    photons_encoded: Tensor
    time_encoded: Tensor
    photons: Tensor
    time_ns: Tensor
    expected_ns: Tensor


class MaskedModel(nn.Module):
    """Encoder, and a decoder for each face; it corrects the mean of the nearest visible sensors."""

    def __init__(self, options: MaskedOptions, places: NDArray[np.float64], light: float) -> None:
        super().__init__()
        self.encoder = SensorEncoder(options, places, light)
        self.register_buffer(
            "near", torch.from_numpy(neighbours(places[:, :3], NEIGHBOURS)), persistent=False
        )
        self.register_buffer(
            "cells", torch.from_numpy(cells_of_sensors(self.encoder.images)), persistent=False
        )
        self.grids = nn.ModuleDict({image.name: GridDecoder(options, image) for image in self.encoder.images})
        table = torch.from_numpy(hex_neighbours(places))
        self.hexes = nn.ModuleDict({face.name: HexDecoder(options, table) for face in HEXES})
        if options.balance == "learned":
            names = ("photons", "time") if options.time_weight else ("photons",)
            zeros = {name: nn.Parameter(torch.zeros(())) for name in names}
            self.log_variance = nn.ParameterDict(zeros)
        if options.reweight_light:
            self.register_buffer("light_from", torch.zeros(2))  # lowest logarithm, and width of a bin
            self.register_buffer("light_weight", torch.ones(LIGHT_BINS))

    def forward(self, items: Tensor) -> Found:
        """Find all sensors of items [B, 4760, 4] from those that are valid there."""
        encoded = self.encoder(items)
        simple = self.simple(encoded.sensors)
        seen = functional.pad(torch.cat([encoded.sensors, simple], dim=2), (0, 0, 0, 1))
        cells = []
        for name, grid in zip(self.grids, encoded.grids, strict=True):
            cells.append(self.grids[name](seen, grid, self._token(encoded, name)))
        for face, nodes in zip(HEXES, encoded.nodes, strict=True):
            inputs = seen.index_select(1, self.encoder.get_buffer(f"ids_{face.name}"))
            cells.append(self.hexes[face.name](inputs, nodes, self._token(encoded, face.name)))
        step = torch.cat(cells, dim=1).index_select(1, self.get_buffer("cells")).float()
        photons, time = (simple + step).unbind(dim=2)
        codec, expected = self.encoder.features.codec, encoded.sums.expected_ns
        return Found(
            photons, time, codec.decode_photons(photons), codec.decode_time(time, expected), expected
        )

    def _token(self, encoded: Encoded, name: str) -> Tensor:
        return encoded.tokens[:, FACES.index(name)]

    def simple(self, sensors: Tensor) -> Tensor:
        """Average photons and times, encoded, over the nearest sensors that have them: [B, 4760, 2]."""
        near = self.get_buffer("near")
        around = sensors.index_select(1, near.flatten()).view(-1, *near.shape, CHANNELS)
        flags = around[..., PHOTONS_VALID : TIME_VALID + 1]
        return (around[..., :OUTPUTS] * flags).sum(dim=2) / flags.sum(dim=2).clamp_min(1.0)


class GridDecoder(nn.Module):
    """Decodes a rectangular face: patches are unfolded into cells, then refined beside the input."""

    def __init__(self, options: MaskedOptions, image: Image) -> None:
        super().__init__()
        self.shape: tuple[int, ...] = image.cells.shape
        self.grid = image.grid(options.patch)
        self.register_buffer("cells", torch.from_numpy(image.cells.ravel()), persistent=False)
        self.patch = options.patch
        self.channels = options.decoder
        self.token = nn.Linear(options.width, options.channels)
        self.block = GridBlock(options.channels)
        self.unfold = nn.Linear(options.channels, options.decoder * options.patch**2)
        self.refine = nn.Conv2d(options.decoder + CHANNELS + OUTPUTS, options.decoder, 3, padding=1)
        self.out = begin_at_zero(nn.Conv2d(options.decoder, OUTPUTS, 1))

    def forward(self, seen: Tensor, grid: Tensor, token: Tensor) -> Tensor:
        """Return corrections for all cells of a face: [B, cells, 2].

        seen: [B, 4761, 6] encoded input and simple estimate, zeros behind the last. grid: [B, rows, columns,
        channels] of the encoder. token: [B, width].
        """
        x = self.block(grid + self.token(token)[:, None, None])
        rows, columns = self.grid
        x = self.unfold(x).view(-1, rows, columns, self.patch, self.patch, self.channels)
        fine = x.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        inputs = seen.index_select(1, self.get_buffer("cells")).transpose(1, 2)
        inputs = inputs.reshape(-1, seen.shape[2], *self.shape)
        out: Tensor = self.out(gelu(self.refine(torch.cat([fine, inputs], dim=1))))
        return out.flatten(2).transpose(1, 2)


class HexDecoder(nn.Module):
    """Decodes a hexagonal face."""

    def __init__(self, options: MaskedOptions, neighbours_of: Tensor) -> None:
        super().__init__()
        self.token = nn.Linear(options.width, options.channels)
        self.own = nn.Linear(CHANNELS + OUTPUTS, options.channels)
        self.block = HexBlock(options.channels, neighbours_of)
        self.norm = nn.LayerNorm(options.channels)
        self.out = begin_at_zero(nn.Linear(options.channels, OUTPUTS))

    def forward(self, seen: Tensor, nodes: Tensor, token: Tensor) -> Tensor:
        """Return corrections: [B, 73, 2] from seen [B, 73, 6], nodes [B, 73, channels], token [B, width]."""
        x = self.block(nodes + self.own(seen) + self.token(token)[:, None])
        return self.out(self.norm(x))
