"""Lists and rows of found sensors: one for each, with NaN where nobody knows the truth."""

import numpy as np
import pytest

from crpipe.workloads.xec.layout import PHOTONS, PHOTONS_VALID, SENSORS, TIME, TIME_VALID
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.models.masked import DEAD, HIDDEN, LISTS, hidden_sensor_columns, hidden_sensor_table
from crpipe.workloads.xec.scoring.baseline import neighbour_average, solid_angle_average
from crpipe.workloads.xec.sensors import face_of, sensor_map
from xenon_toy import make_gammas

PLACES = sensor_map()
GAMMAS = make_gammas(3, dead=0.02)
ITEMS = sensors_of(GAMMAS)
VALID = ITEMS[..., PHOTONS_VALID] > 0


def some(share=0.03, seed=0):
    rng = np.random.default_rng(seed)
    hidden = (rng.random(VALID.shape) < share) & VALID
    photons = rng.normal(100, 30, VALID.shape).astype(np.float32)
    time = rng.normal(0, 5, VALID.shape).astype(np.float32)
    return hidden, photons, time


AVERAGES = {"neighbours_photons": neighbour_average, "solid_angle_photons": solid_angle_average}


def averages(wanted):
    return {name: each(ITEMS[..., PHOTONS], VALID, wanted, PLACES) for name, each in AVERAGES.items()}


@pytest.fixture(scope="module")
def listed():
    hidden, photons, time = some()
    return hidden, photons, time, hidden_sensor_columns(ITEMS, hidden, photons, time, averages)


def test_lists_hold_one_value_for_each_found_sensor(listed):
    hidden, photons, time, found = listed
    for event in range(3):
        ids = np.flatnonzero(hidden[event] | ~VALID[event])
        known = hidden[event, ids]
        own = {name: found[name][event] for name in LISTS}
        assert {name: values.dtype for name, values in own.items()} == LISTS
        assert own["sensor_id"].tolist() == ids.tolist()
        assert own["kind"].tolist() == np.where(known, HIDDEN, DEAD).tolist()
        assert np.array_equal(own["photons"], photons[event, ids])
        assert np.array_equal(own["time_ns"], time[event, ids])
        truth = np.where(known, ITEMS[event, ids, PHOTONS], np.nan)
        assert np.array_equal(own["true_photons"], truth, equal_nan=True)
        timed = known & (ITEMS[event, ids, TIME_VALID] > 0)
        truth = np.where(timed, ITEMS[event, ids, TIME], np.nan)
        assert np.array_equal(own["true_time_ns"], truth, equal_nan=True)
        assert timed.sum() < known.sum() < len(ids)
    assert np.isfinite(np.concatenate(list(found["true_time_ns"]))).any()
    assert found["hidden"].tolist() == hidden.sum(axis=1).tolist()
    assert found["dead"].tolist() == (~VALID).sum(axis=1).tolist()


def test_averages_are_those_of_the_events(listed):
    hidden, *_, found = listed
    wanted = hidden | ~VALID
    for name, flat in averages(wanted).items():
        np.testing.assert_allclose(np.concatenate(list(found[name])), flat)


@pytest.mark.parametrize("counts", [(0, 0, 0), (1, 1, 1), (3, 3, 3), (0, 2, 0), (5, 0, 1)])
def test_lists_of_any_lengths_belong_to_their_events(counts):
    """Also equal lengths, of which numpy would like to make a table."""
    whole = np.zeros((3, SENSORS, 4), np.float32)
    whole[..., PHOTONS_VALID] = 1
    whole[..., PHOTONS] = np.arange(SENSORS)
    hidden = np.arange(SENSORS) < np.array(counts)[:, None]
    photons = np.tile(np.arange(SENSORS, dtype=np.float32), (3, 1))
    found = hidden_sensor_columns(whole, hidden, photons, photons, lambda _: {})
    for name in LISTS:
        assert found[name].shape == (3,)
        assert [values.shape for values in found[name]] == [(count,) for count in counts]
    assert [values.tolist() for values in found["sensor_id"]] == [list(range(count)) for count in counts]
    assert hidden_sensor_table(GAMMAS, found).num_rows == sum(counts)


def test_rows_are_those_of_the_reference_in_its_units(listed):
    *_, found = listed
    table = hidden_sensor_table(GAMMAS, found).to_pydict()
    count = sum(map(len, found["sensor_id"]))
    assert all(len(values) == count for values in table.values())
    assert list(zip(table["run_number"], table["event_number"], strict=True)) == [
        (1, event) for event in range(3) for _ in found["sensor_id"][event]
    ]
    flat = {name: np.concatenate(list(found[name])) for name in LISTS}
    assert table["sensor_id"] == flat["sensor_id"].tolist()
    assert table["mask_type"] == flat["kind"].tolist()
    assert table["face"] == face_of()[flat["sensor_id"].astype(int)].tolist()
    np.testing.assert_allclose(table["pred_npho"], flat["photons"])
    np.testing.assert_allclose(table["truth_npho"], flat["true_photons"])
    np.testing.assert_allclose(table["pred_time"], flat["time_ns"] * 1e-9, rtol=1e-6)
    np.testing.assert_allclose(table["truth_time"], flat["true_time_ns"] * 1e-9, rtol=1e-6)
    np.testing.assert_allclose(table["error_npho"], flat["photons"] - flat["true_photons"], rtol=1e-6)
    error = (flat["time_ns"] - flat["true_time_ns"]) * 1e-9
    np.testing.assert_allclose(table["error_time"], error, rtol=1e-5)
    dead = np.array(table["mask_type"]) == DEAD
    for name in ("truth_npho", "truth_time", "error_npho", "error_time"):
        assert np.isnan(np.array(table[name])[dead]).all()
    assert np.isfinite(np.array(table["error_npho"])[~dead]).all()
