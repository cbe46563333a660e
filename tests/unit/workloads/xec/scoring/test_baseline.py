import numpy as np
import pytest

from crpipe.events.batch import Events, concatenate
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.scoring import baseline
from crpipe.workloads.xec.scoring.baseline import centre, simple_reconstruction
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


def test_no_events_have_no_numbers(places):
    found = simple_reconstruction(Events({}, np.zeros(0, np.uint32), np.zeros((0, 4), np.float32)), places)
    assert [len(values) for values in found.values()] == [0] * 5


def test_the_blocks_do_not_matter(gammas, places, monkeypatch):
    whole = simple_reconstruction(gammas.part(0, 20), places)
    monkeypatch.setattr(baseline, "_BLOCK", 3)
    parts = simple_reconstruction(gammas.part(0, 20), places)
    for name, values in whole.items():
        assert parts[name] == pytest.approx(values, rel=1e-6)
