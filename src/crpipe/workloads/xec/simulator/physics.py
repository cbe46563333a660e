"""The simulation: the sensors, which of them are dead, gammas in the xenon, and the light that they make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads.common import elementary
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import MPPCS, sensor_map, uvw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.xec.simulator.options import XenonDetectorOptions

MPPC_SIDE_CM, PMT_RADIUS_CM = 1.2, 2.25
GAIN_SPREAD = 0.04  # of one sensor, unknown to the calibration
_SEED = 4760

# The xenon: between two cylinders, two ends and two sides that open outwards.
FRONT_CM, BACK_CM, END_RAD = 64.97, 106.27, np.radians(62.8)
_SIDE_CM, _SIDE_AT_CM, _SIDE_SLOPE = 35.15, 69.53, (46.84 - 35.15) / (102.95 - 69.53)


@dataclass(frozen=True, slots=True)
class Photosensors:
    """All sensors, [4760] each: centre (cm), normal into the xenon, area (cm2), gain.

    angle: about the axis, in rad. horizon: the angle up to which light along the inner face reaches it.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    z: NDArray[np.float32]
    nx: NDArray[np.float32]
    ny: NDArray[np.float32]
    nz: NDArray[np.float32]
    area: NDArray[np.float32]
    gain: NDArray[np.float32]
    angle: NDArray[np.float32]
    horizon: NDArray[np.float32]


@lru_cache(maxsize=1)
def photosensors() -> Photosensors:
    """Return the sensors."""
    places = sensor_map().T
    mppc = np.arange(SENSORS) < MPPCS
    area = np.where(mppc, MPPC_SIDE_CM**2, np.pi * PMT_RADIUS_CM**2)
    gain = 1 + GAIN_SPREAD * np.random.default_rng([_SEED, 0]).standard_normal(SENSORS)
    angle, horizon = around(places[0], places[1])
    columns = (*places, area, gain, angle, horizon)
    return Photosensors(*(np.ascontiguousarray(column, np.float32) for column in columns))


def around(x: NDArray[np.floating], y: NDArray[np.floating]) -> tuple[NDArray[np.floating], ...]:
    """Return the angle about the axis and the angle to the horizon of points, in rad.

    Two points see each other past the inner face where their angles differ by less than the sum of both
    horizons: the straight line between them then stays outside the cylinder.
    """
    return elementary.arctan2(y, -x), elementary.arccos(np.minimum(FRONT_CM / np.hypot(x, y), 1))


def dead_sensors(fraction: float) -> NDArray[np.int64]:
    """Name the dead sensors, in order; those of a smaller fraction are among those of a larger one."""
    order = np.random.default_rng([_SEED, 1]).permutation(SENSORS)
    return np.sort(order[: round(fraction * SENSORS)])


def in_xenon(places: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Describe which places [..., 3], in cm, are in the xenon."""
    x, y, z = np.moveaxis(places, -1, 0)
    radius = np.hypot(x, y)
    inside = (radius > FRONT_CM) & (radius < BACK_CM) & (np.abs(elementary.arctan2(y, -x)) < END_RAD)
    return inside & (np.abs(z) < _SIDE_CM + _SIDE_SLOPE * (radius - _SIDE_AT_CM))


# Gammas from the target: where they convert, and where their energy becomes light.

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
        """Return polar angle and azimuth (0 to 360) of the directions: [N, 2], degrees."""
        x, y, z = self.direction.T
        angles = np.stack([elementary.arccos(z), elementary.arctan2(y, x) % (2 * np.pi)], axis=1)
        return np.degrees(angles)


@dataclass(frozen=True, slots=True)
class Deposits:
    """Energy of N gammas that becomes light: places [N, D, 3] in cm, times [N, D] in ns, energies [N, D]."""

    place: NDArray[np.float64]
    time_ns: NDArray[np.float64]
    energy_gev: NDArray[np.float64]


def sample_gammas(rng: np.random.Generator, options: XenonDetectorOptions, count: int) -> Gammas:
    """Sample gammas that convert behind the inner face, most of them within the usual fiducial cut."""
    conversions: list[NDArray[np.float64]] = []
    while sum(map(len, conversions)) < count:
        conversions.append(_conversions(rng, 2 * count))
    rows = np.concatenate(conversions)[:count]
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
    return np.concatenate([vertex, direction, conversion], axis=1)[seen]


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
    places = gammas.conversion[:, None] + along[..., None] * direction + aside
    time = gammas.time_ns[:, None] + along / LIGHT_CM_NS
    return Deposits(places, time, np.where(in_xenon(places), energy, 0.0))


# Which share of the light of a deposit each sensor sees: solid angle and absorption, in blocks of events.

PHOTONS_PER_GEV = 46e6 * 0.15  # 46 photons per keV, of which the sensors detect 15 %
ABSORPTION_CM = 70.0
NEAR_CM = 6.0, 20.0  # of an MPPC and of a PMT: nearer than this, area * cos / d^2 is more than 1 % off
_EDGE = 32  # points on the edge of a disc
_NEAR2 = np.square(np.where(np.arange(SENSORS) < MPPCS, *NEAR_CM)).astype(np.float32)


def mean_photons(deposits: Deposits) -> NDArray[np.float32]:
    """Return the photons that each sensor detects in the mean: [N, 4760]."""
    places = deposits.place.astype(np.float32)
    weight = (PHOTONS_PER_GEV * deposits.energy_gev).astype(np.float32)
    photons = np.zeros((len(places), SENSORS), np.float32)
    every = np.arange(SENSORS)
    for deposit in range(places.shape[1]):
        photons += weight[:, deposit, None] * shares(places[:, deposit, None], every)
    return photons


def shares(point: NDArray[np.float32], sensor: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return share of the light from places [..., 3], in cm, that reaches sensors [...]; both broadcast."""
    all_ = photosensors()
    x, y, z = (point[..., 0] - all_.x[sensor], point[..., 1] - all_.y[sensor], point[..., 2] - all_.z[sensor])
    square = x * x + y * y + z * z
    height = x * all_.nx[sensor] + y * all_.ny[sensor] + z * all_.nz[sensor]
    angle, horizon = around(point[..., 0], point[..., 1])
    seen = (height > 0) & (np.abs(angle - all_.angle[sensor]) < horizon + all_.horizon[sensor])
    distance = np.sqrt(square)
    solid = all_.area[sensor] * height / (square * distance)
    near = np.nonzero(seen & (square < _NEAR2[sensor]))
    which = np.broadcast_to(sensor, square.shape)[near]
    solid[near] = solid_angle(x[near], y[near], z[near], which)
    result: NDArray[np.float32] = solid * np.exp(distance * np.float32(-1 / ABSORPTION_CM)) * seen
    return result * np.float32(0.25 / np.pi)


def solid_angle(
    x: NDArray[np.float32], y: NDArray[np.float32], z: NDArray[np.float32], sensor: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return solid angle of sensors [M] from points x, y, z [M], in cm from their centres, before them."""
    all_ = photosensors()
    nx, ny, nz = all_.nx[sensor], all_.ny[sensor], all_.nz[sensor]
    height = (x * nx + y * ny + z * nz).astype(np.float64)
    beside = np.sqrt(np.maximum(x * x + y * y + z * z - height**2, 0))
    small = sensor < MPPCS
    angles = np.empty(len(sensor))
    angles[small] = rectangle(z[small], (x * ny - y * nx)[small], height[small])
    angles[~small] = disc(beside[~small], height[~small])
    return angles


def rectangle(
    a: NDArray[np.floating], b: NDArray[np.floating], height: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return the solid angle of an MPPC from points beside its centre by a and b along its sides: [M], cm."""
    angle = np.zeros(np.shape(height))
    for sign_a in (-1, 1):
        for sign_b in (-1, 1):
            p = np.asarray(a, np.float64) * sign_a + MPPC_SIDE_CM / 2
            q = np.asarray(b, np.float64) * sign_b + MPPC_SIDE_CM / 2
            angle += elementary.arctan2(p * q, height * np.sqrt(p**2 + q**2 + height**2))
    return angle


def disc(beside: NDArray[np.floating], height: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the solid angle of a PMT's window from points beside its axis: [M], cm.

    Stokes' theorem makes it an integral around the edge, of (R^2 + R beside cos t) / (q (q + height)) dt with
    the distance q to the edge, which has no pole.
    """
    edge = (np.arange(_EDGE) + 0.5) * (2 * np.pi / _EDGE)
    mixed = PMT_RADIUS_CM**2 + PMT_RADIUS_CM * np.multiply.outer(beside, np.cos(edge))
    height = np.asarray(height, np.float64)[..., None]
    q = np.sqrt(height**2 + np.square(beside)[..., None] + 2 * mixed - PMT_RADIUS_CM**2)
    return (mixed / (q * (q + height))).mean(axis=-1) * (2 * np.pi)
