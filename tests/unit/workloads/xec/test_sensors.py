"""The sensor map: numbers, places and normals by formula; and the check that finds a wrong order."""

import re

import numpy as np
import pytest

from crpipe.core.errors import FormatError
from crpipe.workloads.xec import sensors as module
from crpipe.workloads.xec.sensors import (
    BOTTOM,
    CENTRE,
    COLUMNS,
    DS,
    FACE_IDS,
    FACES,
    GRIDS,
    HEXES,
    INNER,
    MPPCS,
    OUTER,
    TOP,
    US,
    Grid,
    HexRows,
    check_grid,
    face_of,
    neighbours,
    read_sensor_map,
    sensor_map,
    write_sensor_map,
)

PLACES = sensor_map()
POINTS, NORMALS = PLACES[:, :3], PLACES[:, 3:]
RADIUS = np.hypot(POINTS[:, 0], POINTS[:, 1])
ANGLE = np.degrees(np.arctan2(POINTS[:, 1], -POINTS[:, 0]))
Z = POINTS[:, 2]


def of(face):
    return FACE_IDS[face]


def components(face):
    """Of the normals of a face: away from the axis, with growing angle about it, along it."""
    away = np.stack([-np.cos(np.radians(ANGLE)), np.sin(np.radians(ANGLE)), 0 * Z], axis=1)
    onward = np.stack([np.sin(np.radians(ANGLE)), np.cos(np.radians(ANGLE)), 0 * Z], axis=1)
    return [
        np.einsum("ni,ni->n", NORMALS, along)[of(face)] for along in (away, onward, [[0, 0, 1]] + 0 * away)
    ]


def table(tmp_path, lines):
    path = tmp_path / "sensors.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def written(tmp_path):
    write_sensor_map(tmp_path / "sensors.csv")
    return (tmp_path / "sensors.csv").read_text().splitlines()


@pytest.mark.parametrize(
    ("face", "count", "first", "last"),
    [
        ("inner", 93 * 44, 0, 4091),
        ("outer", 24 * 9 + 18, 4092, 4759),
        ("us", 24 * 6, 4308, 4451),
        ("ds", 24 * 6, 4452, 4595),
        ("top", 73, 4596, 4668),
        ("bottom", 73, 4669, 4741),
    ],
)
def test_faces_have_their_numbers(face, count, first, last):
    assert len(of(face)) == len(set(of(face))) == count
    assert (min(of(face)), max(of(face))) == (first, last)
    assert set(np.flatnonzero(face_of() == FACES.index(face))) == set(of(face))


def test_each_sensor_is_on_one_face():
    assert sorted(np.concatenate([of(face) for face in FACES])) == list(range(4760))
    assert len(of("inner")) == MPPCS
    assert TOP.rows == BOTTOM.rows == (11, 12, 11, 12, 13, 14)
    assert sum(TOP.rows) == 73


def test_the_middle_of_the_outer_face_shares_twelve_sensors_with_its_grid():
    shared = np.intersect1d(CENTRE.ids, OUTER.ids)
    assert len(shared) == 12
    assert sorted(np.setdiff1d(CENTRE.ids, shared)) == list(range(4742, 4760))


def test_sensors_lie_on_the_outlines_of_the_detector():
    assert RADIUS[of("inner")] == pytest.approx(64.97)
    assert RADIUS[of("outer")] == pytest.approx(106.27)
    assert np.ptp(Z[of("inner")]) == pytest.approx(43 * 1.51, abs=0.02)
    assert np.abs(ANGLE).max() < 63
    assert (Z[of("us")] <= -35.15).all()
    assert (Z[of("ds")] >= 35.15).all()
    assert ANGLE[of("top")] == pytest.approx(62.8)
    assert ANGLE[of("bottom")] == pytest.approx(-62.8)
    for face in ("us", "ds", "top", "bottom"):
        assert RADIUS[of(face)].min() > 64.97
        assert RADIUS[of(face)].max() < 106.27


def test_rows_run_around_the_axis_and_columns_along_it():
    for grid in GRIDS:
        assert (np.diff(ANGLE[grid.ids], axis=0) < 0).all()
    for grid in (INNER, OUTER, CENTRE):
        assert (np.diff(Z[grid.ids], axis=1) > 0).all()
    for grid in (US, DS):
        assert (np.diff(RADIUS[grid.ids], axis=1) > 0).all()


def test_both_halves_mirror_each_other():
    assert POINTS[DS.ids] == pytest.approx(POINTS[US.ids] * [1, 1, -1])
    assert POINTS[BOTTOM.ids] == pytest.approx(POINTS[TOP.ids] * [1, -1, 1])


@pytest.mark.parametrize(("face", "width"), [(face, 1.2 if face == "inner" else 4.5) for face in FACES])
def test_sensors_of_a_face_do_not_overlap(face, width):
    places = POINTS[of(face)]
    apart = np.linalg.norm(places - places[neighbours(places, 1)[:, 0]], axis=1)
    assert width < apart.min() < 2 * width


def test_normals_point_into_the_xenon():
    assert np.linalg.norm(NORMALS, axis=1) == pytest.approx(1)
    assert components("inner")[0] == pytest.approx(1)
    assert components("outer")[0] == pytest.approx(-1)
    assert components("us")[2] == pytest.approx(0.944, abs=1e-3)
    assert components("ds")[2] == pytest.approx(-0.944, abs=1e-3)
    assert components("top")[1] == pytest.approx(-1)
    assert components("bottom")[1] == pytest.approx(1)


def test_normals_of_the_sides_stand_on_them():
    for grid in (US, DS):
        along = POINTS[grid.ids[:, -1]] - POINTS[grid.ids[:, 0]]
        assert np.einsum("ni,ni->n", along, NORMALS[grid.ids[:, 0]]) == pytest.approx(0, abs=1e-9)


def test_map_is_written_and_read(tmp_path):
    lines = written(tmp_path)
    assert lines[0].replace('"', "") == ",".join(COLUMNS)
    assert len(lines) == 4761
    found = read_sensor_map(tmp_path / "sensors.csv")
    assert found.shape == (4760, 6)
    assert np.abs(found - PLACES).max() < 5.1e-5
    rows = [line.split(",") for line in lines]  # columns may come in another order, with others between
    mixed = table(tmp_path, [",".join([row[6], "more", *row[:6]]) for row in rows])
    assert np.array_equal(read_sensor_map(mixed), found)


def test_tables_of_other_columns_or_words_are_refused(tmp_path):
    lines = written(tmp_path)
    for wrong in (["sensor_id,x,y,z", "0,1,2,3"], [lines[0], "0,1,2,east,0,0,1"], []):
        path = table(tmp_path, wrong)
        with pytest.raises(FormatError, match=f"{path}: expected the columns sensor_id, x, y, z, nx, ny, nz"):
            read_sensor_map(path)


def test_missing_and_exchanged_sensors_are_refused(tmp_path):
    lines = written(tmp_path)
    with pytest.raises(FormatError, match="expected the sensors 0 to 4759 in order, found 4759 rows"):
        read_sensor_map(table(tmp_path, lines[:-1]))
    lines[1], lines[2] = lines[2], lines[1]
    with pytest.raises(FormatError, match="expected the sensors 0 to 4759 in order"):
        read_sensor_map(table(tmp_path, lines))


@pytest.mark.parametrize(("scale", "words"), [(10, "10"), (0.01, "0.01")])
def test_places_in_mm_or_m_are_refused(tmp_path, scale, words):
    head, *lines = written(tmp_path)
    rows = [line.split(",") for line in lines]
    other = [",".join([row[0], *(str(scale * float(part)) for part in row[1:4]), *row[4:]]) for row in rows]
    with pytest.raises(FormatError, match=rf"sensors are {words} times as far from the axis .* in cm$"):
        read_sensor_map(table(tmp_path, [head, *other]))


@pytest.mark.parametrize("value", ["nan", "inf", ""])
def test_a_place_that_is_no_number_is_refused(tmp_path, value):
    lines = written(tmp_path)
    lines[1 + 4321] = f"4321,1,{value},3,0,0,1"
    with pytest.raises(FormatError, match=r"sensors\.csv: sensor 4321: not finite"):
        read_sensor_map(table(tmp_path, lines))


@pytest.mark.parametrize(
    ("first", "second", "face"),
    [
        (0, 2000, "inner"),
        (4100, 4300, "outer"),
        (4400, 4310, "us"),
        (4500, 4590, "ds"),
        (4596, 4660, "top"),
        (4670, 4741, "bottom"),
        (4742, 4758, "outer centre"),
    ],
)
def test_places_in_the_wrong_order_are_refused_by_name(tmp_path, first, second, face):
    rows = [line.split(",") for line in written(tmp_path)]
    rows[1 + first][1:], rows[1 + second][1:] = rows[1 + second][1:], rows[1 + first][1:]
    path = table(tmp_path, [",".join(row) for row in rows])
    with pytest.raises(FormatError, match=f"{path}: face {face} as ") as error:
        read_sensor_map(path)
    named = [int(number) for number in re.findall(r"\d{1,4}", str(error.value).partition("the sensors")[2])]
    assert {first, second} & set(named[:2])


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_grids_pass_but_not_their_transpose(grid):
    check_grid(grid, POINTS)
    rows, columns = grid.ids.shape
    with pytest.raises(FormatError, match=f"face {grid.name} as {columns} by {rows}") as error:
        check_grid(Grid(grid.name, grid.ids.reshape(columns, rows)), POINTS)
    if grid is OUTER:
        assert str(error.value) == (
            "face outer as 9 by 24: the sensors 4109 and 4110 would be neighbours, but are 83.4 cm apart "
            "(pitch 9.7 cm); check the order of the sensors"
        )


@pytest.mark.parametrize("face", HEXES, ids=lambda face: face.name)
def test_shifted_rows_pass_but_not_in_the_opposite_order(face):
    check_grid(face, POINTS)
    with pytest.raises(FormatError, match=rf"face {face.name} as rows of \(14, 13, 12, 11, 12, 11\)"):
        check_grid(HexRows(face.name, face.ids, face.rows[::-1]), POINTS)


def test_sensors_in_shifted_rows_have_two_to_six_neighbours():
    pairs = module._pairs_in_rows(HexRows("small", np.arange(5), (2, 3)))
    assert {tuple(sorted(pair)) for pair in pairs.tolist()} == {
        *((0, 1), (2, 3), (3, 4)),
        *((0, 2), (1, 3), (0, 3), (1, 4)),
    }
    counts = np.bincount(module._pairs_in_rows(TOP).ravel())[TOP.ids]
    assert (counts.min(), counts.max()) == (2, 6)


def test_neighbours_are_the_nearest_sensors_in_order():
    found = neighbours(POINTS, 8)
    assert found.shape == (4760, 8)
    for sensor in (0, 300, 4091, 4197, 4759):
        apart = np.linalg.norm(POINTS - POINTS[sensor], axis=1)
        assert sensor not in found[sensor]
        assert apart[found[sensor]] == pytest.approx(np.sort(apart)[1:9])
    middle = INNER.ids[40, 20]
    beside = {INNER.ids[39, 20], INNER.ids[41, 20], INNER.ids[40, 19], INNER.ids[40, 21]}
    assert set(found[middle][:4]) == beside
