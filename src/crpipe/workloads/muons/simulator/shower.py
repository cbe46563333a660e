"""Air showers as seen by deep detectors: how many high-energy muons, with which energies, how far apart.

In: primaries. Out: the muons of each at the surface, above a threshold. Every number has its source.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads.muons.simulator.ice import CHUNK, Muons, concatenate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.muons.simulator.primaries import Primaries

    Floats = NDArray[np.float64]

# Number of muons. Elbert's law as in Gaisser, Cosmic Rays and Particle Physics (1990): its exponents are
# 1.757 in both energies and 5.25 at the end point; muon index and end point are re-tuned to a cascade with
# SIBYLL 2.3d. The law is tied to MUON_THRESHOLD_GEV and holds above it.
MUON_THRESHOLD_GEV = 273.0
ELBERT_GEV = 14.5
PRIMARY_INDEX = 1.757
MUON_INDEX = 1.657
END_POINT = 6.65
CRITICAL = 1.1 / 115.0  # 1/GeV: decay against interaction of the parent pions
CLUSTERS_PER_NUCLEON = 7.0  # k of the negative binomial is this times the mass number

# Effective cosine of the zenith angle at production (Chirkin, hep-ph/0407078).
_CURVED = (0.102573, -0.068287, 0.958633, 0.0407253, 0.817285)

# Production and lateral spread, tuned to the cascade and to published tables of bundle radii.
MOMENTUM_GEV, MOMENTUM_SHAPE, MOMENTUM_RISE = 0.375, 2.2, 0.06  # mean transverse momentum at 330 GeV
DEPTH_G_CM2, DEPTH_PRIMARY, DEPTH_MUON = 128.2, 0.188, -0.219  # geometric mean production depth
DEPTH_VARIANCE, DEPTH_MASS = 0.48, -0.65  # of its logarithm, from shower to shower
_DEPTH_SHAPE = (
    (1.0, 4.0, 14.0, 27.0, 56.0),
    (1.86, 1.15, 1.07, 1.06, 1.04),
)  # within a shower, by mass number
SCALE_HEIGHT_M, SURFACE_G_CM2 = 6300.0, 692.9
_LEVER, _LEVER_MEAN, _LEVER_SPREAD, _LEVER_ZENITH = 1.27, -0.045, 0.3, -0.45

# Earth's field at the South Pole.
FIELD_T, DIP_RAD = 54e-6, np.deg2rad(72.5)
POSITIVE_SHARE = 1.3 / 2.3  # charge ratio 1.3
BENDING_GEV_PER_T_M = 0.3


@dataclass(frozen=True, slots=True)
class Showers:
    """N showers, and what all muons of one share; arrays [N] float64 unless noted.

    threshold_gev: least energy of its muons at the surface. multiplicity: [N] int64. stretch: log of this
    shower's production depth over the mean one. bending: curvature of a 1 GeV muon's track [1/m].
    """

    energy_gev: Floats
    mass_number: Floats
    cos_zenith: Floats
    threshold_gev: Floats
    multiplicity: NDArray[np.int64]
    stretch: Floats
    bending: Floats

    def __len__(self) -> int:
        """Count the showers."""
        return len(self.energy_gev)

    def take(self, index: slice | NDArray[np.int32]) -> Showers:
        """Choose showers; an index array may repeat them."""
        return Showers(*(getattr(self, field.name)[index] for field in fields(self)))


def effective_cosine(cos_zenith: Floats) -> Floats:
    """Correct the cosine for the curved atmosphere: larger than the cosine itself near the horizon."""
    p1, p2, p3, p4, p5 = _CURVED
    square = cos_zenith**2 + p1**2 + p2 * cos_zenith**p3 + p4 * cos_zenith**p5
    return np.asarray(np.sqrt(square / (1 + p1**2 + p2 + p4)))


def angular_factor(energy_gev: Floats, cosine: Floats) -> Floats:
    """Enhance inclined showers, whose pions decay in thinner air: 1 at low energy, 1/cosine at high."""
    return (1 + CRITICAL * energy_gev) / (1 + CRITICAL * cosine * energy_gev)


def mean_multiplicity(primaries: Primaries, threshold_gev: float | Floats) -> Floats:
    """Mean number of muons above ``threshold_gev`` at the surface: Elbert's law, [N]."""
    nucleon = primaries.energy_gev / primaries.mass_number
    threshold = np.asarray(threshold_gev, np.float64)
    left = 1 - np.minimum(threshold / nucleon, 1)
    law = ELBERT_GEV * primaries.mass_number / nucleon * (nucleon / MUON_THRESHOLD_GEV) ** PRIMARY_INDEX
    law *= (threshold / MUON_THRESHOLD_GEV) ** -MUON_INDEX * left**END_POINT
    return np.asarray(law * angular_factor(threshold, effective_cosine(primaries.cos_zenith)))


def sample_showers(rng: np.random.Generator, primaries: Primaries, threshold_gev: Floats) -> Showers:
    """Draw what happens to each primary as a whole; muons below its threshold [N] are left out.

    Leaving them out is exact: a negative binomial, thinned, keeps its k.
    """
    mass, cosine = primaries.mass_number, primaries.cos_zenith
    threshold = np.maximum(threshold_gev, MUON_THRESHOLD_GEV)
    clusters = CLUSTERS_PER_NUCLEON * mass
    activity = rng.standard_gamma(clusters) / clusters
    multiplicity = rng.poisson(mean_multiplicity(primaries, threshold) * activity)
    stretch = rng.standard_normal(len(mass)) * np.sqrt(DEPTH_VARIANCE * mass**DEPTH_MASS)
    azimuth = rng.random(len(mass)) * 2 * np.pi
    along = np.sqrt(1 - cosine**2) * np.cos(azimuth) * np.cos(DIP_RAD) + cosine * np.sin(DIP_RAD)
    across = FIELD_T * np.sqrt(1 - np.clip(along, -1, 1) ** 2)
    return Showers(
        primaries.energy_gev, mass, cosine, threshold, multiplicity, stretch, BENDING_GEV_PER_T_M * across
    )


def sample_muons(rng: np.random.Generator, showers: Showers) -> Muons:
    """Draw every muon of every shower at the surface, in the order of the showers."""
    shower = np.repeat(np.arange(len(showers), dtype=np.int32), showers.multiplicity)
    starts = range(0, max(len(shower), 1), CHUNK)
    return concatenate([_sample_chunk(rng, showers, shower[start : start + CHUNK]) for start in starts])


def sample_energies(rng: np.random.Generator, each: Showers) -> Floats:
    """Draw one muon energy for each entry, exactly from the spectrum whose integral is Elbert's law.

    The law is a product of two survival functions, so the smaller of two inverse-transform samples follows
    it: a power law with the angular factor (inverted by Newton's method in log E), and the end point.
    """
    threshold, cosine = each.threshold_gev, effective_cosine(each.cos_zenith)
    start = np.log(threshold)
    target = np.log(rng.random(len(each))) + np.log(angular_factor(threshold, cosine))
    log_energy = start - target / MUON_INDEX
    for _ in range(3):
        pull, weak = CRITICAL * np.exp(log_energy), CRITICAL * cosine * np.exp(log_energy)
        value = -MUON_INDEX * (log_energy - start) + np.log((1 + pull) / (1 + weak)) - target
        log_energy -= value / (-MUON_INDEX + pull / (1 + pull) - weak / (1 + weak))
    nucleon = each.energy_gev / each.mass_number
    room = 1 - threshold / nucleon
    return np.minimum(np.exp(log_energy), nucleon * (1 - room * rng.random(len(each)) ** (1 / END_POINT)))


def _sample_chunk(rng: np.random.Generator, showers: Showers, shower: NDArray[np.int32]) -> Muons:
    each = showers.take(shower)
    energy = sample_energies(rng, each)
    height = _production_distance(rng, each, energy)
    momentum = rng.standard_gamma(MOMENTUM_SHAPE, len(each)) * (MOMENTUM_GEV / MOMENTUM_SHAPE)
    angle = momentum * (energy / 330.0) ** MOMENTUM_RISE / energy
    spread = np.exp(_LEVER_MEAN + _LEVER_SPREAD * rng.standard_normal(len(each)))
    lever = height * _LEVER * spread * each.cos_zenith**_LEVER_ZENITH
    # The shower's own azimuth is uniform, so each muon may take its bending along a direction of its own: the
    # positions are then isotropic at every depth, and no rotation is needed there.
    charge = np.where(rng.random(len(each)) < POSITIVE_SHARE, 1.0, -1.0)
    bend = charge * each.bending / energy
    out, turn = rng.random((2, len(each))) * 2 * np.pi
    columns = []
    for direction in (np.cos, np.sin):
        slope, deflect = angle * direction(out), bend * direction(turn)
        columns += [slope * lever + deflect * height**2 / 2, slope + deflect * height]
    x, slope_x, y, slope_y = columns
    return Muons(shower, *(value.astype(np.float32) for value in (energy, x, y, slope_x, slope_y)))


def _production_distance(rng: np.random.Generator, each: Showers, energy: Floats) -> Floats:
    """Draw the slant distance [m] between each muon's production and the surface."""
    from scipy.special import digamma  # noqa: PLC0415 - 0.1 s that only the simulator needs

    shape = np.interp(np.log(each.mass_number), np.log(_DEPTH_SHAPE[0]), _DEPTH_SHAPE[1])
    nucleon = each.energy_gev / each.mass_number
    typical = DEPTH_G_CM2 * (nucleon / 1e5) ** DEPTH_PRIMARY * (energy / 500.0) ** DEPTH_MUON
    depth = typical * np.exp(each.stretch - digamma(shape)) * rng.standard_gamma(shape)
    vertical = np.clip(depth * each.cos_zenith, 0.5, SURFACE_G_CM2 * 0.98)
    return np.asarray(SCALE_HEIGHT_M / each.cos_zenith * np.log(SURFACE_G_CM2 / vertical))
