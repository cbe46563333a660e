"""Faces as images: every sensor has its cells, and cells beside each other are sensors beside each other."""

import numpy as np
import pytest

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.models.encoder import (
    NOTHING,
    RECTANGLES,
    cells_of_sensors,
    hex_neighbours,
    images,
    pooling,
)
from crpipe.workloads.xec.sensors import BOTTOM, FACE_IDS, FACES, HEXES, TOP, sensor_map

PLACES = sensor_map()
MULTIPLES = (1, 2, 4, 8, 16)


def real(image):
    """Cut the margin off: rows and columns with a sensor."""
    there = image.cells != NOTHING
    return image.cells[there.any(axis=1)][:, there.any(axis=0)]


def apart(first, second):
    return np.linalg.norm(PLACES[first, :3] - PLACES[second, :3], axis=-1)


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_every_sensor_is_on_one_face_and_has_a_cell(multiple):
    faces = images(PLACES, multiple)
    assert [face.name for face in faces] == list(RECTANGLES)
    seen = np.zeros(SENSORS, int)
    for face in faces:
        ids = np.setdiff1d(face.cells, [NOTHING])
        assert ids.tolist() == np.sort(FACE_IDS[face.name]).tolist()
        seen[ids] += 1
    for face in HEXES:
        seen[face.ids] += 1
    assert (seen == 1).all()
    assert sorted(np.concatenate(list(FACE_IDS.values())).tolist()) == list(range(SENSORS))
    assert set(FACE_IDS) == set(FACES)


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_margins_make_both_sides_multiples_and_hold_nothing(multiple):
    shapes = {"inner": (93, 44), "outer": (48, 18), "us": (24, 6), "ds": (24, 6)}
    for face in images(PLACES, multiple):
        rows, columns = shapes[face.name]
        assert all(length % multiple == 0 for length in face.cells.shape)
        assert real(face).shape == (rows, columns)
        assert (face.cells[:rows, :columns] != NOTHING).all()
        assert (face.cells != NOTHING).sum() == rows * columns


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_the_cell_of_a_sensor_holds_that_sensor(multiple):
    faces = images(PLACES, multiple)
    cells = np.concatenate([*(face.cells.ravel() for face in faces), TOP.ids, BOTTOM.ids])
    found = cells_of_sensors(faces)
    assert found.shape == (SENSORS,)
    assert (cells[found] == np.arange(SENSORS)).all()


@pytest.mark.parametrize(("name", "pitch"), [("inner", 1.53), ("outer", 10.355), ("us", 12.5), ("ds", 12.5)])
def test_cells_beside_each_other_are_near(name, pitch):
    """Of the outer face two cells may have one sensor, so cells may be a pitch apart and no more."""
    (image,) = [face for face in images(PLACES, 8) if face.name == name]
    cells = real(image)
    steps = np.concatenate([apart(cells[1:], cells[:-1]).ravel(), apart(cells[:, 1:], cells[:, :-1]).ravel()])
    assert steps.max() <= 1.05 * pitch
    if name != "outer":
        assert steps.min() > 0


def test_cells_of_the_outer_face_are_where_they_say_also_when_measured_places_differ():
    """The public tables of places differ by up to 1 cm."""
    cells = images(PLACES, 1)[1].cells
    height = PLACES[cells, 1].mean(axis=1)
    assert (np.diff(height) <= 0).all()
    assert (np.diff(PLACES[cells, 2].mean(axis=0)) >= 0).all()
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = PLACES.copy()
        moved[:, :3] += rng.uniform(-0.6, 0.6, (SENSORS, 3))
        assert len(np.unique(images(moved, 1)[1].cells)) == len(FACE_IDS["outer"])


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_patches_are_squares_of_neighbours_row_after_row(patch):
    for image in images(PLACES, 2 * patch):
        cut = image.patches(patch)
        rows, columns = image.grid(patch)
        assert cut.shape == (rows * columns, patch * patch)
        for at in (0, columns - 1, rows * columns // 2, rows * columns - 1):
            row, column = patch * (at // columns), patch * (at % columns)
            square = image.cells[row : row + patch, column : column + patch]
            assert cut[at].tolist() == square.ravel().tolist()


@pytest.fixture(scope="module")
def table():
    return hex_neighbours(PLACES)


def test_each_direction_has_its_way_back(table):
    assert table.shape == (73, 6)
    assert table.min() >= 0
    assert table.max() <= 73
    for sensor, direction in np.argwhere(table < 73):
        assert table[table[sensor, direction], (direction + 3) % 6] == sensor


@pytest.mark.parametrize("face", HEXES, ids=lambda face: face.name)
def test_neighbours_are_those_that_are_near_on_top_and_bottom(table, face):
    """Pitch 6.12 cm along a row, 7.56 cm between rows; the next nearest sensor is 11.5 cm away."""
    places = PLACES[face.ids, :3]
    distance = np.linalg.norm(places[:, None] - places, axis=2)
    for sensor, near in enumerate(table):
        wanted = np.flatnonzero((distance[sensor] < 9) & (distance[sensor] > 0))
        assert sorted(near[near < 73]) == wanted.tolist()


def test_sensors_inside_have_six_neighbours(table):
    count = (table < 73).sum(axis=1)
    assert count.max() == 6
    rows = np.split(count, np.cumsum((11, 12, 11, 12, 13)))
    assert all((row[1:-1] == 6).all() for row in rows[3:5])
    assert (rows[0] < 6).all()
    assert (rows[5] < 6).all()


@pytest.mark.parametrize("face", HEXES, ids=lambda face: face.name)
def test_a_direction_is_the_same_everywhere(table, face):
    """A neighbour by direction lies where that direction points to; top and bottom share the table."""
    places = PLACES[face.ids]
    flat = np.stack([np.hypot(places[:, 0], places[:, 1]), places[:, 2]], axis=1)
    for direction in range(6):
        has = np.flatnonzero(table[:, direction] < 73)
        step = flat[table[has, direction]] - flat[has]
        angle = np.degrees(np.arctan2(step[:, 0], step[:, 1])) - 60 * direction
        assert np.abs((angle + 180) % 360 - 180).max() < 10


@pytest.mark.parametrize(("rows", "columns"), [(12, 6), (6, 3), (3, 1), (4, 4), (1, 1)])
def test_pooling_averages(rows, columns):
    weights = pooling(rows, columns, 4)
    assert weights.shape == (16, rows * columns)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert (weights >= 0).all()
    assert (weights.sum(axis=0) > 0).all()  # every part of the grid counts
    down = (weights @ np.repeat(np.arange(rows), columns)).reshape(4, 4)
    assert (np.diff(down, axis=0) >= 0).all()
    across = (weights @ np.tile(np.arange(columns), rows)).reshape(4, 4)
    assert (np.diff(across, axis=1) >= 0).all()


def test_parts_of_a_grid_that_they_divide_do_not_overlap():
    assert ((pooling(8, 12, 4) > 0).sum(axis=0) == 1).all()
