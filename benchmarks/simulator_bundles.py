"""Bundles underground below the H4a flux, simulated and as published; main prints their ratios.

Published: Becherini, Margiotta, Sioli, Spurio 2006, Astropart. Phys. 25, 1: rate, multiplicities, mean radius
between 1.5 and 5 km of water; the 1.5 km of ice below are 1.36 km of water, a little outside.

    OMP_NUM_THREADS=1 python benchmarks/simulator_bundles.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.config.loading import Synthetic
from crpipe.workloads.muons.simulator.files import resimulate
from crpipe.workloads.muons.simulator.physics import MASS_NUMBERS, flux, power_law

if TYPE_CHECKING:
    from numpy.typing import NDArray

INDEX, LOWEST_GEV, HIGHEST_GEV = 1.7, 1e3, 1e8  # energies are drawn flatter than the flux, and weighted


@dataclass(frozen=True)
class Bundles:
    """N simulated events at one depth and angle, and their weights [1/(m2 s sr)]; M muons."""

    multiplicity: NDArray[np.uint32]
    muons: NDArray[np.float32]
    weight: NDArray[np.float64]

    def rate(self, muons: int) -> float:
        """Rate of events with that many muons."""
        return float(self.weight[self.multiplicity == muons].sum())

    def radius(self, muons: int) -> float:
        """Mean distance to the axis in events with that many muons."""
        chosen = np.repeat(self.multiplicity == muons, self.multiplicity)
        each = np.repeat(self.weight, self.multiplicity)[chosen]
        return float(np.average(np.hypot(self.muons[chosen, 1], self.muons[chosen, 2]), weights=each))


def simulate(count: int, zenith_rad: float, depth_m: float) -> Bundles:
    """Draw ``count`` primaries of the H4a flux at one angle, and their muons at one depth."""
    rng = np.random.default_rng(2)
    nucleus = rng.integers(0, len(MASS_NUMBERS), count)
    energy = power_law(rng.random(count), LOWEST_GEV, HIGHEST_GEV, INDEX)
    norm = len(MASS_NUMBERS) * (LOWEST_GEV ** (1 - INDEX) - HIGHEST_GEV ** (1 - INDEX)) / (INDEX - 1)
    weight = norm * flux("gaisser_h4a", energy)[nucleus, np.arange(count)] * energy**INDEX / count
    columns = {
        "energy_gev": energy,
        "zenith_rad": np.full(count, zenith_rad),
        "mass_number": MASS_NUMBERS[nucleus],
        "depth_m": np.full(count, depth_m),
    }
    return Bundles(*resimulate(Synthetic(), 1, columns), weight)


def water_km(depth_m: float) -> float:
    """Convert a depth at the South Pole to kilometres of water."""
    return 0.2 * 0.832 + (depth_m / 1e3 - 0.2) * 0.917


def published_rate(zenith_rad: float, depth_m: float, muons: int) -> float:
    """Rate of bundles of that many muons [1/(m2 s sr)]."""
    h, cosine = water_km(depth_m), np.cos(zenith_rad)
    single = 7.2e-3 * h**-1.927 * cosine * np.exp((-0.581 * h + 0.034) / cosine)
    nu = (0.01041 * h**2 + 0.09912 * h + 2.712) * np.exp(0.01615 * np.exp(0.6010 * h) / cosine)
    return float(single * muons**-nu)


def published_radius(zenith_rad: float, depth_m: float, muons: int) -> float:
    """Mean distance to the axis in bundles of that many muons, at most four [m]."""
    mean = (28.26 - 1.786 * muons) * water_km(depth_m) ** -1.06
    return float(mean / (np.exp((zenith_rad - 1.3) * 10.4) + 1))


def main() -> None:
    """Print simulated over published for some depths and angles."""
    for cosine in (1.0, 0.8, 0.6, 0.5):
        for depth in (1500.0, 2000.0, 2500.0):
            zenith = float(np.arccos(cosine))
            found = simulate(400_000, zenith, depth)
            rate = found.rate(1) / published_rate(zenith, depth, 1)
            shares = " ".join(
                f"{found.rate(m) / published_rate(zenith, depth, m) / rate:.2f}" for m in (2, 3, 4)
            )
            radius = found.radius(2) / published_radius(zenith, depth, 2)
            print(
                f"cos {cosine:.1f} depth {depth:.0f} m: single {rate:.2f}  "
                f"2, 3, 4 muons over single {shares}  radius of 2 {radius:.2f}"
            )


if __name__ == "__main__":
    main()
