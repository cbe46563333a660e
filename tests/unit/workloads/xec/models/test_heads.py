"""Heads and their losses: those that are asked for, in fixed order, in the units of the task."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.stats import norm
from torch.nn import functional

from crpipe.workloads.xec.layout import TRUTH, TRUTHS
from crpipe.workloads.xec.models.features import sensors_of
from crpipe.workloads.xec.models.heads import (
    UNITS,
    cosine_loss,
    difference,
    gaussian_nll,
    sigma_of,
    smooth_l1,
    task_loss,
    wrapped,
)
from crpipe.workloads.xec.options import RegressorOptions, TaskOptions
from xenon_models import ALL_TASKS, build, loss, workload
from xenon_toy import make_gammas

GAMMAS = make_gammas(4)
ITEMS = torch.from_numpy(sensors_of(GAMMAS))


def flat(model):
    """Let the network say nothing: predictions are those of the regression."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.startswith("heads"):
                weight.zero_()
    return model


@pytest.mark.parametrize(
    ("tasks", "balance"), [(("energy",), "learned"), (("angle", "time"), "fixed"), (TRUTHS, "learned")]
)
def test_only_heads_of_the_tasks_exist_and_every_weight_has_a_slope(tasks, balance):
    made, model = build(tasks={name: {} for name in tasks}, balance=balance)
    assert set(model.heads) == set(tasks)
    loss(made, model, GAMMAS)[0].backward()
    (phase,) = made.phases()
    trained = {id(weight) for weight in phase.params(model)}
    for name, weight in model.named_parameters():
        assert id(weight) in trained
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_the_order_in_which_tasks_are_named_does_not_matter():
    """The names of an export's outputs and the states of the optimizer go by position."""
    models = [workload(tasks={name: {} for name in names}).model() for names in (TRUTHS, TRUTHS[::-1])]
    assert list(models[0].heads) == list(models[1].heads) == list(TRUTHS)
    assert [name for name, _ in models[0].named_parameters()] == [
        name for name, _ in models[1].named_parameters()
    ]


def test_only_a_likelihood_has_uncertainties():
    tasks = {"energy": {"loss": "gaussian_nll"}, "position": {}, "time": {"loss": "gaussian_nll"}}
    _, model = build(tasks=tasks)
    with torch.no_grad():
        found = model(ITEMS)
    assert {name: sigma is not None for name, (_, sigma) in found.items()} == {
        "energy": True,
        "position": False,
        "time": True,
    }
    for name, (value, sigma) in found.items():
        assert value.shape == (4, len(TRUTH[name]))
        assert sigma is None or sigma.shape == value.shape


def test_training_begins_at_simple_estimates_without_a_fit():
    _, model = build(tasks=ALL_TASKS, photons_at_50_mev=1e5)
    with torch.no_grad():
        found = {name: value.numpy() for name, (value, _) in flat(model)(ITEMS).items()}
        sums = model.encoder(ITEMS).sums
    np.testing.assert_allclose(found["energy"][:, 0], 0.05 * sums.light / 1e5, rtol=1e-6)
    simple = {f"{name}_cm": getattr(sums, f"{name}_cm").numpy() for name in "uvw"}
    for at, values in enumerate(simple.values()):
        np.testing.assert_allclose(found["position"][:, at], values)
    np.testing.assert_allclose(found["time"][:, 0], sums.start_ns)
    # A gamma from the origin: theta is that of (R, u), phi that of the place around the axis.
    np.testing.assert_allclose(np.tan(np.pi / 2 - found["angle"][:, 0]), simple["u_cm"] / 64.84, atol=1e-4)
    x, y = -np.cos(simple["v_cm"] / 64.84), np.sin(simple["v_cm"] / 64.84)
    np.testing.assert_allclose(np.cos(found["angle"][:, 1] - np.arctan2(y, x)), 1, atol=1e-6)


def pair(name, found, truth):
    return difference(name, torch.tensor([found]), torch.tensor([truth]), log=False)[0]


def test_differences_are_in_the_units_of_the_columns():
    np.testing.assert_allclose(pair("energy", [0.06], [0.05]), [0.01], rtol=1e-5)
    np.testing.assert_allclose(pair("position", [12.0, -68.0, 3.0], [0.0, 0.0, 8.0]), [12, -68, -5])
    np.testing.assert_allclose(pair("time", [1.0], [2.0]), [-1.0])
    assert {name: len(UNITS[name]) for name in TRUTHS} == {name: len(TRUTH[name]) for name in TRUTHS}


@pytest.mark.parametrize("turns", [-1, 0, 1])
def test_phi_is_compared_around_the_circle(turns):
    """Truth may be given between 0 and two pi as well as between -pi and pi."""
    found = pair("angle", [1.0, math.pi - 0.01], [1.5, -math.pi + 0.01 + turns * math.tau])
    np.testing.assert_allclose(found, [-0.5, -0.02], atol=1e-5)
    found = pair("angle", [1.0, -0.2], [1.0, math.tau - 0.3 - turns * math.tau])
    np.testing.assert_allclose(found, [0, 0.1], atol=1e-5)


def test_theta_is_not_periodic():
    np.testing.assert_allclose(pair("angle", [math.pi, 0.0], [-math.pi, 0.0]), [math.tau, 0], rtol=1e-6)


def test_predicted_phi_is_between_minus_pi_and_pi():
    angle = torch.linspace(-20, 20, 1001)
    found = wrapped(angle)
    assert found.min() >= -math.pi
    assert found.max() <= math.pi
    np.testing.assert_allclose(torch.cos(found), torch.cos(angle), atol=1e-5)
    np.testing.assert_allclose(torch.sin(found), torch.sin(angle), atol=1e-5)


def test_the_logarithm_of_an_energy_is_compared():
    found, truth = torch.tensor([[0.055], [0.03], [-1.0]]), torch.tensor([[0.05], [0.03], [0.05]])
    off = difference("energy", found, truth, log=True)
    np.testing.assert_allclose(off[:2, 0], [math.log(1.1), 0], atol=1e-6)
    assert torch.isfinite(off).all()


def test_uncertainties_come_in_the_units_of_the_columns():
    value, log_sigma = torch.tensor([[0.04]]), torch.tensor([[math.log(0.1)]])
    tasks = {"energy": {"loss": "gaussian_nll"}, "position": {"loss": "gaussian_nll"}}
    _, plain = build(tasks=tasks)
    _, log = build(tasks={"energy": {"loss": "gaussian_nll", "log": True}})
    assert sigma_of(plain, "energy", value, log_sigma).item() == pytest.approx(0.005)
    assert sigma_of(log, "energy", value, log_sigma).item() == pytest.approx(0.004)
    found = sigma_of(plain, "position", torch.zeros(1, 3), torch.zeros(1, 3))
    assert found.tolist() == [[24, 68, 10]]


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


def test_a_cosine_is_that_of_the_angle_between_directions_over_the_square_of_the_unit():
    angles = torch.tensor([[1.2, 3.1], [1.2, 3.1], [0.5, 1.0], [1.2, 3.1]])
    others = torch.tensor([[1.3, 3.1], [1.2, 3.1 - 2 * math.pi], [0.5 + math.pi, 1.0], [1.2 + 1e-4, 3.1]])
    expected = [1 - math.cos(0.1), 0.0, 2.0, 0.5e-8]
    assert cosine_loss(others, angles).tolist() == pytest.approx(expected, rel=2e-2, abs=1e-10)
    made, model = build(tasks={"angle": {"loss": "cosine"}})
    model.unit_angle.copy_(torch.tensor([0.1, 0.3]))
    losses = made.losses(model, {"angle": (others, None)}, {"angle": angles})
    assert losses["angle"][0].item() == pytest.approx((1 - math.cos(0.1)) / 0.05, rel=1e-3)
    with pytest.raises(ValidationError, match="cosine is for angle"):
        RegressorOptions(tasks={"energy": {"loss": "cosine"}})
