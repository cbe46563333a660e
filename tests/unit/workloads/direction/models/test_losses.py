"""Losses: exact angles, a true density, and a finite slope wherever a network may get to."""

import numpy as np
import pytest
import torch
from scipy.stats import vonmises_fisher as reference

from crpipe.workloads.direction.models.model import opening_angle, von_mises_fisher

LOSSES = [opening_angle, von_mises_fisher]
KAPPAS = [1e-6, 1e-3, 9e-3, 1.1e-2, 0.3, 1.0, 7.0, 60.0, 1e3, 1e5]


def random_units(count, seed):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True)


def turned(vectors, angle):
    """Turn unit vectors by an angle in rad, each about some axis across it; in float64."""
    vectors = vectors.double()
    aside = torch.linalg.cross(vectors, random_units(len(vectors), 99).double())
    aside = aside / aside.norm(dim=1, keepdim=True)
    return (vectors * np.cos(angle) + aside * np.sin(angle)).float()


def test_the_angle_is_exact_at_its_ends_for_vectors_of_any_length():
    truth = random_units(1000, 1)
    for size in (1e-3, 1.0, 1e4):
        assert opening_angle(size * truth, truth).abs().max() <= 1e-6
        assert (opening_angle(-size * truth, truth) - np.pi).abs().max() <= 1e-6


def test_a_tenth_of_a_degree_is_a_tenth_of_a_degree():
    truth = random_units(1000, 2)
    found = torch.rad2deg(opening_angle(30 * turned(truth, np.radians(0.1)), truth))
    assert (found - 0.1).abs().max() <= 1e-3


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("angle", [0.0, 1e-7, 1e-3, 1.0, np.pi - 1e-4, np.pi])
def test_values_and_slopes_are_finite_for_vectors_of_any_length(loss, angle):
    truth = random_units(50, 5)
    unit = truth if angle == 0 else -truth if angle == np.pi else turned(truth, angle)
    for size in (0.0, *10.0 ** np.arange(-12, 7)):
        vectors = (size * unit).requires_grad_()
        value = loss(vectors, truth)
        assert torch.isfinite(value).all()
        (slope,) = torch.autograd.grad(value.mean(), vectors)
        assert torch.isfinite(slope).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_are_those_of_the_function(loss):
    vectors = (3 * random_units(20, 6)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, random_units(20, 7).double()), (vectors,))


@pytest.mark.parametrize("kappa", KAPPAS)
def test_the_density_is_that_of_scipy(kappa):
    truth = random_units(200, 8)
    near = [turned(truth, angle) for angle in (0.0, 0.3 / max(1, np.sqrt(kappa)), 1.0, 3.0)]
    for mean in (*near, random_units(200, 9)):
        found = von_mises_fisher(kappa * mean, truth)
        pairs = zip(mean.double().numpy(), truth.double().numpy(), strict=True)
        unit = [[side / np.linalg.norm(side) for side in pair] for pair in pairs]
        wanted = [-reference.logpdf(t, m, kappa) for m, t in unit]
        np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=3e-6)
