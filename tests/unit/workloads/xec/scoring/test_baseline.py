import numpy as np
import pytest

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.scoring import baseline
from crpipe.workloads.xec.scoring.baseline import (
    centre,
    neighbour_average,
    solid_angle_average,
)
from crpipe.workloads.xec.sensors import FACE_IDS
from xenon_toy import light_of, places_of


@pytest.mark.parametrize("depth", [1.0, 2.0, 3.0])
def test_the_depth_follows_from_the_width_of_the_light(places, depth):
    photons = 1e6 * light_of(places_of(0.4, 0.3, depth), places)
    u, v, w = centre(photons[None], places)
    assert w[0] == pytest.approx(depth, rel=0.3)
    assert (u[0], v[0]) == pytest.approx((0.4, 0.3), abs=0.25)


BOTH = pytest.mark.parametrize("average", [neighbour_average, solid_angle_average])


def hide(events, share=0.1, seed=0):
    return np.random.default_rng(seed).random((events, SENSORS)) < share


@pytest.fixture(scope="module")
def event(places):
    """Light of one point, without noise: [1, 4760]."""
    return 1e5 * light_of(places_of(3.0, -10.0, 4.0), places)[None]


def test_the_mean_of_a_constant_field_is_the_constant(places):
    hidden = hide(3)
    found = neighbour_average(np.full((3, SENSORS), 7.25), np.ones((3, SENSORS)), hidden, places)
    assert len(found) == hidden.sum()
    assert (found == np.float32(7.25)).all()


def test_the_mean_is_that_of_the_same_face_within_20_cm(places):
    photons, hidden = np.random.default_rng(0).uniform(0, 99, (1, SENSORS)), np.zeros((1, SENSORS), bool)
    for number in (0, 2000, 4310, 4600, 4750):
        hidden[0, number] = True
    found = neighbour_average(photons, np.ones((1, SENSORS)), hidden, places)
    for number, value in zip(np.flatnonzero(hidden), found, strict=True):
        (face,) = (ids for ids in FACE_IDS.values() if number in ids)
        near = face[(np.linalg.norm(places[face, :3] - places[number, :3], axis=1) <= 20) & (face != number)]
        near = near[~hidden[0, near]]
        assert value == pytest.approx(photons[0, near].mean())


@BOTH
def test_hidden_and_invalid_values_change_nothing(average, event, places):
    hidden, valid = hide(1), ~hide(1, 0.05, seed=1)
    before = average(event, valid, hidden, places)
    after = average(np.where(hidden | ~valid, 1e7, event), valid, hidden, places)
    assert before.tolist() == after.tolist()


@BOTH
def test_each_event_is_averaged_on_its_own_whatever_the_blocks(average, event, places, monkeypatch):
    photons = np.concatenate([event, 3 * event, np.ones_like(event), 2 * event])
    hidden, valid = hide(4), np.ones((4, SENSORS))
    whole = average(photons, valid, hidden, places)
    monkeypatch.setattr(baseline, "_HIDDEN", 100)
    assert average(photons, valid, hidden, places) == pytest.approx(whole, rel=1e-6)
    ends = np.cumsum(hidden.sum(axis=1))
    for number, (first, last) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        each = slice(number, number + 1)
        alone = average(photons[each], valid[each], hidden[each], places)
        assert whole[first:last] == pytest.approx(alone, rel=1e-6)


def test_light_of_one_point_is_found_by_solid_angle(event, places):
    """Where a sensor faces the light, the average by solid angle is much nearer than the plain one."""
    hidden, valid = hide(1), np.ones((1, SENSORS))
    true = event[hidden]
    bright = true > 20
    wrong = {
        average: np.abs(average(event, valid, hidden, places) - true)[bright].mean() / true[bright].mean()
        for average in (neighbour_average, solid_angle_average)
    }
    assert wrong[solid_angle_average] < 0.25
    assert wrong[solid_angle_average] < 0.4 * wrong[neighbour_average]


@BOTH
def test_without_visible_neighbours_the_estimate_is_zero(average, event, places):
    hidden = np.zeros((2, SENSORS), bool)
    hidden[:, :4092] = True
    found = average(np.repeat(event, 2, axis=0), np.ones((2, SENSORS)), hidden, places)
    assert (found == 0).all()
    assert average(event, np.zeros((1, SENSORS)), hidden[:1], places).tolist() == [0.0] * 4092


@BOTH
def test_nothing_hidden_gives_nothing(average, event, places):
    assert len(average(event, np.ones((1, SENSORS)), np.zeros((1, SENSORS), bool), places)) == 0
    none = np.zeros((0, SENSORS))
    assert len(average(none, none, none.astype(bool), places)) == 0
