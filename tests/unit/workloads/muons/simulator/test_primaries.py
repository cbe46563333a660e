"""Primary spectra against their published values, and the sampling against the spectra."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.muons.simulator.physics import MASS_NUMBERS, flux, power_law, sample_primaries


def nucleus_of(primaries):
    return np.searchsorted(MASS_NUMBERS, primaries.mass_number)


@pytest.mark.parametrize(
    ("model", "nucleus", "energy_gev", "expected"),
    [
        ("gaisser_h4a", 0, 1e3, 7860 * 1e3**-2.66 * np.exp(-1 / 4e3) + 20 * 1e3**-2.4 + 200 * 1e3**-2.6),
        ("gaisser_h4a", 1, 1e6, 3550 * 1e6**-2.58 * np.exp(-1 / 8) + 20 * 1e6**-2.4 * np.exp(-1 / 60)),
        ("gaisser_h3a", 2, 1e6, 2200 * 1e6**-2.63 * np.exp(-1 / 28) + 14.54 * 1e6**-2.4),
        ("gaisser_h4a", 3, 1e3, 1430 * 1e3**-2.67 + 13.4 * 1e3**-2.4),
        ("gaisser_h3a", 4, 1e9, (13.4 * np.exp(-1 / 0.78) + 1.14 * np.exp(-1 / 52)) * 1e9**-2.4),
    ],
)
def test_flux_is_the_published_sum(model, nucleus, energy_gev, expected):
    """Gaisser 2012, table 1, written out for one nucleus each, terms near 1 or 0 left out (1 %)."""
    assert flux(model, np.array([energy_gev]))[nucleus, 0] == pytest.approx(expected, rel=0.01)


def test_all_particle_flux_at_the_knee():
    """PDG, Cosmic Rays, figure of the all-particle spectrum: E^2.6 F is about 1e4 at 1 PeV (25 %)."""
    assert flux("gaisser_h4a", np.array([1e6])).sum() * 1e6**2.6 == pytest.approx(1e4, rel=0.25)


def test_nucleon_flux_at_a_tev():
    """PDG, Cosmic Rays, first equation: 1.8e4 E^-2.7 nucleons per m2 s sr GeV, up to about 100 TeV (20 %)."""
    nucleons = sum(
        mass**2 * flux("gaisser_h4a", np.array([mass * 1e3]))[i, 0] for i, mass in enumerate(MASS_NUMBERS)
    )
    assert nucleons == pytest.approx(1.8e4 * 1e3**-2.7, rel=0.2)


def test_highest_energies_are_iron_in_h3a_and_protons_in_h4a():
    """Gaisser 2012, section 3: H3a ends in iron, H4a's extragalactic component is all protons."""
    at = np.array([3e11])
    h3a, h4a = flux("gaisser_h3a", at)[:, 0], flux("gaisser_h4a", at)[:, 0]
    assert h3a[4] / h3a.sum() > 0.9
    assert h4a[0] / h4a.sum() > 0.999


@pytest.mark.parametrize("index", [0.0, 1.0, 2.0, 2.7])
def test_power_law_follows_its_integral(index):
    """Kolmogorov-Smirnov against the analytic distribution function."""

    def below(energy):
        if index == 1:
            return np.log(energy / 600) / np.log(1e5 / 600)
        power = 1 - index
        return (energy**power - 600**power) / (1e5**power - 600**power)

    energy = power_law(np.random.default_rng(1).random(20_000), 600.0, 1e5, index)
    assert stats.kstest(energy, below).pvalue > 0.01


@pytest.mark.parametrize("model", ["gaisser_h3a", "gaisser_h4a"])
def test_sampled_energies_follow_the_model(model):
    """Counts in energy bins and nuclei against the integrated flux: chi-square per bin near one."""
    synthetic = AirShowersOptions(spectrum=model, energy_min_gev=1e5, energy_max_gev=1e9)
    drawn = sample_primaries(np.random.default_rng(2), synthetic, 200_000)
    edges = np.array([1e5, 2e5, 5e5, 2e6, 1e7, 1e9])
    expected = []
    for low, high in pairwise(edges):
        grid = np.geomspace(low, high, 2001)
        expected.append(np.trapezoid(flux(model, grid) * grid, np.log(grid), axis=1))
    expected = np.transpose(expected)
    expected *= 200_000 / expected.sum()
    found = np.histogram2d(nucleus_of(drawn), drawn.energy_gev, [np.arange(6) - 0.5, edges])[0]
    assert np.sum((found - expected) ** 2 / expected) / found.size < 2


def test_composition_has_the_given_shares():
    synthetic = AirShowersOptions(composition=(2.0, 0.0, 1.0, 0.0, 1.0))
    drawn = sample_primaries(np.random.default_rng(3), synthetic, 40_000)
    assert np.bincount(nucleus_of(drawn), minlength=5) / 40_000 == pytest.approx(
        [0.5, 0, 0.25, 0, 0.25], abs=0.01
    )


def test_zenith_laws():
    """Mean cosine from c = cos 80 deg to 1: (1 + c) / 2 if flat, 2/3 (1 - c^3) / (1 - c^2) if weighted."""
    low = np.cos(np.deg2rad(80))
    for law, mean in (("isotropic", (1 + low) / 2), ("plane", 2 / 3 * (1 - low**3) / (1 - low**2))):
        drawn = sample_primaries(np.random.default_rng(4), AirShowersOptions(zenith_law=law), 40_000)
        assert drawn.cos_zenith.mean() == pytest.approx(mean, abs=0.005)
        assert drawn.cos_zenith.min() >= low
