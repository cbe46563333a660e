import numpy as np
import pytest

from crpipe.core.errors import FormatError
from crpipe.workloads.direction.layout import read_geometry

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
    ],
)
def test_a_table_that_would_be_wrong_is_refused_by_name(tmp_path, wrong, said):
    with pytest.raises(FormatError) as error:
        read_geometry(table(tmp_path / "g.csv", **wrong))
    assert said in str(error.value)
    assert str(tmp_path / "g.csv") in str(error.value)


def test_a_table_with_a_hole_is_refused(tmp_path):
    path = tmp_path / "g.csv"
    path.write_text("sensor_id,x,y,z\n0,1,2,300\n1,,2,300\n")
    with pytest.raises(FormatError, match="finite"):
        read_geometry(path)


def test_a_table_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FormatError, match="absent.csv"):
        read_geometry(tmp_path / "absent.csv")


def test_something_else_is_refused(tmp_path):
    path = tmp_path / "g.csv"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    with pytest.raises(FormatError, match=r"g\.csv"):
        read_geometry(path)
