"""Losses: those of the textbooks, with the weights that the options promise."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.nn import functional

from crpipe.workloads.xec.models.heads import gaussian_nll, smooth_l1, task_loss
from crpipe.workloads.xec.options import TaskOptions


def residuals(count=200, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return 10 ** (4 * torch.rand(count, 2, generator=draw).double() - 3) * torch.randn(
        count, 2, generator=draw
    )


@pytest.mark.parametrize("beta", [1e-3, 0.1, 1.0, 30.0])
def test_smooth_l1_is_that_of_torch(beta):
    x = residuals()
    wanted = functional.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=beta)
    torch.testing.assert_close(smooth_l1(x, beta), wanted)


def test_without_a_bend_smooth_l1_is_the_distance_with_slope_one():
    x = residuals().requires_grad_()
    value = smooth_l1(x, 0.0)
    assert torch.equal(value, x.abs())
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(slope, x.sign())


def test_the_negative_log_likelihood_is_that_of_scipy():
    x, log_sigma = residuals(), residuals(seed=1).clamp(-6, 4)
    wanted = -norm.logpdf(x.numpy(), scale=np.exp(log_sigma.numpy()))
    np.testing.assert_allclose(gaussian_nll(x, log_sigma, 0.0), wanted, rtol=1e-10)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_weighs_slopes_by_the_variance_to_its_power(beta):
    x, log_sigma = residuals(), (residuals(seed=1) / 10).clamp(-2, 2)
    wanted = []
    for power in (0.0, beta):
        inputs = [each.clone().requires_grad_() for each in (x, log_sigma)]
        wanted.append(torch.autograd.grad(gaussian_nll(*inputs, power).sum(), inputs))
    weight = torch.exp(log_sigma) ** (2 * beta)
    for plain, weighed in zip(*wanted, strict=True):
        torch.testing.assert_close(weighed, plain * weight)


def test_the_best_sigma_is_the_rms_of_the_residuals():
    x = 0.3 * torch.randn(10_000, 1, generator=torch.Generator().manual_seed(3)).double()
    rms = x.square().mean().sqrt().log()
    best = gaussian_nll(x, rms.expand_as(x), 0.0).mean()
    assert all(best < gaussian_nll(x, (rms + step).expand_as(x), 0.0).mean() for step in (-0.02, 0.02))


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("mse", lambda x: x**2),
        ("l1", np.abs),
        ("smooth_l1", lambda x: np.where(np.abs(x) < 0.5, x**2, np.abs(x) - 0.25)),
    ],
)
def test_the_loss_of_an_event_is_the_mean_over_its_components(choice, wanted):
    x = residuals()
    task = TaskOptions(loss=choice, beta=0.5)
    np.testing.assert_allclose(task_loss(x, None, task), wanted(x.numpy()).mean(axis=1), rtol=1e-10)


def test_the_power_of_the_variance_is_beta_of_the_task():
    x, log_sigma = residuals(), residuals(seed=1).clamp(-3, 3)
    task = TaskOptions(loss="gaussian_nll", beta=0.5)
    wanted = (gaussian_nll(x, log_sigma, 0.0) * log_sigma.exp()).mean(dim=1)
    torch.testing.assert_close(task_loss(x, log_sigma, task), wanted)
