"""The simulation: primary nuclei, their showers in the air, and the muons that get through the ice.

In: the configuration's synthetic section. Out: ``Primaries``, one array per quantity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads.common import elementary
from crpipe.workloads.common.simulators import Arrays, joined, taken
from crpipe.workloads.muons.simulator.air import EARTH_RADIUS_M, Air, standard_air

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.muons.simulator.options import AirShowersOptions

    Floats = NDArray[np.float64]

MASS_NUMBERS = np.array([1.0, 4.0, 14.0, 27.0, 56.0])  # proton, He, N, Al, Fe
CHARGES = np.array([1.0, 2.0, 7.0, 13.0, 26.0])

# Gaisser 2012 (Astropart. Phys. 35, 801, table 1), H3a and H4a: for each population of sources the flux at
# 1 GeV [1/(GeV m2 sr s)] and the spectral index of each nucleus, and the rigidity of the cut-off [GV].
_GALACTIC = (
    ((7860.0, 3550.0, 2200.0, 1430.0, 2120.0), (2.66, 2.58, 2.63, 2.67, 2.63), 4e6),
    ((20.0, 20.0, 13.4, 13.4, 13.4), (2.4, 2.4, 2.4, 2.4, 2.4), 3e7),
)
POPULATIONS = {
    "gaisser_h3a": (*_GALACTIC, ((1.7, 1.7, 1.14, 1.14, 1.14), (2.4, 2.4, 2.4, 2.4, 2.4), 2e9)),
    "gaisser_h4a": (*_GALACTIC, ((200.0, 0.0, 0.0, 0.0, 0.0), (2.6, 2.6, 2.6, 2.6, 2.6), 6e10)),
}
_GRID_PER_DECADE = 200  # a table this fine follows the cut-offs to 1e-4
_FLAT = 1e-9  # an index this close to 1: the integral is a logarithm


@dataclass(frozen=True, slots=True)
class Primaries(Arrays):
    """N primaries: total energy [GeV], mass number, cosine of the zenith angle; each [N] float64."""

    energy_gev: Floats
    mass_number: Floats
    cos_zenith: Floats


def flux(model: str, energy_gev: Floats) -> Floats:
    """Evaluate Gaisser's H3a or H4a: [5, ...] in 1/(GeV m2 sr s), proton to iron; energy per particle."""
    energy = np.asarray(energy_gev, np.float64)
    shape = (-1,) + (1,) * energy.ndim
    total = np.zeros((len(CHARGES), *energy.shape))
    for norm, index, rigidity in POPULATIONS[model]:
        cutoff = np.exp(-energy / (rigidity * CHARGES.reshape(shape)))
        total += np.reshape(norm, shape) * energy ** -np.reshape(index, shape) * cutoff
    return total


def sample_primaries(rng: np.random.Generator, options: AirShowersOptions, count: int) -> Primaries:
    """Draw ``count`` primaries with the section's spectrum, composition and zenith law."""
    if options.spectrum == "power_law":
        limits = options.energy_min_gev, options.energy_max_gev
        energy = power_law(rng.random(count), *limits, options.spectral_index)
        share = np.array(options.composition) / np.sum(options.composition)
        nucleus = rng.choice(len(share), count, p=share)
    else:
        energy, nucleus = _sample_model(rng, options, count)
    lowest = np.cos(np.deg2rad(options.zenith_max_deg))
    uniform = rng.random(count)
    if options.zenith_law == "isotropic":
        cosine = lowest + (1 - lowest) * uniform
    else:  # through a horizontal plane: density proportional to the cosine
        cosine = np.sqrt(lowest**2 + (1 - lowest**2) * uniform)
    return Primaries(energy, MASS_NUMBERS[nucleus], cosine)


def power_law(uniform: Floats, low: Any, high: Any, index: Any) -> Floats:
    """Map uniform variates to E^-index between ``low`` and ``high`` (all broadcast against each other)."""
    power = 1 - np.asarray(index, np.float64)
    span = np.divide(high, low)
    flat = np.abs(power) < _FLAT
    power = np.where(flat, 1.0, power)
    sloped = (1 + uniform * (span**power - 1)) ** (1 / power)
    return np.asarray(low * np.where(flat, span**uniform, sloped))


def _sample_model(
    rng: np.random.Generator, options: AirShowersOptions, count: int
) -> tuple[Floats, NDArray[np.intp]]:
    """Draw (nucleus, bin) from the tabulated flux, then the energy within the bin as a local power law."""
    low, high = options.energy_min_gev, options.energy_max_gev
    bins = int(np.ceil(_GRID_PER_DECADE * elementary.log10(high / low)))
    edges = np.geomspace(low, high, bins + 1)
    value = np.maximum(flux(options.spectrum, edges), np.finfo(float).tiny)
    slope = np.diff(np.log(value), axis=1) / np.diff(np.log(edges))
    # The flux of a bin with local index s: E f(E) over (s + 1), between the edges; s = -1 does not occur.
    content = np.diff(value * edges, axis=1) / (slope + 1)
    cumulative = np.cumsum(content.ravel())
    cell = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    cell = np.minimum(cell, content.size - 1)
    nucleus, bin_ = np.divmod(cell, bins)
    energy = power_law(rng.random(count), edges[bin_], edges[bin_ + 1], -slope.ravel()[cell])
    return energy, nucleus


# Muons on their way down through the ice: energy loss, multiple scattering, death.
#
# In: muons at the surface and the path to a depth. Out: those still alive there, in the same order.

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
class Muons(Arrays):
    """M muons in the plane across their shower's axis.

    shower: [M] int32, ascending; energy [GeV], x, y [m] and their slopes [rad]: [M] float32 each.
    """

    shower: NDArray[np.int32]
    energy: NDArray[np.float32]
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    slope_x: NDArray[np.float32]
    slope_y: NDArray[np.float32]

    def table(self) -> NDArray[np.float32]:
        """Copy energy, x and y into the layout of the files: [M, 3] float32."""
        return np.stack([self.energy, self.x, self.y], axis=1)


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
    chunks = (taken(muons, slice(start, start + CHUNK)) for start in range(0, len(muons), CHUNK))
    return joined([_advance_chunk(rng, chunk, leg) for chunk in chunks])


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
        muons, before, passed = taken(muons, alive), before[alive], passed[alive]
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


# Air showers as seen by deep detectors: how many high-energy muons, with which energies, how far apart.
#
# In: primaries. Out: the muons of each at the surface, above a threshold. Every number has its source.

# Number of muons: NORM A / E (En / E)^p (1 - E / En)^q per GeV, which scales as Elbert's law (Gaisser, Cosmic
# Rays and Particle Physics, 1990: p = 0.757), times the chance that a parent decays rather than interacts.
# Elbert's 1 / (E c) is its limit far above the critical energy of pions; here it is that of Gaisser's flux
# of muons, for pions and kaons (Review of Particle Physics, Cosmic Rays). The larger En / E, the deeper in
# the air are the parents made, and the lower is their critical energy: as (En / E)^-DEEPER, 115 GeV for pions
# at En = 300 E.
# The scaling itself bends: p grows slowly with En. All is fitted to proton cascades with SIBYLL 2.3d
# (cascade.py), 3 TeV to 1 EeV, and to the flux of MCEq, above MUON_THRESHOLD_GEV.
MUON_THRESHOLD_GEV = 273.0
NORM, SCALING_INDEX, END_POINT = 0.1067, 0.9075, 3.859
BEND, STRAIGHT_GEV = 0.0061, 3.3e6  # times exp(BEND ln(En / STRAIGHT_GEV)^2)
DEEPER, DEEPER_RATIO = 0.1415, 300.0
DECAYS = ((1.0, 1.1 / 115.0), (0.054, 1.1 / 850.0))  # pions, kaons: share and 1 / critical energy [1/GeV]
CLUSTERS, CLUSTERS_RISE = 6.0, 0.14  # k of the negative binomial is 6 A (En / 100 TeV)^0.14

_QUADRATURE = np.polynomial.legendre.leggauss(8)
_NODES = tuple(((node + 1) / 2, weight / 2) for node, weight in zip(*_QUADRATURE, strict=True))

# Effective cosine of the zenith angle at production (Chirkin, hep-ph/0407078).
_CURVED = (0.102573, -0.068287, 0.958633, 0.0407253, 0.817285)

# Where muons are born and how far from the axis, fitted to the same cascades.
MOMENTUM_GEV, MOMENTUM_SHAPE, MOMENTUM_RISE = 0.375, 2.0, 0.06  # mean transverse momentum at 330 GeV
DEPTH_G_CM2, DEPTH_PRIMARY, DEPTH_MUON = 128.2, 0.188, -0.219  # geometric mean depth, 100 TeV and 500 GeV
DEEPEST_G_CM2, DEEPEST_MUON = 335.0, -0.12  # its limit: deeper, in denser air, parents interact
DEPTH_VARIANCE, DEPTH_FALL = 1.3, -0.16  # of its logarithm, from muon to muon
SHARED_VARIANCE, SHARED_FALL, SHARED_MASS = 0.42, -0.33, -0.65  # what a shower's muons share of it
LARGEST_VARIANCE = 1.7
FLIGHT_G_CM2, FLIGHT_ZENITH = 115.0, 0.4  # of a parent: mean, and power of the cosine

# Earth's field at the South Pole.
FIELD_T, DIP_RAD = 54e-6, np.deg2rad(72.5)
POSITIVE_SHARE = 1.3 / 2.3  # charge ratio 1.3
BENDING_GEV_PER_T_M = 0.3


@dataclass(frozen=True, slots=True)
class Showers(Arrays):
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


def effective_cosine(cos_zenith: Floats) -> Floats:
    """Correct the cosine for the curved atmosphere: larger than the cosine itself near the horizon."""
    p1, p2, p3, p4, p5 = _CURVED
    square = cos_zenith**2 + p1**2 + p2 * cos_zenith**p3 + p4 * cos_zenith**p5
    return np.asarray(np.sqrt(square / (1 + p1**2 + p2 + p4)))


def decay_probability(energy_gev: Floats, nucleon_gev: Floats, cosine: Floats) -> Floats:
    """Return how often pions decay, and 0.054 as many kaons: 1.054 at low energy, then falling with E c.

    nucleon_gev: energy of the nucleon that made the shower.
    """
    return np.asarray(sum(part for part, _ in _decaying(energy_gev, nucleon_gev, cosine)))


def _decaying(energy_gev: Floats, nucleon_gev: Floats, cosine: Floats) -> list[tuple[Floats, Floats]]:
    """Return for pions and kaons how many decay, and -d log / d log E of that."""
    pull = energy_gev * cosine * (nucleon_gev / (DEEPER_RATIO * energy_gev)) ** DEEPER
    return [
        (share / (1 + inverse * pull), (1 - DEEPER) * inverse * pull / (1 + inverse * pull))
        for share, inverse in DECAYS
    ]


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Energies of muons above thresholds [N]: a power law, of which ``kept`` of each energy remains.

    ``index`` is that of the law itself at the threshold, where it is flattest: no more than all is kept.
    """

    nucleon_gev: Floats
    cosine: Floats
    threshold: Floats
    index: Floats

    @classmethod
    def of(cls, primaries: Primaries | Showers, threshold_gev: Floats) -> Spectrum:
        """Describe the muons of primaries, whose nucleons have more energy than the thresholds."""
        nucleon, cosine = primaries.energy_gev / primaries.mass_number, effective_cosine(primaries.cos_zenith)
        parts = _decaying(threshold_gev, nucleon, cosine)
        steeper = sum(part * slope for part, slope in parts) / sum(part for part, _ in parts)
        return cls(nucleon, cosine, threshold_gev, np.asarray(1 + SCALING_INDEX + steeper))

    def proposed(self, uniform: Any) -> Floats:
        """Map uniform variates to energies of the power law, between threshold and end point."""
        return power_law(uniform, self.threshold, self.nucleon_gev, self.index)

    def kept(self, energy: Floats) -> Floats:
        """Return the share of the power law that remains at an energy, at most 1 at the threshold."""
        decays = decay_probability(energy, self.nucleon_gev, self.cosine) / self._decays()
        rise = (energy / self.threshold) ** (self.index - 1 - SCALING_INDEX)
        return np.asarray(decays * rise * (1 - np.minimum(energy / self.nucleon_gev, 1)) ** END_POINT)

    def total(self) -> Floats:
        """Integrate the law over the energies above the threshold, for one nucleon."""
        span, power = self.nucleon_gev / self.threshold, self.index - 1
        law = NORM * span**SCALING_INDEX * (1 - span**-power) / power
        law *= np.exp(BEND * np.log(self.nucleon_gev / STRAIGHT_GEV) ** 2)
        remaining = sum(weight * self.kept(self.proposed(node)) for node, weight in _NODES)
        return np.asarray(law * self._decays() * remaining)

    def _decays(self) -> Floats:
        return decay_probability(self.threshold, self.nucleon_gev, self.cosine)


def mean_multiplicity(primaries: Primaries, threshold_gev: float | Floats) -> Floats:
    """Mean number of muons above ``threshold_gev`` at the surface, [N]; 0 for nucleons of less energy."""
    threshold, mean = np.broadcast_to(threshold_gev, len(primaries)), np.zeros(len(primaries))
    possible = primaries.energy_gev > threshold * primaries.mass_number
    some = taken(primaries, possible)
    mean[possible] = some.mass_number * Spectrum.of(some, threshold[possible]).total()
    return mean


def clusters(primaries: Primaries) -> Floats:
    """Return k of the negative binomial that multiplicities follow, [N]."""
    nucleon = primaries.energy_gev / primaries.mass_number
    return np.asarray(CLUSTERS * primaries.mass_number * (nucleon / 1e5) ** CLUSTERS_RISE)


def sample_showers(rng: np.random.Generator, primaries: Primaries, threshold_gev: Floats) -> Showers:
    """Draw what happens to each primary as a whole; muons below its threshold [N] are left out.

    Leaving them out is exact: a negative binomial, thinned, keeps its k.
    """
    mass, cosine = primaries.mass_number, primaries.cos_zenith
    threshold = np.maximum(threshold_gev, MUON_THRESHOLD_GEV)
    k = clusters(primaries)
    multiplicity = rng.poisson(mean_multiplicity(primaries, threshold) * rng.standard_gamma(k) / k)
    shared = _depth_variances(primaries.energy_gev / mass, mass)[0]
    stretch = rng.standard_normal(len(mass)) * np.sqrt(shared)
    bend = bending(rng, cosine)
    return Showers(primaries.energy_gev, mass, cosine, threshold, multiplicity, stretch, bend)


def bending(rng: np.random.Generator, cos_zenith: Floats) -> Floats:
    """Draw azimuths; return the curvature of a 1 GeV muon's track in the Earth's field [1/m]."""
    azimuth = rng.random(len(cos_zenith)) * 2 * np.pi
    level, upright = np.cos(DIP_RAD), np.sin(DIP_RAD)
    along = np.sqrt(1 - cos_zenith**2) * np.cos(azimuth) * level + cos_zenith * upright
    return np.asarray(BENDING_GEV_PER_T_M * FIELD_T * np.sqrt(1 - np.clip(along, -1, 1) ** 2))


def sample_muons(rng: np.random.Generator, showers: Showers, air: Air | None = None) -> Muons:
    """Draw every muon of every shower at the surface, in the order of the showers."""
    air = air or standard_air()
    shower = np.repeat(np.arange(len(showers), dtype=np.int32), showers.multiplicity)
    starts = range(0, max(len(shower), 1), CHUNK)
    return joined([_sample_chunk(rng, showers, shower[start : start + CHUNK], air) for start in starts])


def sample_energies(rng: np.random.Generator, showers: Showers) -> Floats:
    """Draw one muon energy for each entry, from the spectrum that ``mean_multiplicity`` integrates."""
    spectrum = Spectrum.of(showers, showers.threshold_gev)
    energy, left = np.empty(len(showers)), np.arange(len(showers))
    while len(left):
        some = taken(spectrum, left)
        trial = some.proposed(rng.random(len(left)))
        kept = rng.random(len(left)) < some.kept(trial)
        energy[left[kept]] = trial[kept]
        left = left[~kept]
    return energy


def _sample_chunk(rng: np.random.Generator, showers: Showers, shower: NDArray[np.int32], air: Air) -> Muons:
    parents = taken(showers, shower)
    energy = sample_energies(rng, parents)
    depth = _production_depth(rng, parents, energy, air)
    distance = air.length_at(depth, parents.cos_zenith)
    momentum = rng.standard_gamma(MOMENTUM_SHAPE, len(parents)) * (MOMENTUM_GEV / MOMENTUM_SHAPE)
    angle = momentum * (energy / 330.0) ** MOMENTUM_RISE / energy
    # A parent flies apart from the axis, too: the lever arm begins where it was made, higher than the muon.
    flight = FLIGHT_G_CM2 * parents.cos_zenith**FLIGHT_ZENITH * rng.standard_exponential(len(parents))
    lever = air.length_at(depth**2 / (depth + flight), parents.cos_zenith)
    # The shower's own azimuth is uniform, so each muon may take its bending along a direction of its own: the
    # positions are then isotropic at every depth, and no rotation is needed there.
    charge = np.where(rng.random(len(parents)) < POSITIVE_SHARE, 1.0, -1.0)
    bend = charge * parents.bending / energy
    out, turn = rng.random((2, len(parents))) * 2 * np.pi
    columns = []
    for direction in (np.cos, np.sin):
        slope, deflect = angle * direction(out), bend * direction(turn)
        columns += [slope * lever + deflect * distance**2 / 2, slope + deflect * distance]
    x, slope_x, y, slope_y = columns
    return Muons(shower, *(value.astype(np.float32) for value in (energy, x, y, slope_x, slope_y)))


def _depth_variances(nucleon_gev: Floats, mass_number: Floats) -> tuple[Floats, Floats]:
    """Return the variances of log production depth: what a shower's muons share, and what is their own."""
    ratio = nucleon_gev / 1e5
    both = np.minimum(DEPTH_VARIANCE * ratio**DEPTH_FALL, LARGEST_VARIANCE)
    shared = np.minimum(SHARED_VARIANCE * ratio**SHARED_FALL, both / 2) * mass_number**SHARED_MASS
    return shared, both - shared


def _production_depth(rng: np.random.Generator, showers: Showers, energy: Floats, air: Air) -> Floats:
    """Draw the air passed before each muon's production [g/cm2], none of it below the surface."""
    from scipy.special import digamma  # noqa: PLC0415 - 0.1 s that only the simulator needs

    nucleon, cosine = showers.energy_gev / showers.mass_number, showers.cos_zenith
    free = DEPTH_G_CM2 * (nucleon / 1e5) ** DEPTH_PRIMARY * (energy / 500.0) ** DEPTH_MUON
    deepest = DEEPEST_G_CM2 * (energy / 500.0) ** DEEPEST_MUON
    within = _depth_variances(nucleon, showers.mass_number)[1]
    shape = (1 + np.sqrt(1 + 2 * within)) / (2 * within)  # a gamma variate whose logarithm varies so much
    scale = np.exp(showers.stretch - digamma(shape)) * free / (1 + (free / deepest) ** 4) ** 0.25
    depth = rng.standard_gamma(shape) * scale
    ground = air.depth(np.zeros(len(depth)), cosine)
    below = np.flatnonzero(depth > ground)
    while len(below):
        depth[below] = rng.standard_gamma(shape[below]) * np.minimum(scale, ground)[below]
        below = below[depth[below] > ground[below]]
    return depth
