"""Primary nuclei: energies, masses and zenith angles of cosmic rays, drawn from a chosen spectrum.

In: the configuration's synthetic section. Out: ``Primaries``, one array per quantity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.workloads import elementary

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
class Primaries:
    """N primaries: total energy [GeV], mass number, cosine of the zenith angle; each [N] float64."""

    energy_gev: Floats
    mass_number: Floats
    cos_zenith: Floats

    def __len__(self) -> int:
        """Count the primaries."""
        return len(self.energy_gev)


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
        energy, nucleus = _sample_power_law(rng, options, count)
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


def _sample_power_law(
    rng: np.random.Generator, options: AirShowersOptions, count: int
) -> tuple[Floats, NDArray[np.intp]]:
    limits = options.energy_min_gev, options.energy_max_gev
    energy = power_law(rng.random(count), *limits, options.spectral_index)
    share = np.array(options.composition) / np.sum(options.composition)
    return energy, rng.choice(len(share), count, p=share)


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
