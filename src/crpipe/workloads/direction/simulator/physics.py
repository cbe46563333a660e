"""The simulation: 5160 sensors, tracks and cascades, and their light; the table ``sensor_geometry.csv``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads.common import elementary
from crpipe.workloads.common.simulators import Arrays, taken
from crpipe.workloads.direction.layout import azimuth_zenith

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions

    Floats = NDArray[np.floating[Any]]

STRINGS, PER_STRING = 86, 60
SENSORS = STRINGS * PER_STRING
SPACING_M, STEP_M, JITTER_M = 125.0, 17.0, 1.0
_RINGS = 6  # of a hexagon with more places than there are strings
_JITTER_SEED = 86


@lru_cache(maxsize=1)
def strings() -> NDArray[np.float64]:
    """Return the places of the strings and of their topmost sensors: [STRINGS, 3], in m.

    The 86 places of a triangular grid that are nearest to the centre, numbered row by row from the smallest
    y, as in IceCube; each is moved by about a metre. Rounded to a centimetre, as the table is.
    """
    row, column = (axis.ravel() for axis in np.mgrid[-_RINGS : _RINGS + 1, -_RINGS : _RINGS + 1])
    x, y = SPACING_M * (column + row / 2), SPACING_M * np.sqrt(3) / 2 * row
    nearest = np.sort(np.argsort(np.round(np.hypot(x, y)), kind="stable")[:STRINGS])
    top = np.full(STRINGS, STEP_M * (PER_STRING - 1) / 2)
    moved = np.random.default_rng(_JITTER_SEED).normal(0, JITTER_M, (STRINGS, 3))
    return np.round(np.stack([x[nearest], y[nearest], top], axis=1) + moved, 2)


def sensors() -> NDArray[np.float64]:
    """Return places of the sensors, string by string from the top: [SENSORS, 3], in m; row is sensor_id."""
    places = np.repeat(strings(), PER_STRING, axis=0)
    places[:, 2] -= STEP_M * np.tile(np.arange(PER_STRING), STRINGS)
    return places


def write_geometry(path: Path) -> None:
    """Write the table ``sensor_geometry.csv``: sensor_id, x, y, z."""
    rows = (f"{sensor},{x:.2f},{y:.2f},{z:.2f}" for sensor, (x, y, z) in enumerate(sensors()))
    path.write_text("\n".join(("sensor_id,x,y,z", *rows)) + "\n", encoding="utf-8")


# What happens in the ice: isotropic muons and cascades, and the losses along each muon.

# dE/dx = a + bE of muons in ice (hep-ph/0407075); half of b is losses of more than a hundredth of the energy.
A_GEV_PER_M, B_PER_M = 0.24, 3.3e-4
STOCHASTIC_B_PER_M, SMALLEST_LOSS = B_PER_M / 2, 0.01
# Every track and cascade has a point in this cylinder; a track starts at most so far before it.
RADIUS_M, HALF_HEIGHT_M, LONGEST_M = 650.0, 600.0, 1500.0
VISIBLE_M = 1500.0  # losses farther than this from the point in the cylinder are too far to be seen
C_M_PER_NS = 0.299792458


@dataclass(frozen=True, slots=True)
class Particles(Arrays):
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

    def angles(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return azimuth and zenith in rad, [N] each."""
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
    position = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)
    reach = elementary.log1p(energy * B_PER_M / A_GEV_PER_M) / B_PER_M
    start = -rng.random(count) * np.minimum(reach, LONGEST_M)
    return Particles(source, energy, cascade, position, start, start + reach)


def power_law(uniform: NDArray[np.float64], options: NeutrinoTelescopeOptions) -> NDArray[np.float64]:
    """Turn uniform numbers into energies that follow E^-index between the two limits."""
    low, high, index = options.energy_min_gev, options.energy_max_gev, options.spectral_index
    if index == 1:
        return np.asarray(low * np.exp(uniform * np.log(high / low)))
    share = (high / low) ** (1 - index)
    return np.asarray(low * (1 + uniform * (share - 1)) ** (1 / (1 - index)))


def energy_at(energy_gev: Floats, start_m: Floats, way_m: Floats) -> Floats:
    """Return mean energy of muons that started with ``energy_gev`` at ``start_m``, at ``way_m``; in GeV."""
    rest = A_GEV_PER_M / B_PER_M
    return np.maximum((energy_gev + rest) * np.exp(-B_PER_M * (way_m - start_m)) - rest, 0)


def flashes(rng: np.random.Generator, particles: Particles) -> Points:
    """Return the cascades and the losses of more than a hundredth of the energy along the muons.

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


# Light in the ice: how many photons of a muon or a flash a sensor counts, and when the first could come.
#
# Sensors that are far from all light are left out: first whole strings, then sensors.

COS_CHERENKOV = 1 / 1.33
SIN_CHERENKOV = float(np.sqrt(1 - COS_CHERENKOV**2))
GROUP_NS_PER_M = 1.36 / C_M_PER_NS
ABSORPTION_M, SCATTERING_M, TAU_NS = 98.0, 33.3, 557.0
DELAY_NS = 1 / (1 / TAU_NS + 1 / (GROUP_NS_PER_M * ABSORPTION_M))
# Photons of a flash of 1 GeV at 1 m, tuned to the public numbers of pulses; docs/direction.md. A
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


def muon_pairs(particles: Particles) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the muons and strings near enough to each other to matter: rows of both."""
    rows = np.flatnonzero(~particles.cascade)
    muons = taken(particles, rows)
    away = strings()[None, :, :2] - muons.place[:, None, :2]
    flat = np.maximum(np.hypot(muons.source[:, 0], muons.source[:, 1]), 1e-9)[:, None]
    across = np.abs(away[..., 0] * muons.source[:, 1, None] - away[..., 1] * muons.source[:, 0, None]) / flat
    brightest = energy_at(muons.energy_gev, muons.start_m, np.maximum(muons.start_m, -VISIBLE_M))[:, None]
    muon, string = (_line(brightest, np.maximum(across, NEAREST_M)) * (1 + DOWNWARD) > FAINTEST).nonzero()
    return rows[muon], string


def point_pairs(points: Points) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the flashes and strings near enough to each other to matter: rows of both."""
    away = np.linalg.norm(strings()[None, :, :2] - points.place[:, None, :2], axis=2)
    bright = GEV_PHOTONS * (1 + DOWNWARD) * (1 + FORWARD) * points.energy_gev
    point, string = (bright[:, None] * _dim(away) / np.maximum(away, NEAREST_M) ** 2 > FAINTEST).nonzero()
    return point, string


def muon_light(particles: Particles, muon: NDArray[np.intp], string: NDArray[np.intp]) -> Light:
    """Return the Cherenkov light of muons on the sensors of strings: rows of both, [R] each.

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
    """Return the light of flashes on the sensors of strings: rows of both, [R] each."""
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
    return rng.standard_gamma(distance_m / SCATTERING_M) * DELAY_NS


def _line(energy_gev: Floats, across_m: Floats) -> Floats:
    """Return the photons of muons of an energy at a distance; flashes in a row, as a line shines."""
    bright = np.pi * GEV_PHOTONS * (MUON_GEV_PER_M + SMALL_LOSSES_PER_M * energy_gev)
    return bright * _dim(across_m * (1 / SIN_CHERENKOV)) / across_m


def _dim(way_m: Floats) -> Floats:
    return np.exp(way_m * (-1 / ABSORPTION_M))


def _column(vectors: NDArray[np.float64], axis: int) -> Floats:
    return vectors[:, axis, None].astype(np.float32)


def _away(position: NDArray[np.float64], string: NDArray[np.intp]) -> list[Floats]:
    """Return the way from places [R, 3] to the sensors of strings [R]: x and y [R, 1], z [R, 60]."""
    top = strings()[string] - position
    step = STEP_M * np.arange(PER_STRING, dtype=np.float32)
    return [_column(top, 0), _column(top, 1), _column(top, 2) - step]


def _dot(away: list[Floats], path: NDArray[np.float64]) -> Floats:
    x, y, z = away
    return x * _column(path, 0) + y * _column(path, 1) + z * _column(path, 2)


def _bright(
    particle: NDArray[np.intp], string: NDArray[np.intp], mean: Floats, direct_ns: Floats, distance_m: Floats
) -> Light:
    row, sensor = np.nonzero(mean > FAINTEST)
    return Light(
        particle[row],
        string[row] * PER_STRING + sensor,
        mean[row, sensor],
        direct_ns[row, sensor],
        distance_m[row, sensor],
    )
