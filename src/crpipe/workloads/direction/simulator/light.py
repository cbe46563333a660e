"""Light in the ice: how many photons of a muon or a flash a sensor counts, and when the first could come.

Sensors that are far from all light are left out: first whole strings, then sensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads.direction.simulator.detector import PER_STRING, STEP_M, strings
from crpipe.workloads.direction.simulator.particles import (
    B_PER_M,
    C_M_PER_NS,
    STOCHASTIC_B_PER_M,
    VISIBLE_M,
    Particles,
    Points,
    energy_at,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

COS_CHERENKOV = 1 / 1.33
SIN_CHERENKOV = float(np.sqrt(1 - COS_CHERENKOV**2))
GROUP_NS_PER_M = 1.36 / C_M_PER_NS
ABSORPTION_M, SCATTERING_M, TAU_NS = 98.0, 33.3, 557.0
DELAY_NS = 1 / (1 / TAU_NS + 1 / (GROUP_NS_PER_M * ABSORPTION_M))
# Photons of a flash of 1 GeV at 1 m, tuned to the public numbers of pulses; docs/direction-simulator.md. A
# bare muon shines as flashes of 0.194 GeV per metre: 33,000 photons, of 170,000 per GeV (Frank and Tamm).
GEV_PHOTONS = 100.0
MUON_GEV_PER_M = 0.194
SMALL_LOSSES_PER_M = B_PER_M - STOCHASTIC_B_PER_M
DOWNWARD = 0.9  # a tube looks down: 1 + 0.9 cos of the angle between the light and straight up
FORWARD = 0.7  # a cascade: 1 + 0.7 cos of the angle between its direction and the light
NEAREST_M = 2.0
FAINTEST = 1e-3  # photons; sensors and strings with fewer are left out


@dataclass(frozen=True, slots=True)
class Light:
    """K pairs of a source and a sensor: row of the particle, sensor_id, photons, first time, distance.

    The distance is that to the flash, or to the nearest point of the track.
    """

    particle: NDArray[np.intp]
    sensor: NDArray[np.intp]
    mean: Floats
    direct_ns: Floats
    distance_m: Floats


def together(parts: Sequence[Light]) -> Light:
    """Join the light of several sources."""
    return Light(*(np.concatenate([getattr(part, name) for part in parts]) for name in Light.__slots__))


def muon_pairs(particles: Particles) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Give the muons and strings near enough to each other to matter: rows of both."""
    rows = np.flatnonzero(~particles.cascade)
    muons = particles.take(rows)
    away = strings()[None, :, :2] - muons.place[:, None, :2]
    flat = np.maximum(np.hypot(muons.source[:, 0], muons.source[:, 1]), 1e-9)[:, None]
    across = np.abs(away[..., 0] * muons.source[:, 1, None] - away[..., 1] * muons.source[:, 0, None]) / flat
    brightest = energy_at(muons.energy_gev, muons.start_m, np.maximum(muons.start_m, -VISIBLE_M))[:, None]
    muon, string = (_line(brightest, np.maximum(across, NEAREST_M)) * (1 + DOWNWARD) > FAINTEST).nonzero()
    return rows[muon], string


def point_pairs(points: Points) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Give the flashes and strings near enough to each other to matter: rows of both."""
    away = np.linalg.norm(strings()[None, :, :2] - points.place[:, None, :2], axis=2)
    bright = GEV_PHOTONS * (1 + DOWNWARD) * (1 + FORWARD) * points.energy_gev
    point, string = (bright[:, None] * _dim(away) / np.maximum(away, NEAREST_M) ** 2 > FAINTEST).nonzero()
    return point, string


def muon_light(particles: Particles, muon: NDArray[np.intp], string: NDArray[np.intp]) -> Light:
    """Give the Cherenkov light of muons on the sensors of strings: rows of both, [R] each.

    A photon leaves the track at the Cherenkov angle, so that it comes from one point of it, which must lie
    between the muon's start and its end.
    """
    path = -particles.source[muon]
    away = _away(particles.place[muon], string)
    along = _dot(away, path)
    across = np.sqrt(np.maximum(sum(axis**2 for axis in away) - along**2, NEAREST_M**2))
    start, stop = (ends[muon, None].astype(np.float32) for ends in (particles.start_m, particles.stop_m))
    emitted = along - across * (COS_CHERENKOV / SIN_CHERENKOV)
    rising = _column(path, 2)
    upward = COS_CHERENKOV * rising + SIN_CHERENKOV * (away[2] - along * rising) / across
    energy = energy_at(particles.energy_gev[muon, None].astype(np.float32), start, emitted)
    mean = _line(energy, across)
    mean *= (1 + DOWNWARD * upward) * ((emitted > start) & (emitted < stop))
    direct = emitted / C_M_PER_NS + across * (GROUP_NS_PER_M / SIN_CHERENKOV)
    return _bright(muon, string, mean, direct, across)


def point_light(
    particles: Particles, points: Points, row: NDArray[np.intp], string: NDArray[np.intp]
) -> Light:
    """Give the light of flashes on the sensors of strings: rows of both, [R] each."""
    particle = points.particle[row]
    away = _away(points.place[row], string)
    distance = np.sqrt(np.maximum(sum(axis**2 for axis in away), NEAREST_M**2))
    forward = _dot(away, -particles.source[particle]) / distance
    mean = GEV_PHOTONS * points.energy_gev[row, None].astype(np.float32) * _dim(distance)
    mean *= (1 + DOWNWARD * away[2] / distance) * (1 + FORWARD * forward) / distance**2
    direct = points.time_ns[row, None].astype(np.float32) + distance * GROUP_NS_PER_M
    return _bright(particle, string, mean, direct, distance)


def delays(rng: np.random.Generator, distance_m: Floats) -> NDArray[np.float64]:
    """Draw how much later than without scattering photons arrive, in ns: Pandel's gamma law."""
    drawn: NDArray[np.float64] = rng.standard_gamma(distance_m / SCATTERING_M) * DELAY_NS
    return drawn


def _line(energy_gev: Floats, across_m: Floats) -> Floats:
    """Give the photons of muons of an energy at a distance; flashes in a row, as a line shines."""
    bright = np.pi * GEV_PHOTONS * (MUON_GEV_PER_M + SMALL_LOSSES_PER_M * energy_gev)
    return bright * _dim(across_m * (1 / SIN_CHERENKOV)) / across_m


def _dim(way_m: Floats) -> Floats:
    dim: Floats = np.exp(way_m * (-1 / ABSORPTION_M))
    return dim


def _column(vectors: NDArray[np.float64], axis: int) -> Floats:
    return vectors[:, axis, None].astype(np.float32)


def _away(place: NDArray[np.float64], string: NDArray[np.intp]) -> list[Floats]:
    """Give the way from places [R, 3] to the sensors of strings [R]: x and y [R, 1], z [R, 60]."""
    top = strings()[string] - place
    step = STEP_M * np.arange(PER_STRING, dtype=np.float32)
    return [_column(top, 0), _column(top, 1), _column(top, 2) - step]


def _dot(away: list[Floats], path: NDArray[np.float64]) -> Floats:
    x, y, z = away
    dot: Floats = x * _column(path, 0) + y * _column(path, 1) + z * _column(path, 2)
    return dot


def _bright(
    particle: NDArray[np.intp],
    string: NDArray[np.intp],
    mean: Floats,
    direct_ns: Floats,
    distance_m: Floats,
) -> Light:
    row, sensor = np.nonzero(mean > FAINTEST)
    return Light(
        particle[row],
        string[row] * PER_STRING + sensor,
        mean[row, sensor],
        direct_ns[row, sensor],
        distance_m[row, sensor],
    )
