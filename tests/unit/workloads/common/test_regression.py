"""A regression that is fitted once: robust, within what it saw, the same for the same events."""

import numpy as np
import pytest
import torch

from crpipe.workloads.common.regression import QuadraticRegression, StoppedRegression


def features(count=3000, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(5, 3, (count, 4))).float()


def quadratic(x):
    z = (x - 5) / 3
    return torch.stack([z[:, 0] - 0.5 * z[:, 1] * z[:, 2], 10 + z[:, 3] ** 2], dim=1)


def fitted(x, y, **options):
    regression = QuadraticRegression(x.shape[1], y.shape[1], **options)
    regression.fit(x, y)
    return regression


@pytest.mark.parametrize("joint", [False, True])
def test_a_polynomial_of_second_degree_is_learned_in_spite_of_outliers(joint):
    x = features()
    y = quadratic(x)
    wrong = torch.arange(len(x)) % 10 == 0
    y = torch.where(
        wrong[:, None], y + 40 * torch.rand(y.shape, generator=torch.Generator().manual_seed(1)), y
    )
    new = features(500, seed=2).clamp(-4, 14)  # within three standard deviations
    off = fitted(x, y, joint=joint)(new) - quadratic(new)
    assert off.abs().median() < 0.02
    assert (off.abs() < 0.1).float().mean() > 0.95


def test_nothing_is_predicted_beyond_what_was_seen():
    x = features()
    y = quadratic(x)
    predicted = fitted(x, y)(1e6 * (features(200, seed=3) - 5))
    assert (predicted <= y.max(dim=0).values).all()
    assert (predicted >= y.min(dim=0).values).all()


def test_without_a_relation_the_median_is_predicted():
    """The ridge is chosen by events held back: two hundred events teach no thousand coefficients."""
    rng = np.random.default_rng(4)
    x, y = (torch.from_numpy(rng.normal(size=(200, size))).float() for size in (40, 1))
    predicted = fitted(x, y)(torch.from_numpy(rng.normal(size=(500, 40))).float())
    assert predicted.std() < 0.3


@pytest.mark.parametrize("count", [0, 1, 24])
def test_few_events_teach_nothing(count):
    regression = fitted(features(count), quadratic(features(count)))
    assert (regression(features(9)) == 0).all()
    assert torch.equal(regression.standardised(features(9)), features(9).clamp(-4, 4))


def test_a_feature_that_never_changes_or_repeats_another_does_no_harm():
    x = features()
    x = torch.cat([x, x[:, :1], torch.full((len(x), 1), 3.0)], dim=1)
    predicted = fitted(x, quadratic(x))(x)
    assert (predicted - quadratic(x)).abs().median() < 0.02
    assert torch.isfinite(predicted).all()


def test_the_same_events_give_the_same_bits_and_all_of_it_is_in_the_state():
    x = features()
    one, other = (fitted(x, quadratic(x)) for _ in range(2))
    fresh = QuadraticRegression(4, 2)
    fresh.load_state_dict(one.state_dict())
    assert not list(one.parameters())
    for each in (other, fresh):
        assert torch.equal(each(x), one(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(one(x), fresh(x))
        assert one(x).dtype == torch.float32


def shares(count=2000, seed=1, sensors=300):
    """Light in many sensors, and their gains: what is measured differs from the truth by their products."""
    light = np.random.default_rng(seed).dirichlet(np.full(sensors, 0.2), count)
    gains = np.random.default_rng(9).normal(0, 0.04, sensors)
    noise = np.random.default_rng(seed + 100).normal(0, 0.002, count)
    return torch.from_numpy(light).float(), torch.from_numpy(3 + light @ gains + noise).float()[:, None]


def stopped(x, y):
    regression = StoppedRegression(x.shape[1], y.shape[1])
    regression.fit(x, y)
    return regression


def test_more_features_than_events_can_bear_are_learned_in_spite_of_outliers():
    x, y = shares()
    wrong = (torch.arange(len(y)) % 50 == 0)[:, None]
    regression = stopped(x, torch.where(wrong, y + 1, y))
    new, true = shares(500, seed=2)
    off = regression(new) - true
    assert off.abs().median() < 0.7 * (true - true.median()).abs().median()
    assert (regression(1e6 * new) - 3).abs().max() < 0.1


def test_each_column_has_its_own_number_of_steps_and_noise_teaches_nothing():
    x, y = shares()
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal((len(x), 1))).float()
    both = stopped(x, torch.cat([y, noise], dim=1))
    new, _ = shares(100, seed=2)
    assert (both(new)[:, 1] == 0).all()
    torch.testing.assert_close(both(new)[:, :1], stopped(x, y)(new), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 24])
def test_few_events_teach_the_linear_regression_nothing(count):
    x, y = shares(count)
    assert (stopped(x, y)(shares(9)[0]) == 0).all()


def test_the_linear_regression_needs_no_differences_and_is_the_same_each_time():
    x, y = shares(200)
    assert (stopped(x, torch.full_like(y, 2.0))(x) == 0).all()
    assert (stopped(torch.zeros_like(x), y)(x) == 0).all()
    assert torch.equal(stopped(x, y)(x), stopped(x, y)(x))


def test_few_features_of_any_scale_and_place_are_learned_exactly():
    """Conjugate gradients end after as many steps as there are features."""
    x = torch.from_numpy(np.random.default_rng(5).uniform(-1, 1, (400, 4))).float()
    x = 5 + x * torch.tensor([1.0, 2.0, 5.0, 20.0])
    y = x @ torch.tensor([[0.5], [-0.3], [0.1], [0.01]])
    inside = ((y - y.mean()).abs() < 0.5)[:, 0]  # far from what counts as a tail
    off = stopped(x[inside], y[inside])(x[inside]) - y[inside]
    assert off.std() < 1e-3  # of y: 0.3; the median of y is where the mean of x is
    assert off.abs().max() < 0.1
