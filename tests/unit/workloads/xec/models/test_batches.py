"""Sensors of a batch: chosen ones are dead or hidden, as many as asked for, by the seed alone."""

import numpy as np
import pytest

from crpipe.workloads.xec.layout import PHOTONS_VALID, SENSORS
from crpipe.workloads.xec.models.features import hidden_sensors, sensors_of, without_channels
from xenon_toy import make_gammas

GAMMAS = make_gammas(6, dead=0.1)
SENSORS_OF = sensors_of(GAMMAS)


def sparse(counts):
    """Make events with these numbers of valid sensors, anywhere."""
    sensors = np.zeros((len(counts), SENSORS, 4), np.float32)
    for number, count in enumerate(counts):
        sensors[number, np.random.default_rng(number).permutation(SENSORS)[:count], PHOTONS_VALID] = 1
    return sensors


def test_sensors_are_a_view_of_the_items():
    assert SENSORS_OF.shape == (6, SENSORS, 4)
    assert np.shares_memory(SENSORS_OF, GAMMAS.items)
    assert np.array_equal(SENSORS_OF[2, 17], GAMMAS.items[2 * SENSORS + 17])


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_channels_that_are_left_out_have_nothing_and_the_others_all(share):
    before = SENSORS_OF.copy()
    found = without_channels(SENSORS_OF, share, (1, 2))
    assert np.array_equal(SENSORS_OF, before)
    assert found.dtype == np.float32
    out = (found == 0).all(axis=2) & ~(before == 0).all(axis=2)
    assert np.array_equal(found[~out], before[~out])
    lit = before[..., PHOTONS_VALID] > 0
    number = lit.sum()
    spread = np.sqrt(number * share * (1 - share))
    assert abs(out.sum() - number * share) < 5 * spread
    assert len({out[event].tobytes() for event in range(6)}) == 6  # each event has its own


def test_the_seed_alone_decides():
    state = np.random.get_state()[1].tolist()  # noqa: NPY002 - that nobody uses it is the point
    first, same, other = (without_channels(SENSORS_OF, 0.2, seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    shares = np.full(6, 0.3)
    first, same, other = (hidden_sensors(SENSORS_OF, shares, seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_exactly_the_share_of_the_valid_sensors_is_hidden_and_no_dead_one():
    shares = np.array([0.05, 0.1, 0.2, 0.6, 0.9, 0.0001])
    hidden = hidden_sensors(SENSORS_OF, shares, (3,))
    valid = SENSORS_OF[..., PHOTONS_VALID] > 0
    assert (~valid).any(axis=1).all()
    assert not (hidden & ~valid).any()
    wanted = np.maximum(np.round(shares * valid.sum(axis=1)), 1)
    assert hidden.sum(axis=1).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("count", "share", "wanted"),
    [(0, 0.5, 0), (1, 0.01, 1), (2, 0.99, 1), (3, 0.0, 1), (10, 0.5, 5), (SENSORS, 0.6, 2856), (4, 0.999, 3)],
)
def test_one_sensor_at_least_is_hidden_and_one_is_left(count, share, wanted):
    hidden = hidden_sensors(sparse([count, 100]), np.array([share, 0.5]), (0,))
    assert hidden.sum(axis=1).tolist() == [wanted, 50]


def test_every_valid_sensor_may_be_hidden():
    hidden = hidden_sensors(sparse([40] * 200), np.full(200, 0.25), (0,))
    valid = sparse([40] * 200)[..., PHOTONS_VALID] > 0
    place = hidden[valid].reshape(200, 40).mean(axis=0)
    assert 0.1 < place.min() < place.max() < 0.4
