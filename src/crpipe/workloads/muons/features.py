"""Conditions and muons as numbers of order one, and back to physical units.

Every constant is fixed, so that all ranges, resumes and runs see the same features. They centre and scale
muons at 1 to 3 km of ice and need not be exact: first layers are affine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from crpipe.workloads.common import elementary
from crpipe.workloads.muons.layout import PRIMARY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

Kind = Literal["radial", "polar", "cartesian"]

CONDITIONS = 4
PEV_GEV = 1e6
KM_M = 1e3
SCALE_M = 500.0  # cartesian: the earlier system's unit of x and y
CORE_M = 0.01  # radial: keeps the logarithm of a muon on the axis finite
LEAST = 1e-4  # polar: the same, in GeV and in m
LEAST_GEV = 0.01  # keeps the logarithm finite
MUON_MASS_GEV = 0.10566

# log10(E/PeV), cos zenith, log10 A, depth/km: centre and scale
_CONDITION_CENTRE = np.array([-1.0, 0.6, 0.6, 1.9], np.float32)
_CONDITION_SCALE = np.array([1.5, 0.25, 0.65, 0.55], np.float32)
# log10 of energy in GeV, log10 of (radius + CORE_M) in m
_RADIAL_CENTRE = (2.2, 0.75)
RADIUS_SCALE = 0.5
_RADIAL_SCALE = (0.7, RADIUS_SCALE)
# log10 N of an event that has muons
_MULTIPLICITY_CENTRE = 1.0
_MULTIPLICITY_SCALE = 0.75

# What leaves decode() lies in the legal range of layout.MUON, whatever a network puts out.
_LOG_ENERGY = (-3.0, 12.0)
_LOG_RADIUS = (-2.0, 5.0)
_LOG_POLAR_ENERGY = (-8.0, 12.0)
_LOG_POLAR_RADIUS = (-8.0, 5.0)
_MOST_M = 1e5


def width(kind: Kind) -> int:
    """Count the features of a muon."""
    return 3 if kind == "cartesian" else 2


def conditions(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Turn the primaries' columns into conditions: [N, 4] float32."""
    energy, zenith, mass, depth = (columns[field.name] for field in PRIMARY)
    logarithms = elementary.log10(energy / PEV_GEV), elementary.log10(mass)
    raw = np.stack([logarithms[0], np.cos(zenith), logarithms[1], depth / KM_M], axis=1)
    return np.asarray((raw - _CONDITION_CENTRE) / _CONDITION_SCALE, np.float32)


def condition_tensor(primaries: Tensor) -> Tensor:
    """Compute ``conditions`` of tensors: [N, 4] in the order of layout.PRIMARY."""
    energy, zenith, mass, depth = primaries.unbind(1)
    raw = torch.stack(
        [torch.log10(energy / PEV_GEV), torch.cos(zenith), torch.log10(mass), depth / KM_M], dim=1
    )
    return (raw - torch.from_numpy(_CONDITION_CENTRE)) / torch.from_numpy(_CONDITION_SCALE)


def log_multiplicity(multiplicity: Tensor) -> Tensor:
    """Turn multiplicities, at least 1, into one more condition: [N, 1] float32."""
    return ((torch.log10(multiplicity.float()) - _MULTIPLICITY_CENTRE) / _MULTIPLICITY_SCALE)[:, None]


def encode(muons: NDArray[np.float32], kind: Kind) -> NDArray[np.float32]:
    """Turn muons [M, 3] (energy_gev, x_m, y_m) into features [M, 2], or [M, 3] (cartesian).

    Radial ones have edges, at the muon's mass and at ``CORE_M``; polar ones, of kinetic energy, have none.
    """
    if kind == "cartesian":
        log_pev = elementary.log10(np.maximum(muons[:, 0], LEAST_GEV)) - np.float32(elementary.log10(PEV_GEV))
        return np.stack([log_pev, muons[:, 1] / SCALE_M, muons[:, 2] / SCALE_M], axis=1).astype(np.float32)
    energy, radius = muons[:, 0], np.hypot(muons[:, 1], muons[:, 2])
    if kind == "radial":
        energy, radius = np.maximum(energy, LEAST_GEV), radius + CORE_M
    else:
        energy, radius = np.maximum(energy - np.float32(MUON_MASS_GEV), LEAST), np.maximum(radius, LEAST)
    raw = np.stack([elementary.log10(energy), elementary.log10(radius)], axis=1)
    scaled = (raw - np.array(_RADIAL_CENTRE, np.float32)) / np.array(_RADIAL_SCALE, np.float32)
    return np.asarray(scaled, np.float32)


def decode(features: Tensor, kind: Kind, generator: torch.Generator) -> Tensor:
    """Turn features back into muons [M, 3] (energy_gev, x_m, y_m) float32.

    Radial features hold no azimuth: it is drawn uniformly, which makes bundles isotropic by construction.
    """
    azimuth_uniform = None
    if kind != "cartesian":
        azimuth_uniform = torch.rand(len(features), generator=generator, device=features.device)
    return physical(features, kind, azimuth_uniform)


def physical(features: Tensor, kind: Kind, azimuth_uniform: Tensor | None) -> Tensor:
    """Turn features into muons [M, 3]; with azimuths ``azimuth_uniform`` [M] in 0..1, but for cartesian ones.

    The few muons that a network puts below the muon's mass are reflected at it: a smooth network cannot end
    as sharply as the spectrum of total energies does. Polar features are of kinetic energies.
    """
    edge = math.log10(MUON_MASS_GEV)
    if kind == "cartesian":
        log_energy = features[:, 0] + math.log10(PEV_GEV)
        x, y = (features[:, 1:] * SCALE_M).clamp(-_MOST_M, _MOST_M).unbind(1)
        return torch.stack([10.0 ** _above(log_energy, edge), x, y], dim=1).float()
    assert azimuth_uniform is not None
    log_energy = features[:, 0] * _RADIAL_SCALE[0] + _RADIAL_CENTRE[0]
    log_radius = features[:, 1] * _RADIAL_SCALE[1] + _RADIAL_CENTRE[1]
    if kind == "radial":
        energy = 10.0 ** _above(log_energy, edge)
        radius = (10.0 ** log_radius.clamp(*_LOG_RADIUS) - CORE_M).clamp_min(0.0)
    else:
        energy = 10.0 ** log_energy.clamp(*_LOG_POLAR_ENERGY) + MUON_MASS_GEV
        radius = 10.0 ** log_radius.clamp(*_LOG_POLAR_RADIUS)
    azimuth = azimuth_uniform * (2 * torch.pi)
    return torch.stack([energy, radius * torch.cos(azimuth), radius * torch.sin(azimuth)], dim=1).float()


def _above(log_energy: Tensor, edge: float) -> Tensor:
    return edge + (log_energy.clamp(*_LOG_ENERGY) - edge).abs()


CONTEXT = CONDITIONS + 1


def context_of(conditions: Tensor, multiplicity: Tensor) -> Tensor:
    """Join conditions and log multiplicity of events that have muons: [B, CONTEXT]."""
    return torch.cat([conditions, log_multiplicity(multiplicity)], dim=1)
