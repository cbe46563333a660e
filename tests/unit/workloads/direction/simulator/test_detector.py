"""The detector: strings, sensors and the table of both."""

import numpy as np

from crpipe.workloads.direction.layout import read_geometry
from crpipe.workloads.direction.simulator.physics import (
    PER_STRING,
    SENSORS,
    STRINGS,
    sensors,
    strings,
    write_geometry,
)


def test_strings_are_a_triangular_grid_of_125_m():
    flat = strings()[:, :2]
    apart = np.linalg.norm(flat[:, None] - flat[None], axis=2) + 1e9 * np.eye(STRINGS)
    assert np.abs(apart.min(axis=1) - 125).max() < 6
    near = np.sum(apart < 150, axis=1)
    assert near.min() >= 3
    assert (near == 6).sum() > STRINGS / 2
    assert np.hypot(*flat.T).max() < 650


def test_strings_are_numbered_row_by_row():
    y = strings()[:, 1]
    rows = np.split(y, np.flatnonzero(np.diff(y) > 50) + 1)
    assert len(rows) == 11
    assert max(np.ptp(row) for row in rows) < 10


def test_sensors_go_down_each_string_in_steps_of_17_m():
    z = sensors()[:, 2].reshape(STRINGS, PER_STRING)
    assert np.allclose(np.diff(z, axis=1), -17)
    assert np.abs(z[:, 0] - 501.5).max() < 5
    assert np.abs(z[:, -1] + 501.5).max() < 5
    assert np.all(np.ptp(sensors()[:, 0].reshape(STRINGS, PER_STRING), axis=1) == 0)


def test_table_has_the_public_columns_and_gives_the_sensors_back(tmp_path):
    path = tmp_path / "sensor_geometry.csv"
    write_geometry(path)
    lines = path.read_text().splitlines()
    assert lines[0] == "sensor_id,x,y,z"
    assert len(lines) == 1 + SENSORS == 5161
    assert np.array_equal(read_geometry(path), sensors().astype(np.float32))
