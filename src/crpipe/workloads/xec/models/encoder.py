"""The encoder that all models share: six faces become six tokens, which a transformer fuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from crpipe.workloads.common import elementary
from crpipe.workloads.common.formulas import gelu
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.models.features import CHANNELS, SUMS, Codec, LightSums, SensorFeatures
from crpipe.workloads.xec.sensors import DS, FACE_IDS, HEXES, INNER, US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.xec.options import EncoderOptions

# Building blocks: ConvNeXt V2 blocks on grids and on hexagons, and a transformer block over a few tokens.

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
        return self.back(self.response(gelu(self.wider(self.norm(x)))))


class GridBlock(nn.Module):
    """A ConvNeXt V2 block on a grid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(channels, channels, _KERNEL, padding=_KERNEL // 2, groups=channels)
        self.mixer = Mixer(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Transform x [B, rows, columns, channels]."""
        spread = self.around(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x + self.mixer(spread.flatten(1, 2)).view(x.shape)


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
        return x + self.mixer(spread)


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
        return x + self.drop(self.back(gelu(self.wider(self.after(x)))))


# The sensors as images: which sensor is in which cell of which face, and which are beside each other.

NOTHING = SENSORS  # the number of a cell without a sensor
RECTANGLES = ("inner", "outer", "us", "ds")
HEX_NEIGHBOURS = 6
_OUTER_CELLS = (48, 18)  # four for each sensor of the outer face, one or two for those of its dense middle


@dataclass(frozen=True, slots=True)
class Image:
    """A rectangular face: the sensor of each cell, [rows, columns], NOTHING in the margin."""

    name: str
    cells: NDArray[np.int64]

    def patches(self, patch: int) -> NDArray[np.int64]:
        """Cut the face into squares of cells: [P, patch · patch], row after row."""
        rows, columns = self.grid(patch)
        cut = self.cells.reshape(rows, patch, columns, patch).swapaxes(1, 2)
        return cut.reshape(rows * columns, patch * patch)

    def grid(self, patch: int) -> tuple[int, int]:
        """Return rows and columns of patches."""
        rows, columns = self.cells.shape
        return rows // patch, columns // patch


def images(places: NDArray[np.float64], multiple: int) -> list[Image]:
    """Lay out the four rectangular faces, with margins so that ``multiple`` divides rows and columns.

    places: [4760, 6]. A cell of the outer face, whose sensors are not evenly spaced, has the nearest one.
    """
    outer = _nearest(places, FACE_IDS["outer"], _OUTER_CELLS)
    cells = {"inner": INNER.ids, "outer": outer, "us": US.ids, "ds": DS.ids}
    return [Image(name, _padded(cells[name], multiple)) for name in RECTANGLES]


def _padded(ids: NDArray[np.int64], multiple: int) -> NDArray[np.int64]:
    margins = [(0, -length % multiple) for length in ids.shape]
    return np.pad(ids, margins, constant_values=NOTHING)


def _nearest(
    places: NDArray[np.float64], ids: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the nearest of the sensors ``ids`` for each cell of an even grid over them: ``shape``."""
    angle = elementary.arctan2(places[ids, 1], -places[ids, 0])
    around = angle * np.hypot(places[ids, 0], places[ids, 1])
    along = places[ids, 2]
    # The outermost sensors fill two cells: the grid ends half a cell beyond their centres.
    v = _centres(around.max(), around.min(), shape[0])
    u = _centres(along.min(), along.max(), shape[1])
    apart = np.square(v[:, None, None] - around) + np.square(u[None, :, None] - along)
    return ids[apart.argmin(axis=2)]


def _centres(first: float, last: float, cells: int) -> NDArray[np.float64]:
    """Spread cells so that the first two and the last two lie evenly about the outermost sensors."""
    pitch = (last - first) / (cells // 2 - 1)
    return np.linspace(first - pitch / 4, last + pitch / 4, cells)


def hex_neighbours(places: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the six neighbours of each sensor of a hexagonal face, by direction: [73, 6], 73 for none.

    places: [4760, 6]. Top and bottom mirror each other, so one table serves both. Found from the places: rows
    of different lengths are shifted in different ways.
    """
    top = places[HEXES[0].ids]
    flat = np.stack([np.hypot(top[:, 0], top[:, 1]), top[:, 2]], axis=1)
    apart = flat[None] - flat[:, None]
    distance = np.hypot(apart[..., 0], apart[..., 1])
    np.fill_diagonal(distance, np.inf)
    pitch = np.median(distance.min(axis=1))
    neighbours = np.full((len(flat), HEX_NEIGHBOURS), len(flat), np.int64)
    sensor, other = np.nonzero(distance < 1.4 * pitch)
    angle = elementary.arctan2(apart[sensor, other, 0], apart[sensor, other, 1])
    direction = np.round(angle / (np.pi / 3)).astype(np.int64) % HEX_NEIGHBOURS
    neighbours[sensor, direction] = other
    return neighbours


def cells_of_sensors(faces: list[Image]) -> NDArray[np.int64]:
    """Return the cell of each sensor among those of all faces, end to end, then top and bottom: [4760].

    Of several cells with the same sensor the first counts.
    """
    all_cells = np.concatenate([*(face.cells.ravel() for face in faces), *(face.ids for face in HEXES)])
    ids, first = np.unique(all_cells, return_index=True)
    return first[ids < SENSORS]


def pooling(rows: int, columns: int, side: int) -> NDArray[np.float32]:
    """Return the weights that average a grid over side by side parts, which overlap where they have to.

    [side · side, rows · columns], each row sums to 1.
    """
    down, across = _parts(rows, side), _parts(columns, side)
    weights = down[:, None, :, None] * across[None, :, None, :]
    return weights.reshape(side * side, rows * columns).astype(np.float32)


def _parts(length: int, side: int) -> NDArray[np.float64]:
    weights = np.zeros((side, length))
    for part in range(side):
        first, last = part * length // side, -(-(part + 1) * length // side)
        weights[part, first:last] = 1 / (last - first)
    return weights


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
        return self.first(cells + self.place[name])

    def _token(self, name: str, grid: Tensor) -> Tensor:
        """Halve a grid, transform it, and average it over its parts: [B, width]."""
        rows, columns, channels = grid.shape[1:]
        quads = grid.view(-1, rows // 2, 2, columns // 2, 2, channels).permute(0, 1, 3, 2, 4, 5)
        small = self.second(self.halve(quads.flatten(3)))
        averaged = self.get_buffer(f"pooling_{name}") @ self.token_norm(small.flatten(1, 2))
        return self.to_token(averaged.flatten(1))
