"""The sensors, gammas that convert in the xenon, and the light that the sensors see."""

import numpy as np
import pytest

from crpipe.workloads.xec.sensors import sensor_map
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from crpipe.workloads.xec.simulator.physics import (
    ABSORPTION_CM,
    NEAR_CM,
    PHOTONS_PER_GEV,
    Deposits,
    around,
    dead_sensors,
    disc,
    in_xenon,
    mean_photons,
    photosensors,
    rectangle,
    sample_deposits,
    sample_gammas,
    shares,
    uvw,
)

PLACES = sensor_map()


def at(radius, degrees, z):
    angle = np.radians(degrees)
    return np.array([-radius * np.cos(angle), radius * np.sin(angle), z])


def test_dead_sensors_are_the_same_ones_and_fewer_are_among_more():
    found = dead_sensors(0.015)
    assert len(set(found)) == round(0.015 * 4760)
    assert np.array_equal(found, dead_sensors(0.015))
    assert set(found) < set(dead_sensors(0.1))
    assert len(dead_sensors(0)) == 0


def test_dead_sensors_are_on_all_faces():
    found = dead_sensors(0.1)
    assert 0.8 < np.mean(found < 4092) / (4092 / 4760) < 1.2


def test_sensors_have_the_places_of_the_map_and_their_own_gains():
    found = photosensors()
    assert np.stack([found.x, found.y, found.z, found.nx, found.ny, found.nz], axis=1) == pytest.approx(
        PLACES, abs=1e-5
    )
    assert found.area[:4092] == pytest.approx(1.44)
    assert found.area[4092:] == pytest.approx(np.pi * 2.25**2)
    assert found.gain.std() == pytest.approx(0.04, rel=0.1)
    assert found.gain.mean() == pytest.approx(1, abs=0.005)


def test_the_xenon_is_in_front_of_every_sensor_and_not_behind():
    points, normals = PLACES[:, :3], PLACES[:, 3:]
    assert in_xenon(points + 3 * normals).all()
    assert not in_xenon(points - 3 * normals).any()


def test_the_target_is_not_in_the_xenon():
    assert not in_xenon(np.zeros(3) + 1e-3)
    assert not in_xenon(-at(80, 0, 0))
    assert in_xenon(at(80, 0, 0))


@pytest.mark.parametrize(("degrees", "seen"), [(90, True), (104, True), (106, False), (140, False)])
def test_the_inner_face_hides_what_is_behind_it(degrees, seen):
    """Where two points at 106.27 cm see each other: up to twice arccos(64.97 / 106.27), 104.6 degrees."""
    first, second = at(106.27, degrees / 2, 0), at(106.27, -degrees / 2, 20)
    angle, horizon = around(*np.stack([first, second], axis=1)[:2])
    assert (abs(angle[0] - angle[1]) < horizon.sum()) == seen
    way = first + np.linspace(0, 1, 1001)[:, None] * (second - first)
    assert (np.hypot(way[:, 0], way[:, 1]).min() > 64.97) == seen


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


EVERY = np.arange(4760)


def pieces(points, beside, height):
    """Solid angle of a flat face that is cut into pieces: points [n, 2] with area [n], seen from the side."""
    at, area = points
    d2 = np.square(at - beside).sum(axis=1) + height**2
    return (area * height / d2**1.5).sum()


def square():
    steps = (np.arange(600) + 0.5) / 600 * 1.2 - 0.6
    at = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    return at, np.full(len(at), (1.2 / 600) ** 2)


def circle():
    radius, angle = (np.arange(400) + 0.5) / 400 * 2.25, (np.arange(400) + 0.5) / 400 * 2 * np.pi
    r, t = (axis.ravel() for axis in np.meshgrid(radius, angle))
    return np.stack([r * np.cos(t), r * np.sin(t)], axis=1), r * (2.25 / 400) * (2 * np.pi / 400)


@pytest.mark.parametrize("height", [0.05, 0.5, 4.0])
def test_solid_angles_of_squares_and_discs_are_the_sums_of_their_pieces(height):
    of_square, of_circle = square(), circle()
    for a in (0.0, 0.4, 0.6, 3.0):
        found = rectangle(np.array([a]), np.array([-0.3]), np.array([height]))
        assert found == pytest.approx(pieces(of_square, [a, -0.3], height), rel=2e-3)
    for beside in (0.0, 1.0, 2.25, 6.0):
        found = disc(np.array([beside]), np.array([10 * height]))
        assert found == pytest.approx(pieces(of_circle, [beside, 0.0], 10 * height), rel=2e-3)


def test_close_to_a_sensor_it_is_half_of_all_directions():
    zero, height = np.zeros(1), np.array([1e-6])
    assert rectangle(zero, zero, height) == pytest.approx(2 * np.pi, rel=1e-4)
    assert disc(zero, height) == pytest.approx(2 * np.pi, rel=1e-4)


@pytest.mark.parametrize(("sensor", "near"), [(2000, NEAR_CM[0]), (4200, NEAR_CM[1])])
def test_far_and_near_shares_meet(sensor, near):
    """Where the exact solid angle ends and area * cos / d^2 begins, the share is within 1.2 %."""
    way = near + np.array([-0.001, 0.001])
    place = (PLACES[sensor, :3] + way[:, None] * PLACES[sensor, 3:]).astype(np.float32)
    exact, approximate = shares(place, np.full(2, sensor))
    assert approximate != pytest.approx(exact, rel=5e-3)
    assert approximate == pytest.approx(exact, rel=1.2e-2)


def test_light_is_absorbed_on_its_way():
    sensor, way = np.full(2, 4200), np.array([20.0, 34.0])
    place = (PLACES[4200, :3] + way[:, None] * PLACES[4200, 3:]).astype(np.float32)
    near, far = shares(place, sensor)
    assert far / near == pytest.approx((20 / 34) ** 2 * np.exp(-14 / ABSORPTION_CM), rel=1e-3)


def test_sensors_see_no_light_from_behind_nor_through_the_inner_face():
    high = -85 * np.cos(np.radians(55)), 85 * np.sin(np.radians(55))
    found = shares(np.array([[*high, 0.0]], np.float32)[:, None], EVERY)[0]
    behind = ((np.array([*high, 0.0]) - PLACES[:, :3]) * PLACES[:, 3:]).sum(axis=1) < 0
    assert behind.any()
    assert (found[behind] == 0).all()
    angle = np.degrees(np.arctan2(PLACES[:, 1], -PLACES[:, 0]))
    hidden = angle < 55 - 40.2 - 52.4  # arccos(64.97 / 85), arccos(64.97 / 106.27)
    assert (found[hidden] == 0).all()
    assert (found[4092:4308][angle[4092:4308] > -30] > 0).all()


def test_all_sensors_together_see_less_than_all_light():
    """At a depth of a few cm, the inner face covers two thirds of a half of all directions."""
    place = np.array([[-70.0, 0.0, 0.0], [-66.0, 0.3, 0.2], [-100.0, 0, 0]], np.float32)
    seen = shares(place[:, None], EVERY).sum(axis=1)
    assert (seen < 1).all()
    assert 0.25 < seen[0] < 0.5
    assert seen[1] > seen[0] > seen[2]


def test_mean_photons_add_up_over_deposits():
    place = np.array([[[-70.0, 5.0, 3.0], [-72.0, -4.0, 1.0]]])
    both = mean_photons(Deposits(place, np.zeros((1, 2)), np.array([[0.01, 0.02]])))
    single = [shares(place[:, each, None].astype(np.float32), EVERY)[0] for each in range(2)]
    assert both.shape == (1, 4760)
    assert both.dtype == np.float32
    assert both[0] == pytest.approx(PHOTONS_PER_GEV * (0.01 * single[0] + 0.02 * single[1]), rel=1e-4)


def test_the_nearest_sensor_sees_most():
    for sensor in (1000, 4250, 4350, 4500, 4620, 4700):
        place = (PLACES[sensor, :3] + 1.5 * PLACES[sensor, 3:]).astype(np.float32)
        assert shares(place[None, None], EVERY)[0].argmax() == sensor
