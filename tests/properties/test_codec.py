"""What the codec of the xenon detector encodes, it decodes: photons of any size and sign, any times."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from crpipe.workloads.xec.layout import LARGEST, TIME_NS
from crpipe.workloads.xec.models.features import Codec
from crpipe.workloads.xec.options import CodecOptions

EPSILON = float(np.finfo(np.float32).eps)


def numbers(most):
    return st.floats(-most, most, width=32)


def sizes(least, most):
    """Numbers of any magnitude between two powers of ten."""
    return st.floats(least, most).map(lambda power: 10.0**power)


codecs = st.builds(
    CodecOptions,
    photons=st.sampled_from(["log1p", "sqrt", "linear"]),
    photons_scale=sizes(-3, 6),
    photons_most=sizes(0, 7),
    time_scale_ns=sizes(-2, 4),
).map(Codec)
photons = st.lists(numbers(float(np.float32(LARGEST))), min_size=1, max_size=30).map(torch.tensor)
# Times around a start, as those of one event are; a float32 has no more digits than that.
times = st.lists(numbers(1000.0), min_size=1, max_size=30).map(torch.tensor)


@given(codecs, photons)
def test_photons_come_back(codec, values):
    found = codec.decode_photons(codec.encode_photons(values))
    # The exponential of a number x multiplies its rounding error by x, which is at most 30 here.
    np.testing.assert_allclose(found, values, rtol=100 * EPSILON, atol=1e-30)


@given(codecs, times, numbers(TIME_NS))
def test_times_come_back_for_any_start(codec, values, start):
    time = values + start
    found = codec.decode_time(codec.encode_time(time, torch.tensor(start)), torch.tensor(start))
    largest = abs(start) + values.abs().max().item()
    np.testing.assert_allclose(found, time, rtol=0, atol=4 * EPSILON * largest)


@given(codecs, photons)
def test_more_photons_never_become_a_smaller_number(codec, values):
    ordered = values.sort().values
    encoded = codec.encode_photons(ordered)
    assert torch.isfinite(encoded).all()
    # The functions of torch are right to a few units of the last digit.
    assert (encoded.diff() >= -4 * EPSILON * encoded[1:].abs()).all()
    far = ordered.diff() > 1e-3 * torch.maximum(ordered[1:].abs(), ordered[:-1].abs())
    visible = encoded[1:].abs() > 1e-30
    assert (encoded.diff()[far & visible] > 0).all()


@given(codecs, photons)
def test_both_ways_are_odd(codec, values):
    encoded = codec.encode_photons(values)
    assert torch.equal(codec.encode_photons(-values), -encoded)
    assert torch.equal(codec.decode_photons(-encoded), -codec.decode_photons(encoded))
