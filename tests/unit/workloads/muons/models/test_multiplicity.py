import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import nbinom

from crpipe.workloads.muons.models.networks import (
    Mixture,
    Multiplicity,
    log_likelihood,
    multiplicity_phase,
    sample,
)

WEIGHT, MEAN, SHAPE, EMPTY = (
    np.array([0.5, 0.3, 0.2]),
    np.array([0.3, 8.0, 900.0]),
    np.array([0.8, 3.0, 40.0]),
    0.15,
)


def mixture(events: int) -> Mixture:
    def rows(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.log(values)).expand(events, 3)

    logit = torch.full((events,), float(np.log(EMPTY / (1 - EMPTY))), dtype=torch.float64)
    return Mixture(rows(WEIGHT), rows(MEAN), rows(SHAPE), logit)


def test_likelihood_is_scipys():
    counts = np.array([0, 1, 2, 7, 40, 900, 1500, 300_000])
    parts = [nbinom.logpmf(counts, k, k / (k + m)) for k, m in zip(SHAPE, MEAN, strict=True)]
    expected = np.log(1 - EMPTY) + logsumexp(np.log(WEIGHT)[:, None] + parts, axis=0)
    expected[0] = np.logaddexp(np.log(EMPTY), expected[0])
    found = log_likelihood(mixture(len(counts)), torch.from_numpy(counts))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_likelihood_sums_to_one():
    counts = torch.arange(5000)
    assert float(log_likelihood(mixture(5000), counts).exp().sum()) == pytest.approx(1.0, abs=1e-6)


def test_samples_follow_the_likelihood():
    drawn = sample(mixture(100_000), np.random.default_rng(3))
    for low, high in [(0, 1), (1, 2), (2, 20), (20, 700), (700, 5000)]:
        expected = float(log_likelihood(mixture(high - low), torch.arange(low, high)).exp().sum())
        assert np.mean((drawn >= low) & (drawn < high)) == pytest.approx(expected, abs=0.006)


def test_extreme_networks_give_finite_likelihoods_and_samples():
    network = Multiplicity(4)
    with torch.no_grad():
        network.head.weight.mul_(1e4)
    conditions = torch.randn(200, 4)
    counts = torch.randint(0, 1_000_000, (200,))
    assert torch.isfinite(log_likelihood(network(conditions), counts)).all()
    with torch.no_grad():
        drawn = sample(network(conditions), np.random.default_rng(1))
    assert drawn.min() >= 0


@pytest.mark.parametrize(("log_mean", "muons", "beyond"), [(2.0, 1_000_000, False), (16.0, 3, True)])
def test_what_is_judged_tells_a_surprising_event_from_a_model_that_went_astray(log_mean, muons, beyond):
    """A narrow distribution around exp(log_mean) is held against an event of so many muons."""
    stop_loss = 1000.0
    network = Multiplicity(4)
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(torch.tensor([0.0] * 3 + [log_mean] * 3 + [8.0] * 3 + [0.0]))
    trained = multiplicity_phase(1e-3)
    batch = {
        "conditions": torch.zeros(1, 4),
        "multiplicity": torch.tensor([muons]),
        "counts": torch.ones(1),
    }
    loss, metrics = trained.loss(torch.nn.ModuleDict({"multiplicity": network}), batch, torch.Generator())
    assert float(loss.detach()) > stop_loss
    assert (float(metrics[trained.watched_metric]) > stop_loss) == beyond
