"""Light: solid angles against sums over small pieces, absorption, and what hides what."""

import numpy as np
import pytest

from crpipe.workloads.xec.sensors import sensor_map
from crpipe.workloads.xec.simulator.physics import (
    ABSORPTION_CM,
    NEAR_CM,
    PHOTONS_PER_GEV,
    Deposits,
    disc,
    mean_photons,
    rectangle,
    shares,
)

PLACES = sensor_map()
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


@pytest.mark.parametrize("a", [0.0, 0.4, 0.6, 3.0])
@pytest.mark.parametrize("height", [0.05, 0.5, 4.0])
def test_solid_angle_of_a_square_is_the_sum_of_its_pieces(a, height):
    found = rectangle(np.array([a]), np.array([-0.3]), np.array([height]))
    assert found == pytest.approx(pieces(square(), [a, -0.3], height), rel=2e-3)


@pytest.mark.parametrize("beside", [0.0, 1.0, 2.25, 6.0])
@pytest.mark.parametrize("height", [0.5, 2.0, 8.0])
def test_solid_angle_of_a_disc_is_the_sum_of_its_pieces(beside, height):
    found = disc(np.array([beside]), np.array([height]))
    assert found == pytest.approx(pieces(circle(), [beside, 0.0], height), rel=2e-3)


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
