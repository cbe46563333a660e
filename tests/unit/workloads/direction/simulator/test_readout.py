"""Pulses, coincidences, trigger, noise and charge."""

import numpy as np
import pytest

from crpipe.workloads.direction.simulator.physics import SENSORS, Light
from crpipe.workloads.direction.simulator.readout import (
    Recorded,
    charges,
    coincident,
    merged,
    pulse_keys,
    record,
    thinned,
    triggered,
)

NO_NOISE = 0.0


def keys(*pulses):
    """Sorted keys of (event, sensor, time)."""
    event, sensor, time = np.array(pulses).T
    return np.sort(pulse_keys(event, sensor, time))


def light(mean, sensor=(0,), particle=0, time=0.0, distance=1e-3):
    sensor = np.asarray(sensor)
    each = np.ones(len(sensor), np.float32)
    return Light(np.full(len(sensor), particle), sensor, mean * each, time * each, distance * each)


def recorded(*args, noise_hz=NO_NOISE, seed=1):
    return list(record(np.random.default_rng(seed), light(*args), noise_hz))


def test_coincidences_are_those_found_one_by_one():
    rng = np.random.default_rng(2)
    pulses = rng.integers([0, 50, 0], [2, 190, 60_000], (3000, 3))
    key = keys(*pulses)
    event, sensor, time = pulses[np.argsort(pulse_keys(*pulses.T))].T
    apart = np.abs(sensor[:, None] - sensor)
    near = (event[:, None] == event) & (sensor[:, None] // 60 == sensor // 60) & (apart > 0) & (apart <= 2)
    expected = (near & (np.abs(time[:, None] - time) <= 1000)).any(axis=1)
    assert 0.1 < expected.mean() < 0.9
    assert np.array_equal(coincident(key), expected)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((0, 61, 0), True),
        ((0, 62, 1000), True),
        ((0, 62, 1001), False),
        ((0, 63, 0), False),
        ((0, 59, 0), False),
        ((0, 60, 5), False),
        ((1, 61, 0), False),
    ],
    ids=["next", "within 1 us", "later", "third", "other string", "itself", "other event"],
)
def test_coincidence_needs_a_neighbour_of_the_same_string_at_the_time(other, expected):
    assert coincident(keys((0, 60, 0), other)).tolist() == [expected, expected]


def test_eight_sensors_within_5_us_trigger_at_the_first_of_them():
    eight = [(3, sensor, 100 + 10 * sensor) for sensor in range(8)]
    event, time = triggered(keys((3, 100, -20_000), *eight))
    assert event.tolist() == [3]
    assert time.tolist() == [100]
    assert not len(triggered(keys(*eight[:7]))[0])
    assert not len(triggered(keys(*eight[:7], (3, 0, 500)))[0])
    assert not len(triggered(keys(*eight[:7], (3, 7, 5101)))[0])
    assert not len(triggered(keys(*eight[:7], (4, 7, 170)))[0])


def test_photons_within_5_ns_are_one_pulse():
    key = keys((0, 7, 0), (0, 7, 4), (0, 7, 8), (0, 7, 13), (0, 8, 14))
    pulses = merged(key[::-1], np.arange(5.0))
    assert np.array_equal(pulses.key, key[[0, 3, 4]])
    assert pulses.photons.tolist() == [9, 1, 0]


def test_few_photons_are_kept_and_many_become_38_heavier_ones():
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(1001), [2] + 1000 * [1])
    photons = np.concatenate([[20, 18], np.full(1000, 1000)])
    sample, weight = thinned(rng, group, photons)
    assert sample[:2].tolist() == [20, 18]
    assert weight[:2].tolist() == [1, 1]
    assert sample[2:].min() >= 38
    assert sample[2:].max() <= 39
    assert (sample * weight)[2:].mean() == pytest.approx(1000, rel=0.01)
    sample, weight = thinned(rng, np.zeros(1, np.int64), np.array([10**9]))
    assert sample[0] * weight[0] == pytest.approx(3000, rel=0.05)


def test_charge_is_about_the_number_of_photons_in_steps_of_a_twentieth():
    one = charges(np.random.default_rng(4), np.ones(20_000))
    assert one.min() > 0
    assert np.median(one) == pytest.approx(0.975, abs=0.051)
    assert np.allclose(np.mod(one, 0.05), 0.025)
    many = charges(np.random.default_rng(4), np.full(1000, 500.0))
    assert many.mean() == pytest.approx(0.9 * 500, rel=0.02)
    assert many.std() == pytest.approx(0.4 * np.sqrt(500), rel=0.1)


def test_an_event_without_noise_is_its_coincidence():
    (event,) = recorded(50.0, range(120, 130))
    assert event.particle.tolist() == [0]
    assert event.count.sum() == len(event.sensor) == len(event.time_ns)
    assert set(event.sensor) == set(range(120, 130))
    assert not event.auxiliary.any()
    assert np.all(np.diff(event.time_ns) >= 0)
    assert event.time_ns[0] == 9880
    assert event.charge_pe.sum() == pytest.approx(500, rel=0.2)


def test_light_on_too_few_or_too_distant_sensors_does_not_trigger():
    assert sum(len(each.count) for each in recorded(50.0, range(120, 127))) == 0
    assert sum(len(each.count) for each in recorded(50.0, range(120, 240, 3))) == 0


def test_noise_fills_the_window_evenly_and_is_auxiliary():
    """0.5 kHz on 5160 sensors, from 4 us before the first coincidence to 6 us after the last."""
    count = []
    for seed in range(100):
        (event,) = recorded(50.0, range(120, 130), noise_hz=500.0, seed=seed)
        noise = (event.sensor < 118) | (event.sensor >= 132)
        assert event.time_ns.min() >= 5880
        assert event.time_ns.max() < 9880 + 100 + 6000
        assert event.auxiliary[noise].mean() > 0.8
        count.append(noise.sum())
    assert np.mean(count) == pytest.approx(500e-9 * SENSORS * 10_020, rel=0.06)


def test_first_events_keep_their_pulses():
    event = Recorded(np.arange(3), np.array([2, 1, 3]), *(np.arange(6) for _ in range(4)))
    first = event.first(2)
    assert first.particle.tolist() == [0, 1]
    assert first.sensor.tolist() == first.auxiliary.tolist() == [0, 1, 2]
