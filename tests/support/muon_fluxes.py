"""Published fluxes of single muons at the surface, and those of the simulator of muon bundles.

All are fluxes times the cube of the energy, in GeV2 / (cm2 s sr), at ENERGIES_GEV.
"""

import numpy as np

from crpipe.workloads.muons.simulator.physics import MASS_NUMBERS, Primaries, flux, mean_multiplicity

ENERGIES_GEV = 10 ** np.arange(2.35, 4.16, 0.2)
# MCEq with SIBYLL 2.3c below H3a in the US standard atmosphere, by zenith angle in degrees: some energies of
# mute/tests/surface/Surface_Fluxes_USStd_None_SIBYLL-2.3c_HG.txt of MUTE (wjwoodley/mute 2.0.0).
MCEQ = {
    0.0: (0.1949, 0.1706, 0.1439, 0.1176, 0.09379, 0.07325, 0.05623, 0.04243, 0.03156, 0.02317),
    42.63158: (0.2275, 0.2059, 0.1782, 0.1486, 0.1204, 0.09521, 0.07378, 0.05607, 0.04191, 0.03085),
    61.57895: (0.2707, 0.2592, 0.2346, 0.2027, 0.1687, 0.1363, 0.1074, 0.08264, 0.06233, 0.04615),
    75.78947: (0.3077, 0.3265, 0.3218, 0.2975, 0.261, 0.2195, 0.1784, 0.1407, 0.1081, 0.0811),
}
# daemonflux, vertical, fitted to measured muons (3 to 5 %): splines and calibration of its tests (0.9.0).
DAEMONFLUX = (0.2264, 0.2006, 0.1711, 0.1409, 0.1125, 0.0874, 0.06633, 0.04943, 0.03637, 0.0265)


def simulated_flux(zenith_deg, model="gaisser_h3a", energies=ENERGIES_GEV):
    """Integrate the mean multiplicities of ``AirShowers`` over a flux of primaries: no random numbers."""
    cosine, total = np.cos(np.deg2rad(zenith_deg)), []
    for energy in energies:
        primary = np.geomspace(energy, 1e11, 600)
        low, high = 0.99 * energy, 1.01 * energy
        each = [Primaries(primary, np.full(600, mass), np.full(600, cosine)) for mass in MASS_NUMBERS]
        density = [
            (mean_multiplicity(one, low) - mean_multiplicity(one, high)) / (high - low) for one in each
        ]
        integral = np.trapezoid((flux(model, primary) * density).sum(0) * primary, np.log(primary))
        total.append(1e-4 * integral * energy**3)
    return np.array(total)
