"""Photons and times become numbers about 1; tests/properties/test_codec.py tries the way back."""

import numpy as np
import pytest
import torch

from crpipe.workloads.xec.models.features import Codec
from crpipe.workloads.xec.options import CodecOptions

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
