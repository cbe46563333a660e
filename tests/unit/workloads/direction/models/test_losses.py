"""Losses: exact angles, a true density, and a finite slope wherever a network may get to."""

import numpy as np
import pytest
import torch
from scipy.stats import vonmises_fisher as reference

from crpipe.workloads.direction.models.model import length, opening_angle, von_mises_fisher

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


def at_cosine(kappa, cosine):
    """Return a mean vector of length kappa and a truth with this cosine between them, in float64."""
    sine = np.sqrt(1 - cosine**2)
    return torch.tensor([[0.0, 0.0, kappa]]).double(), torch.tensor([[sine, 0.0, cosine]]).double()


def test_the_angle_is_exact_at_its_ends_for_vectors_of_any_length():
    truth = random_units(1000, 1)
    for size in (1e-3, 1.0, 1e4):
        assert opening_angle(size * truth, truth).abs().max() <= 1e-6
        assert (opening_angle(-size * truth, truth) - np.pi).abs().max() <= 1e-6


def test_a_tenth_of_a_degree_is_a_tenth_of_a_degree():
    truth = random_units(1000, 2)
    found = torch.rad2deg(opening_angle(30 * turned(truth, np.radians(0.1)), truth))
    assert (found - 0.1).abs().max() <= 1e-3


def test_random_directions_are_90_degrees_apart():
    found = opening_angle(random_units(100_000, 3), random_units(100_000, 4))
    assert torch.rad2deg(found).mean() == pytest.approx(90.0, abs=0.5)


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


@pytest.mark.parametrize("kappa", KAPPAS)
def test_the_density_of_all_directions_is_one(kappa):
    nodes, weights = np.polynomial.legendre.leggauss(200)
    most = min(2 * kappa, 60.0)  # in kappa (1 - cos); beyond, the density is below e^-60 of its maximum
    drop = most * (nodes + 1) / 2
    density = [torch.exp(-von_mises_fisher(*at_cosine(kappa, 1 - x / kappa))).item() for x in drop]
    assert np.sum(weights * most / 2 * np.array(density)) * 2 * np.pi / kappa == pytest.approx(1, abs=2e-6)


@pytest.mark.parametrize("kappa", [0.3, 1.0, 7.0, 60.0, 1e3, 1e5])
def test_the_best_kappa_is_the_one_whose_mean_cosine_was_found(kappa):
    cosine = 1 / np.tanh(kappa) - 1 / kappa
    best = von_mises_fisher(*at_cosine(kappa, cosine)).item()
    for factor in (0.5, 0.98, 1.02, 2.0):
        assert von_mises_fisher(*at_cosine(factor * kappa, cosine)).item() > best
    vector, truth = at_cosine(kappa, cosine)
    (slope,) = torch.autograd.grad(von_mises_fisher(vector.requires_grad_(), truth).sum(), vector)
    assert kappa * slope[0, 2].item() == pytest.approx(0, abs=1e-4)


def test_the_density_is_smooth_where_the_series_ends():
    both = [von_mises_fisher(*at_cosine(kappa, 0.4)).item() for kappa in (0.01 - 1e-9, 0.01 + 1e-9)]
    assert both[0] == pytest.approx(both[1], abs=1e-7)


def test_the_length_is_that_of_the_vector():
    vectors = torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 0.0]])
    assert length(vectors)[:, 0].tolist() == pytest.approx([13, 0], abs=1e-5)
