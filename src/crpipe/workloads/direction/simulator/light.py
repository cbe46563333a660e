"""Light in the ice: how many photons of a muon or a flash a sensor counts, and when the first could come.

Sensors that are far from all light are left out: first whole strings, then sensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads.direction.simulator.detector import PER_STRING, STEP_M, strings
from crpipe.workloads.direction.simulator.particles import (
    A_GEV_PER_M,
    B_PER_M,
    C_M_PER_NS,
    VISIBLE_M,
    Particles,
    Points,
    energy_at,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

COS_CHERENKOV = 1 / 1.33
SIN_CHERENKOV = float(np.sqrt(1 - COS_CHERENKOV**2))
GROUP_NS_PER_M = 1.36 / C_M_PER_NS
ABSORPTION_M, SCATTERING_M, TAU_NS = 98.0, 33.3, 557.0
DELAY_NS = 1 / (1 / TAU_NS + 1 / (GROUP_NS_PER_M * ABSORPTION_M))
# Photons counted at 1 m: of a muon without radiation, and of 1 GeV of a cascade. docs/direction-simulator.md
MUON_PHOTONS, GEV_PHOTONS = 20.0, 34.0
RADIATION_PER_GEV = 9.3e-4  # light of the small losses, for each GeV, over that of the bare muon
DOWNWARD = 0.9  # a tube looks down: 1 + 0.9 cos of the angle between the light and straight up
FORWARD = 0.7  # a cascade: 1 + 0.7 cos of the angle between its direction and the light
NEAREST_M = 2.0
FAINTEST = 1e-3  # photons; sensors and strings with fewer are left out


@dataclass(frozen=True, slots=True)
class Light:
    """K pairs of a source and a sensor: row of the particle, sensor_id, mean photons, earliest time, distance."""

    particle: NDArray[np.intp]
    sensor: NDArray[np.intp]
    mean: NDArray[np.float32]
    direct_ns: NDArray[np.float32]
    distance_m: NDArray[np.float32]


def together(parts: list[Light]) -> Light:
    """Join the light of several sources."""
    return Light(
        np.concatenate([part.particle for part in parts]),
        np.concatenate([part.sensor for part in parts]),
        np.concatenate([part.mean for part in parts]),
        np.concatenate([part.direct_ns for part in parts]),
        np.concatenate([part.distance_m for part in parts]),
    )


def muon_pairs(particles: Particles) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Give the muons and strings near enough to each other to matter: rows of both."""
    rows = np.flatnonzero(~particles.cascade)
    muons = particles.take(rows)
    away = strings()[None, :, :2] - muons.place[:, None, :2]
    flat = np.maximum(np.hypot(muons.source[:, 0], muons.source[:, 1]), 1e-9)[:, None]
    across = np.abs(away[..., 0] * muons.source[:, 1, None] - away[..., 1] * muons.source[:, 0, None]) / flat
    bound = _photons(muons, np.maximum(muons.start_m, -VISIBLE_M))[:, None] * _dim(across)
    muon, string = np.nonzero(bound / np.maximum(across, NEAREST_M) * (1 + DOWNWARD) > FAINTEST)
    return rows[muon], string


def point_pairs(points: Points) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Give the flashes and strings near enough to each other to matter: rows of both."""
    away = np.linalg.norm(strings()[None, :, :2] - points.place[:, None, :2], axis=2)
    bright = GEV_PHOTONS * (1 + DOWNWARD) * (1 + FORWARD) * points.energy_gev
    return np.nonzero(bright[:, None] * _dim(away) / np.maximum(away, NEAREST_M) ** 2 > FAINTEST)


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
    emitted = along - across * np.float32(COS_CHERENKOV / SIN_CHERENKOV)
    rising = _column(path, 2)
    upward = COS_CHERENKOV * rising + SIN_CHERENKOV * (away[2] - along * rising) / across
    energy = energy_at(particles.energy_gev[muon, None].astype(np.float32), start, emitted)
    mean = (MUON_PHOTONS + MUON_PHOTONS * RADIATION_PER_GEV * energy) * _dim(across) / across
    mean *= (1 + DOWNWARD * upward) * ((emitted > start) & (emitted < stop))
    direct = emitted / np.float32(C_M_PER_NS) + across * np.float32(GROUP_NS_PER_M / SIN_CHERENKOV)
    return _bright(muon, string, mean, direct, across)


def point_light(
    particles: Particles, points: Points, row: NDArray[np.intp], string: NDArray[np.intp]
) -> Light:
    """Give the light of flashes on the sensors of strings: rows of both, [R] each."""
    particle = points.particle[row]
    away = _away(points.place[row], string)
    distance = np.sqrt(np.maximum(sum(axis**2 for axis in away), NEAREST_M**2))
    forward = _dot(away, -particles.source[particle]) / distance
    mean = np.float32(GEV_PHOTONS) * points.energy_gev[row, None].astype(np.float32) * _dim(distance)
    mean *= (1 + DOWNWARD * away[2] / distance) * (1 + FORWARD * forward) / distance**2
    direct = points.time_ns[row, None].astype(np.float32) + distance * np.float32(GROUP_NS_PER_M)
    return _bright(particle, string, mean, direct, distance)


def delays(rng: np.random.Generator, distance_m: NDArray[np.float32]) -> NDArray[np.float64]:
    """Draw how much later than without scattering photons arrive, in ns: Pandel's gamma law."""
    drawn: NDArray[np.float64] = rng.standard_gamma(distance_m / SCATTERING_M) * DELAY_NS
    return drawn


def _photons(muons: Particles, way_m: NDArray[np.float64]) -> NDArray[np.float64]:
    return MUON_PHOTONS * (1 + RADIATION_PER_GEV * energy_at(muons.energy_gev, muons.start_m, way_m))


def _dim(distance_m: NDArray) -> NDArray:
    return np.exp(distance_m * np.float32(-1 / ABSORPTION_M))


def _column(vectors: NDArray[np.float64], axis: int) -> NDArray[np.float32]:
    return vectors[:, axis, None].astype(np.float32)


def _away(place: NDArray[np.float64], string: NDArray[np.intp]) -> list[NDArray[np.float32]]:
    """Give the way from places [R, 3] to the sensors of strings [R]: x and y [R, 1], z [R, 60]."""
    top = strings()[string] - place
    step = np.float32(STEP_M) * np.arange(PER_STRING, dtype=np.float32)
    return [_column(top, 0), _column(top, 1), _column(top, 2) - step]


def _dot(away: list[NDArray[np.float32]], path: NDArray[np.float64]) -> NDArray[np.float32]:
    return sum(axis * _column(path, number) for number, axis in enumerate(away))


def _bright(
    particle: NDArray[np.intp],
    string: NDArray[np.intp],
    mean: NDArray[np.float32],
    direct_ns: NDArray[np.float32],
    distance_m: NDArray[np.float32],
) -> Light:
    row, sensor = np.nonzero(mean > FAINTEST)
    return Light(
        particle[row],
        string[row] * PER_STRING + sensor,
        mean[row, sensor],
        direct_ns[row, sensor],
        distance_m[row, sensor],
    )
