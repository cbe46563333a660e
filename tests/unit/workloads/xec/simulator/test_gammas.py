"""Gammas: they come from the target, convert in the xenon, and leave their energy there."""

import numpy as np
import pytest

from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from crpipe.workloads.xec.simulator.physics import in_xenon, sample_deposits, sample_gammas, uvw


def sampled(count=20_000, **options):
    rng = np.random.default_rng(3)
    return sample_gammas(rng, XenonDetectorOptions(**options), count), rng


@pytest.fixture(scope="module")
def gammas():
    return sampled()[0]


def test_energies_are_flat_or_one(gammas):
    assert gammas.energy_gev.min() >= 0.015
    assert gammas.energy_gev.max() <= 0.060
    assert np.histogram(gammas.energy_gev, 9)[0] == pytest.approx(20_000 / 9, rel=0.1)
    one, _ = sampled(10, energy_min_gev=0.0528, energy_max_gev=0.0528)
    assert set(one.energy_gev) == {0.0528}


def test_vertices_are_spread_about_the_origin(gammas):
    assert gammas.vertex.mean(axis=0) == pytest.approx([0, 0, 0], abs=0.15)
    assert gammas.vertex.std(axis=0) == pytest.approx([1, 1, 4], rel=0.05)


def test_gammas_fly_straight_from_the_vertex_to_the_conversion(gammas):
    way = gammas.conversion - gammas.vertex
    length = np.linalg.norm(way, axis=1)
    assert np.linalg.norm(gammas.direction, axis=1) == pytest.approx(1)
    assert way / length[:, None] == pytest.approx(gammas.direction)
    assert np.ptp(gammas.time_ns - length / 29.979) == pytest.approx(40, rel=0.01)


def test_angles_give_the_direction_back(gammas):
    theta, phi = np.radians(gammas.angles()).T
    assert np.stack(
        [np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=1
    ) == pytest.approx(gammas.direction)
    assert 90 < np.degrees(phi).min() < np.degrees(phi).max() < 270  # nowhere a jump from 360 to 0


def test_conversions_reach_a_little_beyond_the_fiducial_cut(gammas):
    u, v, w = uvw(gammas.conversion).T
    inside = (np.abs(u) < 23.9) & (np.abs(v) < 67.9)
    assert 0.8 < inside.mean() < 0.95
    assert 25 < np.abs(u).max() < 26
    assert 70 < np.abs(v).max() < 71
    assert w.min() >= 0
    assert in_xenon(gammas.conversion).all()


def test_depth_falls_off_exponentially(gammas):
    """The way in the xenon has a mean of 4 cm; w is a little less, along the radius."""
    w = uvw(gammas.conversion)[:, 2]
    assert 3.4 < w.mean() < 4.0
    shares = np.histogram(w, [0.13, 4.13, 8.13, 12.13])[0]
    assert shares[1:] / shares[:-1] == pytest.approx(np.exp(-4 / 3.7), rel=0.1)


def test_coordinates_follow_the_inner_face():
    angle = np.radians(30)
    place = np.array([[-70 * np.cos(angle), 70 * np.sin(angle), 12.0]])
    assert uvw(place)[0] == pytest.approx([12, 64.84 * angle, 70 - 64.84])


def test_deposits_share_the_energy_behind_the_conversion():
    gammas, rng = sampled(2000)
    deposits = sample_deposits(rng, gammas)
    kept = deposits.energy_gev.sum(axis=1) / gammas.energy_gev
    assert kept.max() <= 1 + 1e-12
    assert np.median(kept) == pytest.approx(1)
    assert 0.9 < kept.mean() < 1  # some leaves the xenon
    behind = np.einsum("ndi,ni->nd", deposits.place - gammas.conversion[:, None], gammas.direction)
    assert (behind > 0).all()
    assert deposits.time_ns == pytest.approx(gammas.time_ns[:, None] + behind / 29.979)


def test_energy_outside_the_xenon_is_lost():
    gammas, rng = sampled(2000)
    deposits = sample_deposits(rng, gammas)
    outside = ~in_xenon(deposits.place)
    assert outside.any()
    assert (deposits.energy_gev[outside] == 0).all()
    assert (deposits.energy_gev[~outside] > 0).all()


def test_deposits_of_higher_energies_lie_deeper_and_wider():
    depth, width = [], []
    for energy in (0.015, 0.060):
        gammas, rng = sampled(5000, energy_min_gev=energy, energy_max_gev=energy)
        apart = sample_deposits(rng, gammas).place - gammas.conversion[:, None]
        along = np.einsum("ndi,ni->nd", apart, gammas.direction)
        depth.append(along.mean())
        width.append(np.sqrt((np.square(apart).sum(axis=2) - along**2).mean()))
    assert 1 < depth[0] < depth[1] < 5
    assert 0.5 < width[0] < width[1] < 5
