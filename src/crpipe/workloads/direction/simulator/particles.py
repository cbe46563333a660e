"""What happens in the ice: isotropic muons and cascades, and the losses along each muon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads import elementary
from crpipe.workloads.direction.angles import azimuth_zenith

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions

    Floats = NDArray[np.floating[Any]]

# dE/dx = a + bE of muons in ice (hep-ph/0407075); half of b is losses of more than a hundredth of the energy.
A_GEV_PER_M, B_PER_M = 0.24, 3.3e-4
STOCHASTIC_B_PER_M, SMALLEST_LOSS = B_PER_M / 2, 0.01
# Every track and cascade has a point in this cylinder; a track starts at most so far before it.
RADIUS_M, HALF_HEIGHT_M, LONGEST_M = 650.0, 600.0, 1500.0
VISIBLE_M = 1500.0  # losses farther than this from the point in the cylinder are too far to be seen
C_M_PER_NS = 0.299792458


@dataclass(frozen=True, slots=True)
class Particles:
    """N simulated particles.

    source: unit vectors [N, 3] to where they came from. energy_gev: [N], of the muon where it starts or of
    the cascade. cascade: bool [N]. place: [N, 3] in m, a point of the track or the cascade.
    start_m, stop_m: [N] where on its way, counted from ``place``, a muon starts and stops.
    """

    source: NDArray[np.float64]
    energy_gev: NDArray[np.float64]
    cascade: NDArray[np.bool_]
    place: NDArray[np.float64]
    start_m: NDArray[np.float64]
    stop_m: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.energy_gev)

    def take(self, rows: NDArray[np.intp] | slice) -> Particles:
        """Keep some of them."""
        return Particles(*(getattr(self, name)[rows] for name in Particles.__slots__))

    def angles(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Give azimuth and zenith in rad, [N] each."""
        return azimuth_zenith(self.source)


@dataclass(frozen=True, slots=True)
class Points:
    """P flashes of light: row of the particle [P], place [P, 3] in m, time [P] in ns, energy [P] in GeV."""

    particle: NDArray[np.intp]
    place: NDArray[np.float64]
    time_ns: NDArray[np.float64]
    energy_gev: NDArray[np.float64]


def sample_particles(rng: np.random.Generator, options: NeutrinoTelescopeOptions, count: int) -> Particles:
    """Draw particles: isotropic, with energies E^-index, and points uniform in the cylinder."""
    up, turn = rng.uniform(-1, 1, count), rng.uniform(0, 2 * np.pi, count)
    flat = np.sqrt(1 - up**2)
    source = np.stack([flat * np.cos(turn), flat * np.sin(turn), up], axis=1)
    energy = power_law(rng.random(count), options)
    cascade = rng.random(count) < options.cascade_fraction
    radius, angle = RADIUS_M * np.sqrt(rng.random(count)), rng.uniform(0, 2 * np.pi, count)
    height = rng.uniform(-HALF_HEIGHT_M, HALF_HEIGHT_M, count)
    place = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)
    reach = elementary.log1p(energy * B_PER_M / A_GEV_PER_M) / B_PER_M
    start = -rng.random(count) * np.minimum(reach, LONGEST_M)
    return Particles(source, energy, cascade, place, start, start + reach)


def power_law(uniform: NDArray[np.float64], options: NeutrinoTelescopeOptions) -> NDArray[np.float64]:
    """Turn uniform numbers into energies that follow E^-index between the two limits."""
    low, high, index = options.energy_min_gev, options.energy_max_gev, options.spectral_index
    if index == 1:
        return np.asarray(low * np.exp(uniform * np.log(high / low)))
    share = (high / low) ** (1 - index)
    return np.asarray(low * (1 + uniform * (share - 1)) ** (1 / (1 - index)))


def energy_at(energy_gev: Floats, start_m: Floats, way_m: Floats) -> Floats:
    """Give the mean energy of muons that started with ``energy_gev`` at ``start_m``, at ``way_m``; in GeV."""
    rest = A_GEV_PER_M / B_PER_M
    energy: Floats = np.maximum((energy_gev + rest) * np.exp(-B_PER_M * (way_m - start_m)) - rest, 0)
    return energy


def flashes(rng: np.random.Generator, particles: Particles) -> Points:
    """Give the cascades and the losses of more than a hundredth of the energy along the muons.

    Losses v = loss / energy follow dN/dv = b/v per metre; the energy is that of the mean loss.
    """
    cascades, muons = np.flatnonzero(particles.cascade), np.flatnonzero(~particles.cascade)
    low = np.maximum(particles.start_m[muons], -VISIBLE_M)
    length = np.clip(particles.stop_m[muons], low, VISIBLE_M) - low
    number = rng.poisson(STOCHASTIC_B_PER_M * -np.log(SMALLEST_LOSS) * length)
    muon = np.repeat(muons, number)
    way = np.repeat(low, number) + rng.random(len(muon)) * np.repeat(length, number)
    energy = energy_at(particles.energy_gev[muon], particles.start_m[muon], way)
    energy *= SMALLEST_LOSS ** rng.random(len(muon))
    return Points(
        np.concatenate([cascades, muon]),
        np.concatenate(
            [particles.place[cascades], particles.place[muon] - way[:, None] * particles.source[muon]]
        ),
        np.concatenate([np.zeros(len(cascades)), way / C_M_PER_NS]),
        np.concatenate([particles.energy_gev[cascades], energy]),
    )
