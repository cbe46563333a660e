"""The simulators of muon bundles beside published numbers: rows of the tables in physics.md.

    OMP_NUM_THREADS=1 python docs/muon_numbers.py [SHOWERS]

SHOWERS (20,000) of 100 TeV are followed by the cascade, 1/6 as many for each decade of energy more, 20 at
least; 0 leaves the cascade out. `make test-physics` prints what needs CORSIKA's files or the way in the ice.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from crpipe.workloads.muons.simulator.cascade import follow
from crpipe.workloads.muons.simulator.interactions import final_states
from crpipe.workloads.muons.simulator.physics import Primaries, mean_multiplicity
from muon_fluxes import DAEMONFLUX, ENERGIES_GEV, MCEQ, simulated_flux

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.workloads.muons.simulator.interactions import FinalStates

SHOWN = slice(1, None, 2)  # of ENERGIES_GEV: 0.35, 0.9, 2.2, 5.6, 14 TeV
ELBERT = {300.0: 3.87, 500.0: 1.56, 1000.0: 0.45}  # of a vertical proton of 100 TeV (Gaisser 1990)
COSINES = (1.0, 0.7, 0.4, 0.25, 0.174)


def fluxes() -> Iterator[str]:
    """Yield ratios of single muons at the surface."""
    energies = ", ".join(f"{energy / 1000:.2g}" for energy in ENERGIES_GEV[SHOWN])
    yield f"| muons at the surface at {energies} TeV, over | ratio |"
    yield "|---|---|"
    references = [("MCEq", zenith, flux) for zenith, flux in MCEQ.items()] + [("daemonflux", 0.0, DAEMONFLUX)]
    for name, zenith, flux in references:
        ratio = (simulated_flux(zenith) / flux)[SHOWN]
        yield f"| {name}, {zenith:.0f}° | {', '.join(f'{each:.2f}' for each in ratio)} |"


def multiplicities(states: FinalStates, showers: int) -> Iterator[str]:
    """Yield means of the cascade, above 300 GeV, and what ``AirShowers`` has over them, with errors."""
    yield "| a proton of 100 TeV, c = 1 | Cascade | AirShowers | Elbert |"
    yield "|---|---|---|---|"
    counts, formula = numbers(states, 1e5, 1.0, showers)
    for threshold, published in ELBERT.items():
        one = f"{counts[threshold].mean():.3g} | {formula[threshold]:.3g}"
        yield f"| muons above {threshold:.0f} GeV | {one} | {published} |"
    yield ""
    yield f"| AirShowers over Cascade at c = {', '.join(map(str, COSINES))} | above 300 GeV | above 1 TeV |"
    yield "|---|---|---|"
    for energy in (1e5, 1e6, 1e7, 1e8, 1e9):
        count = max(20, int(showers * (1e5 / energy) ** 0.78))
        each = [numbers(states, energy, cosine, count) for cosine in COSINES]
        cells = []
        for threshold in (300.0, 1000.0):
            ratio = [formula[threshold] / counts[threshold].mean() for counts, formula in each]
            error = [
                counts[threshold].std() / counts[threshold].mean() / np.sqrt(count) for counts, _ in each
            ]
            cells.append(f"{', '.join(f'{one:.2f}' for one in ratio)} (± {np.mean(error):.2f})")
        yield f"| proton of {energy:.0e} GeV | {' | '.join(cells)} |"


def numbers(
    states: FinalStates, energy_gev: float, cosine: float, showers: int
) -> tuple[dict[float, np.ndarray], dict[float, float]]:
    """Return by threshold the numbers of muons of each shower, and the formula's mean."""
    protons = Primaries(*(np.full(showers, value) for value in (energy_gev, 1.0, cosine)))
    muons = follow(np.random.default_rng(1), states, protons, np.full(showers, min(ELBERT)))
    counts = {each: np.bincount(muons.shower[muons.energy > each], minlength=showers) for each in ELBERT}
    return counts, {each: float(mean_multiplicity(protons, each)[0]) for each in ELBERT}


def main(showers: int = 20_000) -> None:
    """Print the rows."""
    for line in fluxes():
        print(line)
    if showers:
        print()
        for line in multiplicities(final_states("Sibyll23d"), showers):
            print(line, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
