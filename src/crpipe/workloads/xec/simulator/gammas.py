"""Gammas from the target: where they convert, and where their energy becomes light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads import elementary
from crpipe.workloads.xec.sensors import INNER_RADIUS
from crpipe.workloads.xec.simulator.detector import FRONT_CM, in_xenon

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.xec.simulator.options import XenonDetectorOptions

LIGHT_CM_NS = 29.979
TARGET_CM = (1.0, 1.0, 4.0)  # standard deviations of the vertices; the beam is along z
EMITTED_NS = 20.0  # gammas leave the target within this time before or after 0
CONVERSION_CM = 4.0
U_CM, V_CM = 26.0, 71.0  # conversions beyond are not recorded; the usual fiducial cut is at 23.9 and 67.9
DEPOSITS = 8
RADIATION_CM, MOLIERE_CM, CRITICAL_GEV = 2.8, 5.0, 0.0104
_COS_THETA, _AROUND_RAD = 0.5, 1.25  # directions that may convert within U_CM and V_CM


@dataclass(frozen=True, slots=True)
class Gammas:
    """N gammas: energy (GeV), vertex, direction and conversion [N, 3] (cm), time of the conversion (ns)."""

    energy_gev: NDArray[np.float64]
    vertex: NDArray[np.float64]
    direction: NDArray[np.float64]
    conversion: NDArray[np.float64]
    time_ns: NDArray[np.float64]

    def angles(self) -> NDArray[np.float64]:
        """Give polar angle and azimuth (0 to 360) of the directions: [N, 2], degrees."""
        x, y, z = self.direction.T
        angles = np.stack([elementary.arccos(z), elementary.arctan2(y, x) % (2 * np.pi)], axis=1)
        found: NDArray[np.float64] = np.degrees(angles)
        return found


def uvw(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give places [N, 3] along the axis, around it on the inner face, and behind that face: [N, 3], cm."""
    x, y, z = places.T
    coordinates = [z, INNER_RADIUS * elementary.arctan2(y, -x), np.hypot(x, y) - INNER_RADIUS]
    return np.stack(coordinates, axis=1)


@dataclass(frozen=True, slots=True)
class Deposits:
    """Energy of N gammas that becomes light: places [N, D, 3] in cm, times [N, D] in ns, energies [N, D]."""

    place: NDArray[np.float64]
    time_ns: NDArray[np.float64]
    energy_gev: NDArray[np.float64]


def sample_gammas(rng: np.random.Generator, options: XenonDetectorOptions, count: int) -> Gammas:
    """Sample gammas that convert behind the inner face, most of them within the usual fiducial cut."""
    found: list[NDArray[np.float64]] = []
    while sum(map(len, found)) < count:
        found.append(_conversions(rng, 2 * count))
    rows = np.concatenate(found)[:count]
    vertex, direction, conversion = rows[:, :3], rows[:, 3:6], rows[:, 6:]
    energy = rng.uniform(options.energy_min_gev, options.energy_max_gev, count)
    flight = np.linalg.norm(conversion - vertex, axis=1) / LIGHT_CM_NS
    time = rng.uniform(-EMITTED_NS, EMITTED_NS, count) + flight
    return Gammas(energy, vertex, direction, conversion, time)


def _conversions(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Send gammas towards the detector; give vertex, direction, conversion of those it sees: [N, 9]."""
    vertex = rng.normal(0, TARGET_CM, (count, 3))
    cos = rng.uniform(-_COS_THETA, _COS_THETA, count)
    around = rng.uniform(-_AROUND_RAD, _AROUND_RAD, count)
    sin = np.sqrt(1 - cos**2)
    direction = np.stack([-sin * np.cos(around), sin * np.sin(around), cos], axis=1)
    # The way to the front of the xenon solves |vertex + way direction| = FRONT_CM in x and y.
    along = (vertex * direction)[:, :2].sum(axis=1)
    rest = np.square(vertex[:, :2]).sum(axis=1) - FRONT_CM**2
    way = (-along + np.sqrt(along**2 - sin**2 * rest)) / sin**2
    way += rng.exponential(CONVERSION_CM, count)
    conversion = vertex + way[:, None] * direction
    u, v, _ = np.abs(uvw(conversion)).T
    seen = (u < U_CM) & (v < V_CM) & in_xenon(conversion)
    found: NDArray[np.float64] = np.concatenate([vertex, direction, conversion], axis=1)[seen]
    return found


def sample_deposits(rng: np.random.Generator, gammas: Gammas) -> Deposits:
    """Spread the energy of each gamma behind its conversion; what leaves the xenon is lost."""
    shape = (len(gammas.energy_gev), DEPOSITS)
    share = rng.standard_exponential(shape)
    energy = gammas.energy_gev[:, None] * share / share.sum(axis=1, keepdims=True)
    depth = RADIATION_CM * (0.5 + 0.4 * elementary.log1p(gammas.energy_gev / CRITICAL_GEV))
    along = depth[:, None] * rng.gamma(1.5, 1 / 1.5, shape)
    # Far behind the conversion, 90 % of the energy is within a Moliere radius of the axis.
    spread = MOLIERE_CM / 2.146 * along / (along + RADIATION_CM)
    aside = rng.standard_normal((*shape, 3)) * spread[..., None]
    direction = gammas.direction[:, None]
    aside -= (aside * direction).sum(axis=2, keepdims=True) * direction
    place = gammas.conversion[:, None] + along[..., None] * direction + aside
    time = gammas.time_ns[:, None] + along / LIGHT_CM_NS
    return Deposits(place, time, np.where(in_xenon(place), energy, 0.0))
