"""The encoder that all models share: six faces become six tokens, which a transformer fuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from crpipe.workloads.xec.models.blocks import GridBlock, HexBlock, TokenBlock
from crpipe.workloads.xec.models.codec import Codec
from crpipe.workloads.xec.models.faces import hex_neighbours, images, pooling
from crpipe.workloads.xec.models.features import CHANNELS, SUMS, LightSums, SensorFeatures
from crpipe.workloads.xec.sensors import HEXES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from crpipe.workloads.xec.models.faces import Image
    from crpipe.workloads.xec.options import EncoderOptions

SIDE = 4  # a face is averaged over 4 by 4 parts
TOKENS = 7  # six faces, and the sums of the event


class Encoded(NamedTuple):
    """What the encoder finds.

    tokens: [B, 7, width], the faces in the order of FACES, then the event. sensors: [B, 4760, 4] the encoded
    input. grids: for each rectangular face [B, rows, columns, channels] before it is halved. nodes: for top
    and bottom [B, 73, channels]. sums: simple quantities.
    """

    tokens: Tensor
    sensors: Tensor
    grids: list[Tensor]
    nodes: list[Tensor]
    sums: LightSums


class SensorEncoder(nn.Module):
    """Shared blocks on the four rectangular faces, hexagonal ones on top and bottom, and fusion."""

    def __init__(self, options: EncoderOptions, places: NDArray[np.float64], light: float) -> None:
        """places: [4760, 6]. light: sum of the photons of a usual event."""
        super().__init__()
        self.features = SensorFeatures(Codec(options.codec), places, light)
        self.images: list[Image] = images(places, 2 * options.patch)
        # Plain numbers: torch.compile takes shapes of numpy arrays for variables, and fails over them.
        self.grids = {image.name: image.grid(options.patch) for image in self.images}
        wide = 2 * options.channels
        self.stem = nn.Linear(CHANNELS * options.patch**2, options.channels)
        self.stem_norm = nn.LayerNorm(options.channels)
        self.first = nn.Sequential(*(GridBlock(options.channels) for _ in range(options.blocks[0])))
        self.halve = nn.Linear(4 * options.channels, wide)
        self.second = nn.Sequential(*(GridBlock(wide) for _ in range(options.blocks[1])))
        self.token_norm = nn.LayerNorm(wide)
        self.to_token = nn.Linear(wide * SIDE**2, options.width)
        self.place = nn.ParameterDict()
        for image in self.images:
            rows, columns = self.grids[image.name]
            self.place[image.name] = nn.Parameter(0.02 * torch.randn(rows, columns, options.channels))
            self.register_buffer(
                f"patches_{image.name}", torch.from_numpy(image.patches(options.patch)), False
            )
            weights = torch.from_numpy(pooling(rows // 2, columns // 2, SIDE))
            self.register_buffer(f"pooling_{image.name}", weights, False)
        neighbours = torch.from_numpy(hex_neighbours(places))
        for face in HEXES:
            self.register_buffer(f"ids_{face.name}", torch.from_numpy(face.ids), False)
        self.hex_stem = nn.Linear(CHANNELS, options.channels)
        self.hex_place = nn.Parameter(0.02 * torch.randn(len(neighbours), options.channels))
        self.hexes = nn.Sequential(
            *(HexBlock(options.channels, neighbours) for _ in range(options.hex_blocks))
        )
        self.hex_norm = nn.LayerNorm(options.channels)
        self.hex_token = nn.Linear(options.channels, options.width)
        self.event = nn.Linear(SUMS, options.width)
        self.kind = nn.Parameter(0.02 * torch.randn(TOKENS, options.width))
        self.fusion = nn.Sequential(
            *(
                TokenBlock(options.width, options.heads, options.feedforward, options.dropout)
                for _ in range(options.layers)
            )
        )
        self.norm = nn.LayerNorm(options.width)

    def forward(self, items: Tensor) -> Encoded:
        """Encode items [B, 4760, 4] of the layout."""
        sensors, sums = self.features(items)
        padded = functional.pad(sensors, (0, 0, 0, 1))
        grids = [self._grid(name, padded) for name in self.grids]
        nodes = [
            self.hexes(
                self.hex_stem(sensors.index_select(1, self.get_buffer(f"ids_{face.name}"))) + self.hex_place
            )
            for face in HEXES
        ]
        tokens = [self._token(name, grid) for name, grid in zip(self.grids, grids, strict=True)]
        tokens += [self.hex_token(self.hex_norm(node.mean(dim=1))) for node in nodes]
        tokens.append(self.event(sums.vector))
        fused = self.norm(self.fusion(torch.stack(tokens, dim=1) + self.kind))
        return Encoded(fused, sensors, grids, nodes, sums)

    def _grid(self, name: str, padded: Tensor) -> Tensor:
        """Embed the patches of a face and transform them: [B, rows, columns, channels]."""
        index = self.get_buffer(f"patches_{name}")
        cut = padded.index_select(1, index.flatten()).view(-1, *index.shape, CHANNELS)
        embedded = self.stem_norm(self.stem(cut.flatten(2)))
        rows, columns = self.grids[name]
        cells = embedded.view(-1, rows, columns, embedded.shape[2])
        found: Tensor = self.first(cells + self.place[name])
        return found

    def _token(self, name: str, grid: Tensor) -> Tensor:
        """Halve a grid, transform it, and average it over its parts: [B, width]."""
        rows, columns, channels = grid.shape[1:]
        quads = grid.view(-1, rows // 2, 2, columns // 2, 2, channels).permute(0, 1, 3, 2, 4, 5)
        small = self.second(self.halve(quads.flatten(3)))
        averaged = self.get_buffer(f"pooling_{name}") @ self.token_norm(small.flatten(1, 2))
        found: Tensor = self.to_token(averaged.flatten(1))
        return found
