"""Directions, energies and losses of simulated particles."""

import numpy as np
import pytest

from crpipe.workloads.direction.layout import unit_vectors
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from crpipe.workloads.direction.simulator.physics import (
    A_GEV_PER_M,
    B_PER_M,
    C_M_PER_NS,
    HALF_HEIGHT_M,
    RADIUS_M,
    energy_at,
    flashes,
    power_law,
    sample_particles,
)

COUNT = 20_000


def drawn(**options):
    return sample_particles(np.random.default_rng(3), NeutrinoTelescopeOptions(**options), COUNT)


def test_directions_are_isotropic():
    """Means of the components are 0, of their squares a third, in both kinds; the angles give them back."""
    particles = drawn()
    for kind in (particles.cascade, ~particles.cascade):
        source = particles.source[kind]
        assert np.abs(source.mean(axis=0)).max() < 5 / np.sqrt(3 * kind.sum())
        assert np.allclose((source[:, :, None] * source[:, None]).mean(axis=0), np.eye(3) / 3, atol=0.02)
    assert np.allclose(unit_vectors(*particles.angles()), particles.source)


def test_share_of_cascades_is_the_option():
    assert drawn(cascade_fraction=0.3).cascade.mean() == pytest.approx(0.3, abs=0.02)
    assert not drawn(cascade_fraction=0).cascade.any()


@pytest.mark.parametrize("index", [0.0, 1.0, 2.0, 3.0])
def test_energies_follow_the_power_law(index):
    """The share below E is the integral of the law, here by sums over a fine grid."""
    options = NeutrinoTelescopeOptions(energy_min_gev=10, energy_max_gev=1000, spectral_index=index)
    energy = power_law((np.arange(1000) + 0.5) / 1000, options)
    grid = np.geomspace(10, 1000, 100_001)
    weight = np.cumsum(grid ** (1 - index))
    assert np.interp(energy, grid, weight / weight[-1]) == pytest.approx(
        (np.arange(1000) + 0.5) / 1000, abs=1e-3
    )


def test_places_are_in_the_cylinder_and_muons_pass_them():
    particles = drawn()
    assert np.hypot(*particles.place[:, :2].T).max() < RADIUS_M
    assert np.abs(particles.place[:, 2]).max() < HALF_HEIGHT_M
    assert np.all(particles.start_m <= 0)
    assert np.all(particles.stop_m >= 0)


def test_energy_along_the_way_solves_the_mean_loss():
    start, way = np.float64(0), np.linspace(0, 400, 4001)
    energy = energy_at(np.full(4001, 300.0), start, way)
    assert np.gradient(energy, way)[1:-1] == pytest.approx(-(A_GEV_PER_M + B_PER_M * energy[1:-1]), rel=1e-4)
    assert energy_at(np.float64(300), start, np.float64(1e4)) == 0


def test_losses_lie_on_the_muon_between_its_ends():
    particles = drawn(cascade_fraction=0, energy_min_gev=1e4)
    points = flashes(np.random.default_rng(4), particles)
    muon = points.particle
    way = points.time_ns * C_M_PER_NS
    assert len(way) > COUNT / 2
    assert np.all((way >= particles.start_m[muon]) & (way <= particles.stop_m[muon]))
    assert np.allclose(points.place, particles.place[muon] - way[:, None] * particles.source[muon])
    left = energy_at(particles.energy_gev[muon], particles.start_m[muon], way)
    assert np.all((points.energy_gev <= left) & (points.energy_gev >= 0.0099 * left))


def test_a_cascade_is_one_flash_of_its_energy():
    particles = drawn(cascade_fraction=1)
    points = flashes(np.random.default_rng(4), particles)
    assert np.array_equal(points.particle, np.arange(COUNT))
    assert np.array_equal(points.energy_gev, particles.energy_gev)
    assert np.array_equal(points.place, particles.place)
