"""Sensors of a batch, chosen by the seed alone; photons and times as numbers about 1.

tests/properties/test_codec.py tries the way back.
"""

import numpy as np
import pytest
import torch

from crpipe.workloads.xec.layout import PHOTONS_VALID, SENSORS
from crpipe.workloads.xec.models.features import Codec, hidden_sensors, sensors_of, without_channels
from crpipe.workloads.xec.options import CodecOptions
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
    assert not np.array_equal(found, without_channels(SENSORS_OF, share, (1, 3)))
    assert np.array_equal(SENSORS_OF, before)
    assert found.dtype == np.float32
    out = (found == 0).all(axis=2) & ~(before == 0).all(axis=2)
    assert np.array_equal(found[~out], before[~out])
    lit = before[..., PHOTONS_VALID] > 0
    number = lit.sum()
    spread = np.sqrt(number * share * (1 - share))
    assert abs(out.sum() - number * share) < 5 * spread
    assert len({out[event].tobytes() for event in range(6)}) == 6  # each event has its own


def test_exactly_the_share_of_the_valid_sensors_is_hidden_and_no_dead_one():
    shares = np.array([0.05, 0.1, 0.2, 0.6, 0.9, 0.0001])
    hidden = hidden_sensors(SENSORS_OF, shares, (3,))
    valid = SENSORS_OF[..., PHOTONS_VALID] > 0
    assert (~valid).any(axis=1).all()
    assert not (hidden & ~valid).any()
    assert not np.array_equal(hidden, hidden_sensors(SENSORS_OF, shares, (4,)))
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


CURVES = ("log1p", "sqrt", "linear")


@pytest.mark.parametrize("curve", CURVES)
def test_most_photons_are_one_and_none_are_zero(curve):
    codec = Codec(CodecOptions(photons=curve, photons_most=2000, photons_scale=7))
    found = codec.encode_photons(torch.tensor([2000.0, -2000.0, 0.0, -0.0]))
    np.testing.assert_allclose(found, [1, -1, 0, 0], rtol=1e-6)


def test_the_curves_are_what_their_names_say():
    photons = torch.tensor([1.0, 99.0, 899.0])
    found = {
        curve: Codec(CodecOptions(photons=curve, photons_scale=1, photons_most=99)).encode_photons(photons)
        for curve in CURVES
    }
    np.testing.assert_allclose(found["log1p"], np.log10([2, 100, 900]) / 2, rtol=1e-6)
    np.testing.assert_allclose(found["sqrt"], np.sqrt(np.array([1, 99, 899]) / 99), rtol=1e-6)
    np.testing.assert_allclose(found["linear"], np.array([1, 99, 899]) / 99, rtol=1e-6)


def test_times_are_counted_from_the_start_of_each_event():
    codec = Codec(CodecOptions(time_scale_ns=5))
    found = codec.encode_time(torch.tensor([[3.0, -2.0], [110.0, 100.0]]), torch.tensor([[3.0], [100.0]]))
    assert found.tolist() == [[0, -1], [2, 0]]


@pytest.mark.parametrize("curve", CURVES)
def test_slopes_are_finite_everywhere(curve):
    """A sensor without photons is the most frequent one, and the saliency asks for its slope."""
    codec = Codec(CodecOptions(photons=curve))
    photons = torch.tensor([0.0, -0.0, 1e-30, -1e-3, 5.0, 1e9], requires_grad=True)
    (slope,) = torch.autograd.grad(codec.encode_photons(photons).sum(), photons)
    assert torch.isfinite(slope).all()
    assert (slope >= 0).all()


def test_a_codec_has_no_weights():
    """Its constants are a buffer: every checkpoint holds them, and no training or averaging changes them."""
    assert not list(Codec(CodecOptions()).parameters())


@pytest.mark.parametrize(
    "other", [{"photons": "sqrt"}, {"photons_scale": 10.0}, {"photons_most": 1e4}, {"time_scale_ns": 1.0}]
)
def test_weights_of_another_scaling_are_refused(other):
    trained, wanted = Codec(CodecOptions(**other)), Codec(CodecOptions())
    with pytest.raises(RuntimeError, match=r"trained with model.codec: \{photons: .*; give the same"):
        wanted.load_state_dict(trained.state_dict())
    wanted.load_state_dict(Codec(CodecOptions()).state_dict())
