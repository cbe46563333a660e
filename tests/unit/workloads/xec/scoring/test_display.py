import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.scoring.display import colour_scale, draw_event, draw_events
from crpipe.workloads.xec.sensors import FACE_IDS, INNER

ONES = np.ones(SENSORS)


def drawn(values, valid=ONES):
    """Return the axis, the image of the inner face, and the photomultipliers' outlines."""
    axis = Figure().subplots()
    draw_event(axis, values, valid, "an event")
    tubes = [each for each in axis.collections if isinstance(each, PolyCollection)]
    return axis, axis.images[0], tubes


def centres(tubes):
    return np.concatenate([each.get_offsets() for each in tubes])


def test_every_sensor_is_drawn_once():
    _, image, tubes = drawn(np.arange(float(SENSORS)))
    shown = np.concatenate([image.get_array().ravel(), *(each.get_array() for each in tubes)])
    assert sorted(shown.tolist()) == list(range(SENSORS))
    assert image.get_array().shape == INNER.ids.shape == (93, 44)


def test_no_two_sensors_overlap():
    _, image, tubes = drawn(ONES)
    where = centres(tubes)
    apart = np.linalg.norm(where[:, None] - where, axis=2)
    assert apart[~np.eye(len(where), dtype=bool)].min() > 5.6
    left, right, low, high = image.get_extent()
    assert not ((where[:, 0] > left - 3) & (where[:, 0] < right + 3) & (np.abs(where[:, 1]) < high + 3)).any()
    assert low == -high


def test_faces_are_where_they_unfold_to():
    _, image, tubes = drawn(np.arange(float(SENSORS)))
    ids = np.concatenate([each.get_array() for each in tubes]).astype(int)
    x, y = centres(tubes).T
    middle = {
        name: (x[np.isin(ids, face)].mean(), y[np.isin(ids, face)].mean())
        for name, face in FACE_IDS.items()
        if name != "inner"
    }
    assert middle["us"][0] < -40 < 40 < middle["ds"][0] < middle["outer"][0]
    assert middle["bottom"][1] < -80 < 80 < middle["top"][1]
    assert np.abs([middle["us"][1], middle["ds"][1], middle["outer"][1], middle["top"][0]]).max() < 1
    # A sensor of the sides next to the inner face is drawn next to it.
    assert np.abs(x[ids == 4308]).max() < np.abs(x[ids == 4313]).max()
    assert image.get_array()[0, 0] == 0  # the first sensor is at the top
    assert y[ids == 4308] > 60


def test_invalid_sensors_are_grey():
    valid = ONES.copy()
    valid[[0, 4600]] = 0
    _, image, tubes = drawn(np.full(SENSORS, 1e10), valid)
    assert image.get_array().mask.ravel()[[0, 1]].tolist() == [True, False]
    grey = [each.cmap.get_bad() for each in (image, *tubes)]
    assert np.ptp(grey[0][:3]) < 0.1
    hidden = [np.count_nonzero(np.ma.getmaskarray(each.get_array())) for each in tubes]
    assert sum(hidden) == 1


def test_colours_reach_from_zero_to_the_largest_valid_value():
    values, valid = np.zeros(SENSORS), ONES.copy()
    values[:3] = -5, 4000, 1e10
    valid[2] = 0
    scale = colour_scale(values, valid)
    assert (scale.vmin, scale.vmax) == (0, 4000)
    assert colour_scale(values, np.zeros(SENSORS)).vmax == colour_scale(-ONES, ONES).vmax == 10


@pytest.mark.parametrize("events", [1, 2, 4])
def test_events_are_drawn_with_their_titles(gammas, events, tmp_path):
    items = gammas.items.reshape(-1, SENSORS, 4)[:events]
    titles = [f"run 1, event {number}" for number in range(events)]
    paths = [
        draw_events(tmp_path / name, items[..., 0], items[..., 2], titles) for name in ("a.svg", "b.svg")
    ]
    text = "".join(ET.parse(paths[0]).getroot().itertext())
    for label in (*titles, *FACE_IDS, "photons (grey: not valid)", "100"):
        assert label in text
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].stat().st_size < 100_000 * events
