"""Primaries, their showers in the air, and muons on their way through the ice."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from crpipe.workloads.common.simulators import taken
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.muons.simulator.physics import (
    BEND,
    DEEPER,
    DEEPER_RATIO,
    END_POINT,
    IONISATION_GEV_PER_M,
    JUMPS_PER_M,
    MASS_NUMBERS,
    MUON_THRESHOLD_GEV,
    NORM,
    RADIATION_PER_M,
    RADIATION_SCALE,
    SCALING_INDEX,
    STRAIGHT_GEV,
    Muons,
    Primaries,
    advance,
    clusters,
    decay_probability,
    effective_cosine,
    flux,
    mean_multiplicity,
    power_law,
    sample_energies,
    sample_muons,
    sample_primaries,
    sample_showers,
    track,
)
from muon_fluxes import DAEMONFLUX, MCEQ, simulated_flux


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


def primaries(energy_gev, mass_number=1.0, cos_zenith=1.0, count=1):
    return Primaries(*(np.full(count, value, np.float64) for value in (energy_gev, mass_number, cos_zenith)))


def showers(seed, given, threshold_gev=0.0):
    return sample_showers(np.random.default_rng(seed), given, np.full(len(given), threshold_gev))


@pytest.mark.parametrize(
    ("threshold", "published", "tolerance"), [(300, 3.87, 0.1), (500, 1.56, 0.2), (1000, 0.45, 0.3)]
)
def test_mean_multiplicity_is_near_elberts(threshold, published, tolerance):
    """Gaisser 1990: N = 14.5 / E (E0 / E)^0.757 (1 - E / E0)^5.25, a vertical proton of 100 TeV.

    Its spectrum is that far above the critical energy of pions, steeper than ours.
    """
    assert mean_multiplicity(primaries(1e5), threshold)[0] == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize("threshold", [273.0, 2000.0])
@pytest.mark.parametrize("cosine", [1.0, 0.2])
def test_mean_multiplicity_is_the_integral_of_the_law(threshold, cosine):
    """NORM / E (En / E)^p (1 - E / En)^q times decays and bend, by a sum over 10^4 energies (0.2 %)."""
    edges = np.geomspace(threshold, 1e6, 10_001)
    energy = np.sqrt(edges[1:] * edges[:-1])
    law = NORM / energy * (1e6 / energy) ** SCALING_INDEX * (1 - energy / 1e6) ** END_POINT
    law *= decay_probability(energy, np.float64(1e6), effective_cosine(np.array([cosine])))
    law *= np.exp(BEND * np.log(1e6 / STRAIGHT_GEV) ** 2)
    expected = 14 * np.sum(law * np.diff(edges))
    assert mean_multiplicity(primaries(14e6, 14, cosine), threshold)[0] == pytest.approx(expected, rel=2e-3)


# Mean multiplicities of protons in ``Cascade``, SIBYLL 2.3d, at COSINES: to 1 %, 3 % at 1e8, 5 % at 1e9 GeV.
COSINES = (1.0, 0.7, 0.4, 0.25, 0.174)
CASCADE = {
    (1e4, 300): (0.583, 0.761, 1.075, 1.362, 1.554),
    (1e5, 300): (3.963, 5.244, 7.619, 9.875, 11.60),
    (1e5, 1000): (0.558, 0.754, 1.191, 1.685, 2.081),
    (1e6, 300): (23.77, 31.96, 47.27, 62.80, 74.33),
    (1e6, 1000): (3.293, 4.554, 7.256, 10.26, 12.97),
    (1e7, 300): (147.4, 208.5, 317.4, 418.2, 507.6),
    (1e7, 1000): (19.54, 28.11, 46.16, 65.06, 83.33),
    (1e8, 300): (1017, 1474, 2220, 3129, 3634),
    (1e8, 1000): (132.2, 193.7, 306.5, 458.2, 564.3),
    (1e9, 300): (6538, 10060, 15790, 22090, 25860),
    (1e9, 1000): (845, 1269, 2148, 3213, 3961),
}


@pytest.mark.parametrize(("energy", "threshold"), CASCADE)
def test_mean_multiplicity_is_that_of_a_cascade(energy, threshold):
    """Within 10 % from 10 TeV to 1 EeV, from vertical to 80 degrees."""
    each = [mean_multiplicity(primaries(energy, cos_zenith=cosine), threshold)[0] for cosine in COSINES]
    assert np.array(each) / CASCADE[energy, threshold] == pytest.approx(1, abs=0.1)


def test_a_nucleus_has_the_muons_of_its_nucleons():
    nucleon, iron = mean_multiplicity(primaries(1e6), 500.0), mean_multiplicity(primaries(56e6, 56), 500.0)
    assert iron == pytest.approx(56 * nucleon)


def test_no_muon_outruns_its_nucleon():
    given = primaries(1e5, 56, count=2000)
    drawn = showers(1, given)
    assert mean_multiplicity(primaries(56 * 273, 56), 273.0)[0] == 0
    assert sample_muons(np.random.default_rng(2), drawn).energy.max() <= 1e5 / 56


def test_decay_probability():
    """Gaisser 1990, ch. 6: all parents decay at low energy; at high, as many as 1 / (E c), and more kaons.

    A nucleon of more energy makes them deeper in the air, where fewer decay.
    """
    energy = np.array([1e-3, 1e8])
    low, high = decay_probability(energy, DEEPER_RATIO * energy, np.ones(2))
    assert low == pytest.approx(1.054, abs=1e-4)
    assert high * 1e8 == pytest.approx((115 + 0.054 * 850) / 1.1, rel=1e-4)
    inclined, deeper = decay_probability(energy, np.array([[3e10], [3e11]]), np.array([[0.5], [1.0]]))[:, 1]
    assert inclined == pytest.approx(2 * high, rel=1e-4)
    assert deeper == pytest.approx(high * 10**-DEEPER, rel=1e-4)


def test_effective_cosine():
    """Chirkin 2004: the plain cosine down to about 70 degrees (3 %), and near 0.1 at the horizon."""
    angles = np.cos(np.deg2rad([0, 30, 60, 70]))
    assert effective_cosine(angles) == pytest.approx(angles, rel=0.03)
    assert 0.09 < effective_cosine(np.array([1e-6]))[0] < 0.12


@pytest.mark.parametrize("zenith_deg", MCEQ)
def test_flux_of_single_muons(zenith_deg):
    """MCEq below the same flux of primaries, 0.35 to 14 TeV: within 6 %, and of the same shape within 6 %."""
    ratio = (simulated_flux(zenith_deg) / MCEQ[zenith_deg])[1:]
    assert ratio == pytest.approx(1, abs=0.06)
    assert ratio.max() / ratio.min() < 1.06


def test_flux_of_single_muons_below_a_measured_one():
    """daemonflux is fitted to measured muons: H3a's primaries give 13 to 19 % less."""
    assert np.all(np.abs(simulated_flux(0.0) / DAEMONFLUX - 0.84) < 0.03)


@pytest.mark.parametrize(("mass", "threshold"), [(1, 0.0), (14, 0.0), (1, 1000.0)])
def test_fluctuation_is_a_negative_binomial(mass, threshold):
    """Variance m + m^2 / k, above any threshold (5 %); k of one nucleon of 10 PeV is 6 * 100^0.14 = 11.4."""
    one = primaries(1e7 * mass, mass)
    assert clusters(one)[0] == pytest.approx(11.4 * mass, rel=0.01)
    drawn = showers(3, primaries(1e7 * mass, mass, count=40_000), threshold)
    mean = mean_multiplicity(one, max(threshold, MUON_THRESHOLD_GEV))[0]
    assert drawn.multiplicity.mean() == pytest.approx(mean, rel=0.01)
    assert drawn.multiplicity.var() == pytest.approx(mean + mean**2 / clusters(one)[0], rel=0.05)


@pytest.mark.parametrize(
    ("energy", "cosine", "threshold"), [(1e4, 1.0, 273.0), (1e6, 0.2, 273.0), (1e6, 0.5, 900.0)]
)
def test_muon_energies_follow_the_law(energy, cosine, threshold):
    """Kolmogorov-Smirnov of sampled energies against N(> E) / N(> threshold)."""
    one = primaries(energy, 1, cosine)
    each = taken(showers(4, one, threshold), np.zeros(30_000, np.int32))
    drawn = sample_energies(np.random.default_rng(5), each)
    total = mean_multiplicity(one, threshold)[0]
    many = primaries(energy, 1, cosine, len(drawn))
    assert stats.kstest(drawn, lambda e: 1 - mean_multiplicity(many, e) / total).pvalue > 0.01


def test_a_threshold_only_leaves_muons_out():
    """Muons above 1 TeV, drawn directly or chosen among those above 273 GeV (mean 3 %, variance 10 %)."""
    given = primaries(1e7, 4, count=3000)
    direct = showers(6, given, 1000.0).multiplicity
    low = sample_muons(np.random.default_rng(7), showers(8, given))
    chosen = np.bincount(low.shower[low.energy > 1000], minlength=len(given))
    assert direct.mean() == pytest.approx(chosen.mean(), rel=0.03)
    assert direct.var() == pytest.approx(chosen.var(), rel=0.1)


def radius(seed, energy, cosine=1.0, mass=1.0, count=1000):
    muons = sample_muons(np.random.default_rng(seed), showers(seed, primaries(energy, mass, cosine, count)))
    return np.hypot(muons.x, muons.y), muons


def test_spread_falls_with_muon_energy_and_grows_with_inclination():
    distance, muons = radius(9, 1e7)
    soft = np.median(distance[muons.energy < 500])
    hard = np.median(distance[muons.energy > 5000])
    assert hard < 0.25 * soft
    inclined, _ = radius(9, 1e7, cosine=0.4)
    assert np.median(inclined) > 2 * np.median(distance)


@pytest.mark.parametrize(
    ("mass", "energy", "cosine", "radii"),
    [(1, 1e5, 1.0, (8.2, 26)), (1, 1e5, 0.4, (37, 111)), (1, 1e6, 0.4, (29, 82)), (56, 1e6, 1.0, (10.2, 31))],
)
def test_spread_is_that_of_a_cascade(mass, energy, cosine, radii):
    """Median and 90 % quantile of ``Cascade`` with SIBYLL 2.3d, muons above 300 GeV: 15 and 35 %."""
    one = showers(12, primaries(energy, mass, cosine, 3000), 300.0)
    muons = sample_muons(np.random.default_rng(13), one)
    median, outer = np.quantile(np.hypot(muons.x, muons.y), (0.5, 0.9))
    assert median == pytest.approx(radii[0], rel=0.15)
    assert outer == pytest.approx(radii[1], rel=0.35)


def test_spread_is_isotropic():
    """Azimuths are uniform, position and direction alike, geomagnetic bending included."""
    _, muons = radius(10, 1e6)
    for angle in (np.arctan2(muons.y, muons.x), np.arctan2(muons.slope_y, muons.slope_x)):
        assert stats.kstest(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 0.01


def test_transverse_momentum():
    """Mean E times angle of 330 GeV muons: 0.375 GeV (10 %: geomagnetic bending adds a little)."""
    _, muons = radius(11, 1e6, count=4000)
    chosen = (muons.energy > 300) & (muons.energy < 360)
    momentum = muons.energy[chosen] * np.hypot(muons.slope_x, muons.slope_y)[chosen]
    assert momentum.mean() == pytest.approx(0.375, rel=0.1)


# Mean radiative loss: the gamma process gives b ln(1 + scale) / scale, each jump takes half on average.
MEAN_RADIATION = RADIATION_PER_M * np.log1p(RADIATION_SCALE) / RADIATION_SCALE + JUMPS_PER_M / 2


def beam(energy_gev, count):
    flat = np.zeros((4, count), np.float32)
    return Muons(np.arange(count, dtype=np.int32), np.full(count, energy_gev, np.float32), *flat)


def fly(seed, muons, *lengths_m):
    rng = np.random.default_rng(seed)
    for length in lengths_m:
        muons = advance(rng, muons, np.full((2, int(muons.shower.max(initial=0)) + 1), float(length)))
    return muons


def test_loss_constants_are_those_of_ice():
    """PDG muon tables, ice of 0.917 g/cm3: a = 2.5..2.9 MeV cm2/g, b = 3.0..3.6e-6 cm2/g at 1..10 TeV."""
    per_metre = 0.917 * 100
    assert 2.5e-3 * per_metre < IONISATION_GEV_PER_M < 2.9e-3 * per_metre
    assert 3.0e-6 * per_metre < MEAN_RADIATION < 3.6e-6 * per_metre


@pytest.mark.parametrize("lengths", [(2000.0,), (20.0,) * 100])
def test_mean_energy_follows_a_and_b(lengths):
    """While hardly any stops: <E> = (E0 + a/b) exp(-b x) - a/b, in one leg and in a hundred (2 %)."""
    offset = IONISATION_GEV_PER_M / MEAN_RADIATION
    expected = (1e5 + offset) * np.exp(-MEAN_RADIATION * 2000) - offset
    left = fly(1, beam(1e5, 20_000), *lengths)
    assert len(left) > 0.99 * 20_000
    assert left.energy.sum() / 20_000 == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("energy", [500.0, 2000.0, 10_000.0])
def test_survival_around_the_mean_range(energy):
    """R = ln(1 + b E / a) / b: nearly all alive at half of it, few at 1.5 times, median range within 20 %."""
    reach = np.log(1 + MEAN_RADIATION * energy / IONISATION_GEV_PER_M) / MEAN_RADIATION
    muons, alive = beam(energy, 4000), []
    for _ in range(30):
        muons = fly(2 + len(alive), muons, reach / 20)
        alive.append(len(muons) / 4000)
    assert alive[9] > 0.85
    assert alive[29] < 0.05
    median = np.interp(-0.5, -np.array(alive), np.arange(1, 31) / 20)
    assert median == pytest.approx(1, abs=0.2)


def test_muons_below_the_least_loss_never_arrive():
    """What the showers' threshold relies on: at least a per metre is lost."""
    assert len(fly(3, beam(IONISATION_GEV_PER_M * 1000, 20_000), 1000.0)) == 0


def test_result_does_not_depend_on_the_number_of_legs():
    """Survival and energies of 1 TeV muons after 1.5 km: one leg against 75 (3 % and 3 %)."""
    once, often = fly(4, beam(1e3, 30_000), 1500.0), fly(5, beam(1e3, 30_000), *(20.0,) * 75)
    assert len(once) == pytest.approx(len(often), rel=0.03)
    assert np.median(once.energy) == pytest.approx(np.median(often.energy), rel=0.03)


def test_scattering_has_highlands_width():
    """PDG: plane angle 13.6 MeV / E sqrt(x / X0), offset x angle / sqrt 3, correlation sqrt 3 / 2 (4 %).

    Among muons that lose less than a tenth, so that the energy stays the one of the formula.
    """
    muons = fly(6, beam(1e6, 20_000), *(10.0,) * 10)
    muons = taken(muons, muons.energy > 0.9e6)
    angle = 0.0136 / 1e6 * np.sqrt(100 / 0.39)
    for place, slope in ((muons.x, muons.slope_x), (muons.y, muons.slope_y)):
        assert slope.std() == pytest.approx(angle, rel=0.04)
        assert place.std() == pytest.approx(100 * angle / np.sqrt(3), rel=0.04)
        assert np.corrcoef(place, slope)[0, 1] == pytest.approx(np.sqrt(3) / 2, rel=0.04)


def test_slopes_carry_muons_away_from_the_axis():
    muons = beam(1e6, 10)
    muons.slope_x[:] = 1e-3
    assert fly(7, muons, 1000.0).x == pytest.approx(1.0, abs=0.05)


def test_track_length():
    """Vertical: the depth itself; 60 degrees: twice it (1 %, curvature); density: 200 m firn, then bulk."""
    length, matter = track(np.array([1.0, 0.5]), 1500.0)
    assert length == pytest.approx([1500, 3000], rel=0.01)
    assert matter[0] == pytest.approx(200 * 0.832 + 1300 * 1.005, rel=1e-6)
    assert track(np.array([np.cos(np.deg2rad(80))]), 1500.0)[0, 0] < 1500 / np.cos(np.deg2rad(80))


def test_order_and_number_are_kept_across_chunks():
    """More muons than one chunk: the survivors stay in the order of their showers."""
    muons = beam(400.0, 100_000)
    left = fly(8, muons, 900.0)
    assert 0 < len(left) < 100_000
    assert np.all(np.diff(left.shower) > 0)


def test_no_muons_stay_no_muons():
    assert len(fly(9, beam(1.0, 0), 10.0)) == 0
