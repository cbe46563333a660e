"""The one place where photons and times become what a network sees, and come back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from crpipe.workloads.common import elementary
from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, Face
from crpipe.workloads.xec.scoring.baseline import DEEPEST_CM, LIGHT_CM_PER_NS, PITCH_AREA_CM2
from crpipe.workloads.xec.sensors import FACE_IDS, FACES, INNER_RADIUS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.workloads.xec.options import CodecOptions

CURVES = ("log1p", "sqrt", "linear")


class Codec(nn.Module):
    """Encodes photons and times; ``decode_*`` undoes ``encode_*`` for any finite value.

    Part of the model: its constants travel in the checkpoint and inside an exported graph, and weights that
    were trained with others are refused.
    """

    def __init__(self, options: CodecOptions) -> None:
        super().__init__()
        self.curve = options.photons
        self.scale = options.photons_scale
        self.most = options.photons_most
        self.time_scale = options.time_scale_ns
        constants = (float(CURVES.index(self.curve)), self.scale, self.most, self.time_scale)
        self.register_buffer("constants", torch.tensor(constants))
        self.register_load_state_dict_pre_hook(_refuse_others)  # type: ignore[no-untyped-call]

    def encode_photons(self, photons: Tensor) -> Tensor:
        """Encode photons, of any sign, as numbers that are 1 at photons_most."""
        if self.curve == "linear":
            return photons / self.most
        size = photons.abs()
        if self.curve == "sqrt":
            # The slope of a root at 0 is infinite, and infinity times the sign of 0 is not a number.
            share = (size / self.most).clamp_min(torch.finfo(torch.float32).tiny)
            return photons.sign() * share.sqrt()
        return photons.sign() * (size / self.scale).log1p() / math.log1p(self.most / self.scale)

    def decode_photons(self, encoded: Tensor) -> Tensor:
        """Return the photons that ``encode_photons`` encodes as these numbers."""
        if self.curve == "linear":
            return encoded * self.most
        size = encoded.abs()
        if self.curve == "sqrt":
            return encoded.sign() * size.square() * self.most
        return encoded.sign() * (size * math.log1p(self.most / self.scale)).expm1() * self.scale

    def encode_time(self, time: Tensor, start: Tensor) -> Tensor:
        """Encode times as distances from expected ones, ``start``, in ns both; shapes that broadcast."""
        return (time - start) / self.time_scale

    def decode_time(self, encoded: Tensor, start: Tensor) -> Tensor:
        """Return the times, in ns, that ``encode_time`` encodes as these numbers."""
        return encoded * self.time_scale + start


def _refuse_others(
    codec: Codec,
    state: dict[str, Tensor],
    prefix: str,
    _metadata: dict[str, Any],
    _strict: bool,
    _missing: list[str],
    _unexpected: list[str],
    error_msgs: list[str],
) -> None:
    """Refuse weights that were trained with other constants: they would see other numbers."""
    name, here = f"{prefix}constants", codec.get_buffer("constants")
    there = state.get(name)
    if there is not None and not torch.equal(there.to(here), here):
        curve, *numbers = there.tolist()
        error_msgs.append(
            f"the weights were trained with model.codec: {{photons: {CURVES[int(curve)]}, photons_scale: "
            f"{numbers[0]:g}, photons_most: {numbers[1]:g}, time_scale_ns: {numbers[2]:g}}}; "
            "give the same"
        )
        state[name] = here


# What the networks see of an event: encoded sensors, and a few sums that physicists would look at first.

CHANNELS = 4
U_CM, V_CM = 24.0, 68.0  # half lengths of the inner face
_RINGS_CM = (2.5, 4.0, 6.0, 9.0, 13.0, 20.0)  # about the centre of the light on the inner face
SUMS = 14 + len(FACES) + len(_RINGS_CM)
_DEPTH = PITCH_AREA_CM2 / (8 * math.pi)
_TIMED = 200.0  # sensors with a time in a bright event, about
_LEVELS = 8  # of light, from which as many sensors each are hidden
_ALIVE = 0.1  # share of the sensors of a face; with fewer, their mean says nothing about the others


class LightSums(NamedTuple):
    """Simple quantities of an event, [B] each, in the units of their names.

    light: sum of the photons above zero, at least 1, where dead sensors count as the mean of their face.
    u_cm, v_cm: centre on the inner face; w_cm: depth by the width of the light there (scoring.baseline.centre
    has the same, and why). start_ns: mean time, weighted by photons, less the way of the light from there; 0
    without times. expected_ns: [B, 4760] when light of that time would reach each sensor. vector: [B, SUMS]
    what a simple regression needs: these, the light of each face and in rings about the centre, its widths,
    and its largest sensor. shares: [B, 4760] of the light in each sensor.
    """

    light: Tensor
    u_cm: Tensor
    v_cm: Tensor
    w_cm: Tensor
    start_ns: Tensor
    expected_ns: Tensor
    vector: Tensor
    shares: Tensor


class SensorFeatures(nn.Module):
    """Encodes the items of an event."""

    def __init__(self, codec: Codec, places: NDArray[np.float64], light: float) -> None:
        """places: [4760, 6]. light: sum of the photons of a usual event."""
        super().__init__()
        self.codec = codec
        self.usual = light
        inner = torch.from_numpy(places[FACE_IDS["inner"]])
        around = torch.atan2(inner[:, 1], -inner[:, 0]) * INNER_RADIUS
        self.register_buffer("u", inner[:, 2].float(), persistent=False)
        self.register_buffer("v", around.float(), persistent=False)
        faces = torch.zeros(len(FACES), len(places))
        for number, name in enumerate(FACES):
            faces[number, FACE_IDS[name]] = 1.0
        self.register_buffer("faces", faces, persistent=False)
        self.register_buffer("places", torch.from_numpy(places[:, :3]).float(), persistent=False)

    def forward(self, sensors: Tensor) -> tuple[Tensor, LightSums]:
        """Encode sensors [B, 4760, 4] as in the layout: [B, 4760, 4] (photons, time, two flags), and sums."""
        photons, time, valid, timed = (sensors[..., column] for column in range(CHANNELS))
        sums = self.sums(photons, time, valid, timed)
        encoded = [
            self.codec.encode_photons(photons) * valid,
            self.codec.encode_time(time, sums.expected_ns) * timed,
            valid,
            timed,
        ]
        return torch.stack(encoded, dim=2), sums

    def sums(self, photons: Tensor, time: Tensor, valid: Tensor, timed: Tensor) -> LightSums:
        """Sum up the columns of the items, [B, 4760] each.

        No matrix product: with train.precision bfloat16 or train.tf32 it would keep three digits or four.
        """
        u, v = self.get_buffer("u"), self.get_buffer("v")
        shining = photons.clamp_min(0) * valid
        faces = self.get_buffer("faces").unbind()
        alive = torch.stack([(valid * face).sum(dim=1) / face.sum() for face in faces], dim=1)
        by_face = torch.stack([(shining * face).sum(dim=1) for face in faces], dim=1)
        by_face = (by_face / alive.clamp_min(_ALIVE)).clamp_min(1.0)
        light = by_face.sum(dim=1)
        inner = shining[:, : len(u)]
        weight = inner.square()
        total = weight.sum(dim=1).clamp_min(1.0)
        u_cm, v_cm = ((weight * place).sum(dim=1) / total for place in (u, v))
        flat = inner.sum(dim=1).clamp_min(1.0)
        w_cm = (_DEPTH * flat.square() / total).sqrt().clamp_max(DEEPEST_CM)
        spread_u, spread_v = (_spread(inner, place, flat) for place in (u, v))
        mean_u, mean_v = ((inner * place).sum(dim=1) / flat for place in (u, v))
        away = (u - u_cm[:, None]).square() + (v - v_cm[:, None]).square()
        rings = [(inner * (away < radius**2)).sum(dim=1) for radius in _RINGS_CM]
        near, middle = inner * (away < _RINGS_CM[2] ** 2), rings[2].clamp_min(1.0)
        clear, way = shining * timed, self._way(u_cm, v_cm, w_cm)
        start = (clear * (time - way)).sum(dim=1) / clear.sum(dim=1).clamp_min(1.0)
        most = inner.amax(dim=1).clamp_min(1.0)
        vector = [
            (light / self.usual).log(),
            u_cm / U_CM,
            v_cm / V_CM,
            w_cm / DEEPEST_CM,
            mean_u / U_CM,
            mean_v / V_CM,
            (near * u).sum(dim=1) / middle - u_cm,
            (near * v).sum(dim=1) / middle - v_cm,
            spread_u / U_CM,
            spread_v / V_CM,
            (most / light).sqrt(),
            (most / self.usual).log(),
            timed.sum(dim=1) / _TIMED,
            alive[:, 0],
            *(by_face / self.usual).log().unbind(dim=1),
            *(ring / flat for ring in rings),
        ]
        expected, shares = start[:, None] + way, shining / light[:, None]
        return LightSums(light, u_cm, v_cm, w_cm, start, expected, torch.stack(vector, dim=1), shares)

    def _way(self, u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Return how long light takes from a point, [B] each in cm, to all sensors: [B, 4760] in ns."""
        places = self.get_buffer("places")
        radius, angle = INNER_RADIUS + w, v / INNER_RADIUS
        point = torch.stack([-radius * angle.cos(), radius * angle.sin(), u], dim=1)
        x, y, z = ((point[:, None, axis] - places[:, axis]).square() for axis in range(3))
        return (x + y + z).clamp_min(1.0).sqrt() / LIGHT_CM_PER_NS


def _spread(light: Tensor, positions: Tensor, total: Tensor) -> Tensor:
    """Return width of light [B, n] over places [n], whose sum is total [B]: [B], in the unit of places."""
    mean = (light * positions).sum(dim=1) / total
    square = (light * positions.square()).sum(dim=1) / total
    return (square - mean.square()).clamp_min(0).add(1e-6).sqrt()


# Arrays of sensors for a batch: all of them, with some hidden, or with some dead.


def sensors_of(events: Events) -> NDArray[np.float32]:
    """View the items of N events as [N, 4760, 4], without a copy."""
    return events.items.reshape(len(events), SENSORS, -1)


def without_channels(
    sensors: NDArray[np.float32], share: float, seed: tuple[int, ...]
) -> NDArray[np.float32]:
    """Copy sensors [N, 4760, 4] with a random ``share`` of them dead: no photons, no time, not valid."""
    random = np.random.default_rng(seed).random(sensors.shape[:2], np.float32)
    return np.where((random < share)[..., None], np.float32(0), sensors)


def hidden_sensors(
    sensors: NDArray[np.float32], shares: NDArray[np.float64], seed: tuple[int, ...], *, flat: bool = False
) -> NDArray[np.bool_]:
    """Choose the share of the valid sensors that is hidden, exactly, event by event: [N, 4760].

    shares: [N]. At least one sensor of each event that has a valid one is chosen, and never all of several.
    flat: of each eighth of the logarithm of the photons as many as of the others, as long as there are some.
    """
    valid = sensors[..., PHOTONS_VALID] > 0
    count = valid.sum(axis=1)
    number = np.clip(np.round(shares * count), 1, np.maximum(count - 1, 1)).astype(np.int64)
    number = np.minimum(number, count)
    keys = np.random.default_rng(seed).random(sensors.shape[:2])
    if flat:  # of exponential times, the first ones: a sensor is drawn at the rate 1 / those of its light
        keys = -elementary.log1p(-keys) * _alike(sensors[..., PHOTONS], valid)
    keys[~valid] = np.inf
    order = np.sort(keys, axis=1)
    limit = np.take_along_axis(order, np.minimum(number, SENSORS - 1)[:, None], axis=1)
    return (keys < limit) & valid


def _alike(photons: NDArray[np.float32], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Count, for each sensor, the valid sensors of its event with as much light: [N, 4760]."""
    light = elementary.log10(np.maximum(photons, 1.0)) * valid
    level = (_LEVELS * light / np.maximum(light.max(axis=1, keepdims=True), 1e-6)).astype(np.int64)
    level = np.minimum(level, _LEVELS - 1) + _LEVELS * np.arange(len(light))[:, None]
    counts = np.bincount(level.ravel(), valid.ravel(), _LEVELS * len(light))
    return np.maximum(counts, 1.0)[level]


def hidden_by_face(
    sensors: NDArray[np.float32],
    shares: Mapping[Face, NDArray[np.float64]],
    seed: tuple[int, ...],
    *,
    flat: bool = False,
) -> NDArray[np.bool_]:
    """Choose a share, or from 1 on a number, of the valid sensors of each face that is named: [N, 4760].

    shares: [N] of each face; see ``hidden_sensors``.
    """
    hidden = np.zeros(sensors.shape[:2], bool)
    for face, share in shares.items():
        part = sensors[:, FACE_IDS[face]]
        alive = np.maximum((part[..., PHOTONS_VALID] > 0).sum(axis=1), 1)
        of_alive = np.where(share < 1, share, share / alive)
        hidden[:, FACE_IDS[face]] = hidden_sensors(part, of_alive, (*seed, FACES.index(face)), flat=flat)
    return hidden
