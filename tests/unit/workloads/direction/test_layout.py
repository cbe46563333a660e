"""Directions as angles and vectors, and the table of the sensors."""

import numpy as np
import pytest

from crpipe.core.errors import FormatError
from crpipe.workloads.direction.layout import azimuth_zenith, opening_angle, read_geometry, unit_vectors


def random_vectors(count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(count, 3))
    return drawn / np.linalg.norm(drawn, axis=1)[:, None]


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 0.100, 1.0, 90.0, 179.9, 180.0])
def test_a_known_angle_is_measured_whatever_the_direction(degrees):
    axes = random_vectors(1000)
    across = np.cross(axes, random_vectors(1000, seed=1))
    across /= np.linalg.norm(across, axis=1)[:, None]
    angle = np.deg2rad(degrees)
    turned = np.cos(angle) * axes + np.sin(angle) * across
    found = np.rad2deg(opening_angle(1e-3 * axes, 1e6 * turned))
    assert found == pytest.approx(degrees, rel=1e-6, abs=1e-9)


def test_a_tenth_of_a_degree_survives_angles_in_single_precision():
    azimuth = np.linspace(0, 6.2, 100, dtype=np.float32)
    first = unit_vectors(azimuth, np.full(100, np.pi / 2))
    second = unit_vectors(azimuth.astype(np.float64) + np.deg2rad(0.1), np.full(100, np.pi / 2))
    assert np.rad2deg(opening_angle(first, second)) == pytest.approx(0.100, abs=0.001)


def test_the_convention_is_that_of_the_challenge():
    """x = cos(azimuth) sin(zenith), y = sin(azimuth) sin(zenith), z = cos(zenith)."""
    found = unit_vectors([0.0, 0.0, np.pi / 2, 0.3], [0.0, np.pi / 2, np.pi / 2, 1.2])
    expected = [
        [0, 0, 1],
        [1, 0, 0],
        [0, 1, 0],
        [np.cos(0.3) * np.sin(1.2), np.sin(0.3) * np.sin(1.2), np.cos(1.2)],
    ]
    assert found == pytest.approx(np.array(expected), abs=1e-15)


def test_angles_and_vectors_are_inverse():
    rng = np.random.default_rng(3)
    azimuth, zenith = rng.uniform(0, 2 * np.pi, 1000), np.arccos(rng.uniform(-1, 1, 1000))
    again = azimuth_zenith(7.5 * unit_vectors(azimuth, zenith))
    assert again[0] == pytest.approx(azimuth, abs=1e-9)
    assert again[1] == pytest.approx(zenith, abs=1e-9)


@pytest.mark.parametrize("y", [-1e-300, -1e-17, -5e-324, -0.0, 0.0, 1e-300, -1.0, 1.0])
@pytest.mark.parametrize("x", [1.0, 1e-300, 0.0, -1.0])
@pytest.mark.parametrize("z", [-1.0, 0.0, 1.0])
def test_angles_are_in_their_ranges(x, y, z):
    azimuth, zenith = azimuth_zenith([[x, y, z]])
    assert 0 <= azimuth[0] < 2 * np.pi
    assert 0 <= zenith[0] <= np.pi


def test_no_direction_at_all_is_straight_from_above():
    azimuth, zenith = azimuth_zenith(np.zeros((2, 3)))
    assert azimuth.tolist() == zenith.tolist() == [0.0, 0.0]


PLACES = np.array([[-256.14, -521.08, 496.03], [10.0, 20.0, 30.0], [-10.97, 6.72, -500.73]])


def table(path, places=PLACES, ids=None, header="sensor_id,x,y,z", more=""):
    ids = range(len(places)) if ids is None else ids
    rows = [f"{number},{x},{y},{z}{more}" for number, (x, y, z) in zip(ids, places, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_the_row_is_the_sensor(tmp_path):
    found = read_geometry(table(tmp_path / "g.csv"))
    assert found.dtype == np.float32
    assert found == pytest.approx(PLACES.astype(np.float32))


def test_further_columns_and_another_order_do_not_matter(tmp_path):
    path = tmp_path / "g.csv"
    path.write_text("z,y,x,string,sensor_id\n496.03,-521.08,-256.14,first,0\n30,20,10,second,1\n")
    assert read_geometry(path) == pytest.approx(PLACES[:2].astype(np.float32))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"header": "sensor,x,y,z"}, "expected the columns sensor_id, x, y, z"),
        ({"ids": [0, 2, 1]}, "row 1: expected sensor_id 1, found 2.0; sort the table"),
        ({"ids": [1, 2, 3]}, "row 0: expected sensor_id 0"),
        ({"ids": [0, 1, 1]}, "row 2: expected sensor_id 2"),
        ({"places": PLACES[:0]}, "g.csv"),
        ({"places": PLACES / 500}, "all sensors are within 1.04216 m of the centre; give positions in m"),
        ({"places": PLACES * 1e4}, "finite and within"),
        ({"places": np.array([[0.0, np.nan, 0.0]])}, "finite and within"),
        ({"places": np.array([[0.0, np.inf, 0.0]])}, "finite and within"),
        ({"ids": ["a", "b", "c"]}, "expected the columns"),
        ({"places": [["1", "", "300"]]}, "finite and within"),
    ],
)
def test_a_table_that_would_be_wrong_is_refused_by_name(tmp_path, wrong, said):
    with pytest.raises(FormatError) as error:
        read_geometry(table(tmp_path / "g.csv", **wrong))
    assert said in str(error.value)
    assert str(tmp_path / "g.csv") in str(error.value)


def test_something_else_is_refused(tmp_path):
    path = tmp_path / "g.csv"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    with pytest.raises(FormatError, match=r"g\.csv"):
        read_geometry(path)
