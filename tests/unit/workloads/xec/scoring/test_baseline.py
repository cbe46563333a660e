import numpy as np
import pytest

from crpipe.events.batch import Events, concatenate
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.scoring import baseline
from crpipe.workloads.xec.scoring.baseline import (
    centre,
    neighbour_average,
    simple_reconstruction,
    solid_angle_average,
)
from crpipe.workloads.xec.sensors import FACE_IDS
from xenon_toy import light_of, make_gammas, places_of


def event_of(photons=0.0, time=0.0, photons_valid=1.0, time_valid=0.0) -> Events:
    """One event whose sensors are all alike, or as the arrays say."""
    items = np.stack(
        np.broadcast_arrays(photons, time, photons_valid, time_valid, np.zeros(SENSORS))[:4], axis=1
    )
    return Events({}, np.array([SENSORS], np.uint32), np.ascontiguousarray(items, np.float32))


def test_the_centre_is_near_the_conversion(gammas, places):
    found, true = simple_reconstruction(gammas, places), gammas.columns
    shallow = true["w_cm"] < 8
    for name in ("u_cm", "v_cm"):
        assert np.quantile(np.abs(found[name] - true[name])[shallow], 0.9) < 0.3
    assert np.corrcoef(found["w_cm"], true["w_cm"])[0, 1] > 0.9


@pytest.mark.parametrize("depth", [1.0, 2.0, 3.0])
def test_the_depth_follows_from_the_width_of_the_light(places, depth):
    photons = 1e6 * light_of(places_of(0.4, 0.3, depth), places)
    u, v, w = centre(photons[None], places)
    assert w[0] == pytest.approx(depth, rel=0.3)
    assert (u[0], v[0]) == pytest.approx((0.4, 0.3), abs=0.25)


def test_the_sum_is_of_valid_photons_alone_and_keeps_negative_ones(places):
    photons = np.where(np.arange(SENSORS) < 10, -3.0, 2.0)
    valid = np.arange(SENSORS) % 2
    found = simple_reconstruction(event_of(photons=photons, photons_valid=valid), places)
    assert found["photons_sum"][0] == pytest.approx((photons * valid).sum())


def test_sensors_that_are_not_valid_change_nothing(gammas, places):
    before = simple_reconstruction(gammas.part(0, 20), places)
    items = gammas.part(0, 20).items.copy()
    items[items[:, 2] == 0, 0] = 1e6
    items[items[:, 3] == 0, 1] = 1e6
    after = simple_reconstruction(Events({}, gammas.multiplicity[:20], items), places)
    for name, values in before.items():
        assert values.tolist() == after[name].tolist()


def test_the_time_is_that_of_the_conversion(gammas, places):
    found = simple_reconstruction(gammas, places)["gamma_time_ns"]
    timed = gammas.items[:, 3].reshape(-1, SENSORS).any(axis=1)
    difference = (found - gammas.columns["gamma_time_ns"])[timed]
    assert np.quantile(np.abs(difference - np.median(difference)), 0.68) < 0.1
    assert (found[~timed] == 0).all()
    late = gammas.items.copy()
    late[:, 1] += 5 * (late[:, 3] > 0)
    moved = simple_reconstruction(Events({}, gammas.multiplicity, late), places)["gamma_time_ns"]
    assert moved[timed] == pytest.approx(found[timed] + 5, abs=1e-4)


@pytest.mark.parametrize(
    "event",
    [
        event_of(photons_valid=0),
        event_of(),
        event_of(photons=-1.5),
        event_of(photons=9e9, time=1e7, time_valid=1),
        event_of(photons=-5, time=3, time_valid=1),
        event_of(photons=np.where(np.arange(SENSORS) == 4700, 500, 0)),
    ],
    ids=[
        "no valid sensor",
        "no light",
        "all negative",
        "all at the limit",
        "negative with times",
        "only top",
    ],
)
def test_any_event_has_finite_numbers(places, event):
    """Alone, and between two others, which it must not disturb."""
    gamma = make_gammas(1)
    gamma = Events({}, gamma.multiplicity, gamma.items)
    found = simple_reconstruction(concatenate([gamma, event, gamma]), places)
    assert set(found) == {"photons_sum", "u_cm", "v_cm", "w_cm", "gamma_time_ns"}
    for values in found.values():
        assert np.isfinite(values).all()
        assert values.dtype == np.float32
        assert values[0] == values[2]
    assert 0 <= found["w_cm"][1] <= baseline.DEEPEST_CM
    assert (found["gamma_time_ns"][1] == 0) == (event.items[0, 0] < 9e9)  # no others have light and a time


def test_no_events_have_no_numbers(places):
    found = simple_reconstruction(Events({}, np.zeros(0, np.uint32), np.zeros((0, 4), np.float32)), places)
    assert [len(values) for values in found.values()] == [0] * 5


def test_the_blocks_do_not_matter(gammas, places, monkeypatch):
    whole = simple_reconstruction(gammas.part(0, 20), places)
    monkeypatch.setattr(baseline, "_BLOCK", 3)
    parts = simple_reconstruction(gammas.part(0, 20), places)
    for name, values in whole.items():
        assert parts[name] == pytest.approx(values, rel=1e-6)


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
    monkeypatch.setattr(baseline, "_BLOCK", 2)
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
