"""The detector: which sensors are dead, which places are in the xenon, what sees what past the inner face."""

import numpy as np
import pytest

from crpipe.workloads.xec.sensors import sensor_map
from crpipe.workloads.xec.simulator.physics import around, dead_sensors, in_xenon, photosensors

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
