"""The readout: photons about their mean with more than Poisson's spread, times of the first light."""

import numpy as np
import pytest

from crpipe.workloads.xec.sensors import sensor_map
from crpipe.workloads.xec.simulator import files as module
from crpipe.workloads.xec.simulator.files import INVALID, NOISE, first_decay, record
from crpipe.workloads.xec.simulator.physics import Deposits, mean_photons, photosensors

PLACES = sensor_map()
DEAD = np.array([7, 2000, 4300])


def flashes(energy, events=400, place=(-70.0, 5.0, 3.0), time=12.0):
    """Events that differ in nothing but their noise."""
    places = np.broadcast_to(np.array(place), (events, 1, 3))
    return Deposits(places, np.full((events, 1), time), np.full((events, 1), energy))


@pytest.fixture(scope="module")
def bright():
    deposits = flashes(0.05)
    return record(np.random.default_rng(1), deposits, DEAD), mean_photons(flashes(0.05, 1))[0]


def test_photons_are_about_their_mean(bright):
    (photons, _), mean = bright
    alive = np.delete(np.arange(4760), DEAD)
    expected = mean * photosensors().gain
    error = np.sqrt((1.4 * mean + NOISE**2) / 400)
    pull = (photons.mean(axis=0) - expected)[alive] / error[alive]
    assert np.abs(pull).max() < 5
    assert pull.mean() == pytest.approx(0, abs=0.1)


def test_photons_spread_more_than_poissons_law(bright):
    (photons, _), mean = bright
    for part, excess in ((slice(0, 4092), 1.3), (slice(4092, 4760), 1.4)):
        chosen = np.setdiff1d(np.flatnonzero(mean > 50), DEAD)
        chosen = chosen[(chosen >= part.start) & (chosen < part.stop)]
        factor = photons[:, chosen].var(axis=0) / (mean * photosensors().gain ** 2)[chosen]
        assert factor.mean() == pytest.approx(excess, rel=0.05)


def test_without_light_there_is_noise_about_zero():
    photons, time = record(np.random.default_rng(1), flashes(0.0, 20), DEAD)
    alive = np.delete(photons, DEAD, axis=1)
    assert alive.mean() == pytest.approx(0, abs=0.02)
    assert alive.std() == pytest.approx(NOISE, rel=0.05)
    assert 0.4 < (alive < 0).mean() < 0.6
    assert (time == np.float32(INVALID)).all()


def test_time_grows_with_the_distance_by_the_speed_of_light_in_xenon(bright):
    (_, time), mean = bright
    distance = np.linalg.norm(PLACES[:, :3] - [-70.0, 5.0, 3.0], axis=1)
    always = np.flatnonzero((time < 9e9).all(axis=0))
    median = 1e9 * np.median(time[:, always], axis=0)
    late = median - 12.0 - distance[always] * 1.65 / 29.979
    assert len(always) > 50
    assert late.mean() == pytest.approx(0.15, abs=0.1)
    order = np.argsort(mean[always])
    assert late[order[:10]].mean() > late[order[-10:]].mean()  # less light, later


def test_light_of_the_nearest_deposit_comes_first():
    place = np.array([[-70.0, 0.0, 0.0], [-95.0, 0.0, 0.0]])
    both = Deposits(np.tile(place, (200, 1, 1)), np.zeros((200, 2)), np.full((200, 2), 0.03))
    _, time = record(np.random.default_rng(2), both, DEAD)
    face = np.linalg.norm(PLACES[:, :3] - place[0], axis=1).argmin()
    assert 1e9 * np.median(time[:, face]) == pytest.approx(5 * 1.65 / 29.979, abs=0.3)


@pytest.mark.parametrize("photons", [1.0, 10.0, 1000.0])
def test_first_of_many_decays_follows_the_sum_of_exponentials(photons):
    found = first_decay(np.random.default_rng(1), np.full(100_000, photons))
    for t in (np.quantile(found, 0.2), np.quantile(found, 0.7)):
        later = sum(share * np.exp(-t / tau) for tau, share in module.DECAYS) ** photons
        assert np.mean(found > t) == pytest.approx(later, abs=0.01)


def test_shares_of_the_decays_add_up():
    assert sum(share for _, share in module.DECAYS) == pytest.approx(1)
    mean = sum(share * tau for tau, share in module.DECAYS)
    assert first_decay(np.random.default_rng(1), np.ones(200_000)).mean() == pytest.approx(mean, rel=0.02)
