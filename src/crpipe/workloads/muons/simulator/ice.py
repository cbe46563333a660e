"""Muons on their way down through the ice: energy loss, multiple scattering, death.

In: muons at the surface and the path to a depth. Out: those still alive there, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads import elementary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EARTH_RADIUS_M = 6_374_134.0
FIRN_M, FIRN_DENSITY, BULK_DENSITY = 200.0, 0.832, 1.005  # relative to the ice of the loss tables

# Energy loss, fitted to the ice tables of MMC (Chirkin and Rhode, hep-ph/0407075): dE/dx = a + (dg/dx) E with
# g a gamma process (its mean and scale below) plus jumps: catastrophic losses, exponential with mean 1.
IONISATION_GEV_PER_M = 0.24476
RADIATION_PER_M = 2.3872e-4
RADIATION_SCALE = 0.084795
JUMPS_PER_M = 1.76207e-4

RADIATION_LENGTH_M = 0.39
SCATTERING_GEV = 0.0136  # Highland's constant (PDG, passage of particles), without its logarithm
REST_ENERGY_GEV = 0.1057

STEP_M = 400.0  # losses and scattering are folded over steps no longer than this
CHUNK = 1 << 15  # muons propagated at once: their temporaries stay in the cache, and bounded


@dataclass(slots=True)
class Muons:
    """M muons in the plane across their shower's axis.

    shower: [M] int32, ascending; energy [GeV], x, y [m] and their slopes [rad]: [M] float32 each.
    """

    shower: NDArray[np.int32]
    energy: NDArray[np.float32]
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    slope_x: NDArray[np.float32]
    slope_y: NDArray[np.float32]

    def __len__(self) -> int:
        """Count the muons."""
        return len(self.energy)

    def take(self, index: slice | NDArray[np.bool_]) -> Muons:
        """Choose muons by a slice (a view) or a mask (a copy)."""
        return Muons(*(column[index] for column in self.columns()))

    def columns(self) -> Iterator[NDArray[Any]]:
        """Yield the arrays in their order of declaration."""
        return (getattr(self, field.name) for field in fields(self))

    def table(self) -> NDArray[np.float32]:
        """Copy energy, x and y into the layout of the files: [M, 3] float32."""
        return np.stack([self.energy, self.x, self.y], axis=1)


def concatenate(parts: Sequence[Muons]) -> Muons:
    """Join muons end to end."""
    return Muons(*(np.concatenate(column) for column in zip(*(p.columns() for p in parts), strict=True)))


def track(cos_zenith: Floats, depth_m: float | Floats) -> Floats:
    """Follow the axis from the surface of a sphere to a vertical depth.

    Return [2, N]: the length in m, and the same weighted by density (metres of the loss tables' ice).
    """
    radius, depth = EARTH_RADIUS_M, np.asarray(depth_m, np.float64)
    below = radius - depth
    length = np.sqrt(2 * radius * depth + (cos_zenith * below) ** 2 - depth**2) - below * cos_zenith
    firn = np.minimum(depth, FIRN_M)
    matter = firn * FIRN_DENSITY + (depth - firn) * BULK_DENSITY
    return np.stack([length, length * matter / depth])


def advance(rng: np.random.Generator, muons: Muons, leg: Floats) -> Muons:
    """Carry muons along ``leg`` ([2, showers]: length, density-weighted length); return those still alive."""
    if not len(muons):
        return muons
    chunks = (muons.take(slice(start, start + CHUNK)) for start in range(0, len(muons), CHUNK))
    return concatenate([_advance_chunk(rng, chunk, leg) for chunk in chunks])


def _advance_chunk(rng: np.random.Generator, muons: Muons, leg: Floats) -> Muons:
    steps = max(1, int(np.ceil(leg[1, muons.shower].max() / STEP_M)))
    length, matter = (leg / steps).astype(np.float32)
    for _ in range(steps):
        if len(muons):
            muons = _step(rng, muons, length, matter)
    return muons


def _step(
    rng: np.random.Generator, muons: Muons, length: NDArray[np.float32], matter: NDArray[np.float32]
) -> Muons:
    before = muons.energy
    passed = matter[muons.shower]
    muons.energy = _lose(rng, before, passed)
    alive = muons.energy > REST_ENERGY_GEV
    if not alive.all():
        muons, before, passed = muons.take(alive), before[alive], passed[alive]
    _scatter(rng, muons, np.sqrt(before * muons.energy), length[muons.shower], passed)
    return muons


def _lose(
    rng: np.random.Generator, energy: NDArray[np.float32], matter: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Solve dE/dx = -a - (g/matter) E over the step, g drawn once per muon; below zero means stopped."""
    loss = elementary.gamma(rng, matter * np.float32(RADIATION_PER_M / RADIATION_SCALE))
    loss *= np.float32(RADIATION_SCALE)
    _add_jumps(rng, loss, matter)
    np.maximum(loss, np.float32(1e-9), out=loss)
    ionised = np.float32(IONISATION_GEV_PER_M) * matter / loss
    return np.asarray(energy + elementary.expm1(-loss) * (energy + ionised))


def _add_jumps(rng: np.random.Generator, loss: NDArray[np.float32], matter: NDArray[np.float32]) -> None:
    """Add the catastrophic losses: a Poisson process over all muons, thinned to each muon's own path."""
    longest = float(matter.max())
    count = rng.poisson(JUMPS_PER_M * longest * len(loss))
    at = rng.integers(0, len(loss), count)
    at = at[rng.random(count) * longest < matter[at]]
    np.add.at(loss, at, elementary.exponential(rng, len(at)))


def _scatter(
    rng: np.random.Generator,
    muons: Muons,
    energy: NDArray[np.float32],
    length: NDArray[np.float32],
    matter: NDArray[np.float32],
) -> None:
    """Drift, and scatter in angle and place with their correlation (PDG, passage of particles)."""
    angle = np.float32(SCATTERING_GEV) / energy * np.sqrt(matter / np.float32(RADIATION_LENGTH_M))
    shift = angle * length
    half, narrow = np.float32(0.5), np.float32(1 / np.sqrt(12))
    kick_x, kick_y, offset_x, offset_y = elementary.normal(rng, (4, len(muons)))
    muons.x = muons.x + muons.slope_x * length + shift * (half * kick_x + narrow * offset_x)
    muons.y = muons.y + muons.slope_y * length + shift * (half * kick_y + narrow * offset_y)
    muons.slope_x = muons.slope_x + angle * kick_x
    muons.slope_y = muons.slope_y + angle * kick_y
