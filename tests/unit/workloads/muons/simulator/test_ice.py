"""Energy loss and scattering in ice against the analytic results they must reproduce."""

import numpy as np
import pytest

from crpipe.workloads.common.simulators import taken
from crpipe.workloads.muons.simulator.physics import (
    IONISATION_GEV_PER_M,
    JUMPS_PER_M,
    RADIATION_PER_M,
    RADIATION_SCALE,
    Muons,
    advance,
    track,
)

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
