from itertools import pairwise

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from crpipe.events.batch import Events, concatenate
from crpipe.workloads.direction.layout import opening_angle, unit_vectors
from crpipe.workloads.direction.scoring import line_fit as module
from crpipe.workloads.direction.scoring.line_fit import line_fit


def directions(events: int, seed: int = 5):
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 2 * np.pi, events), np.arccos(rng.uniform(-1, 1, events))


def errors_deg(events: Events, places) -> np.ndarray:
    true = unit_vectors(events.columns["azimuth"], events.columns["zenith"])
    return np.rad2deg(opening_angle(unit_vectors(*line_fit(events, places)), true))


def event_of(*pulses) -> Events:
    """One event of (sensor, time, auxiliary)."""
    items = np.array([(sensor, time, 1.0, auxiliary) for sensor, time, auxiliary in pulses], np.float32)
    columns = {"azimuth": np.zeros(1), "zenith": np.zeros(1)}
    return Events(columns, np.array([len(items)], np.uint32), items.reshape(-1, 4))


def test_tracks_are_found_to_a_few_degrees(tracks, detector):
    events = tracks(*directions(300), detector)
    found = errors_deg(events, detector)
    assert np.median(found) < 2
    assert np.quantile(found, 0.9) < 5


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_rotated_event_rotates_the_fit(tracks, detector, kind):
    """Each rotation on its own: the sensors turn, and their pulses stay."""
    events = tracks(*directions(100), detector)
    before = unit_vectors(*line_fit(events, detector.astype(kind)))
    for turn in Rotation.random(3, rng=np.random.default_rng(4)):
        after = unit_vectors(*line_fit(events, turn.apply(detector).astype(kind)))
        assert opening_angle(turn.apply(before), after).max() < 1e-6


@pytest.mark.parametrize("zenith", [0.0, np.pi])
def test_a_vertical_track_is_vertical(tracks, detector, zenith):
    events = tracks(np.zeros(50), np.full(50, zenith), detector)
    _, found = line_fit(events, detector)
    assert np.rad2deg(np.abs(found - zenith)).mean() < 1


def test_a_vertical_track_along_one_string_comes_from_straight_above():
    places = np.zeros((20, 3))
    places[:, 2] = np.linspace(500, -500, 20)
    pulses = [(number, (500 - z) / 0.3, 0) for number, z in enumerate(places[:, 2])]
    _, zenith = line_fit(event_of(*pulses), places)
    assert np.rad2deg(zenith[0]) < 1e-4


def test_noise_that_is_auxiliary_changes_nothing(tracks, detector):
    noisy = tracks(*directions(100), detector)
    light = noisy.items[:, 3] == 0
    event = np.repeat(np.arange(100), noisy.multiplicity)
    counts = np.bincount(event[light], minlength=100).astype(np.uint32)
    clean = Events(noisy.columns, counts, noisy.items[light])
    assert counts.sum() < noisy.multiplicity.sum()
    assert errors_deg(noisy, detector).tolist() == errors_deg(clean, detector).tolist()


def test_noise_among_the_light_moves_the_fit_little(tracks, detector):
    """One pulse in ten is noise that looks like light; without cleaning and Huber's loss the fit is lost."""
    events = tracks(*directions(200), detector, noise=4)
    events.items[:, 3] = 0
    robust = np.median(errors_deg(events, detector))
    assert robust < 4
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(module, "_HUBER_M", 1e9)
        plain.setattr(module, "_LATE_NS", 1e9)
        assert np.median(errors_deg(events, detector)) > 2 * robust


def test_light_that_comes_late_beside_early_light_is_left_out(tracks, detector):
    events = tracks([0.7], [1.2], detector, noise=0)
    again = events.items.copy()
    again[:, 1] += 2000.0  # every sensor is hit a second time
    double = Events(events.columns, 2 * events.multiplicity, np.concatenate([events.items, again]))
    assert line_fit(double, detector) == line_fit(events, detector)


def test_an_event_without_enough_coincident_sensors_uses_all_pulses(detector):
    along = [(number, 1e4 + 100 * number, 1) for number in range(20)]
    quiet = event_of(*along, (700, 1e4, 0))
    assert line_fit(quiet, detector)[1] == pytest.approx(
        line_fit(event_of(*along, (700, 1e4, 1)), detector)[1]
    )


@pytest.mark.parametrize(
    "pulses",
    [
        [(5, 1000.0, 0)],
        [(5, 1000.0, 1)],
        [(5, 1000.0, 0), (5, 1100.0, 0)],
        [(5, 1000.0, 0), (6, 1000.0, 0), (7, 1000.0, 0), (90, 1000.0, 0), (200, 1000.0, 0)],
        [(5, 1000.0, 1), (900, 1000.0, 1)],
        [(5, 16777215.0, 1), (900, 0.0, 0)],
        [],
    ],
    ids=["one pulse", "one auxiliary", "one sensor", "one time", "two auxiliary", "far apart", "no pulse"],
)
def test_any_event_has_a_finite_direction(tracks, detector, pulses):
    """Alone, and between two others, which it must not disturb."""
    track = tracks([0.7], [1.2], detector)
    azimuth, zenith = line_fit(concatenate([track, event_of(*pulses), track]), detector)
    assert np.isfinite(azimuth).all()
    assert np.isfinite(zenith).all()
    assert azimuth[0] == azimuth[2] == line_fit(track, detector)[0][0]


def test_no_events_have_no_directions(detector):
    azimuth, zenith = line_fit(Events({}, np.zeros(0, np.uint32), np.zeros((0, 4), np.float32)), detector)
    assert len(azimuth) == len(zenith) == 0


def test_the_order_of_pulses_and_the_blocks_do_not_matter(tracks, detector, monkeypatch):
    events = tracks(*directions(20), detector)
    whole = unit_vectors(*line_fit(events, detector))
    ends = events.offsets()
    backwards = np.concatenate([events.items[a:b][::-1] for a, b in pairwise(ends)])
    monkeypatch.setattr(module, "_BLOCK", (3, 100))
    turned = unit_vectors(*line_fit(Events(events.columns, events.multiplicity, backwards), detector))
    assert opening_angle(whole, turned).max() < 1e-9
