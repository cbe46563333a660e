"""The networks are their layers written out; the multiplicity's likelihood is scipy's."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import nbinom

from crpipe.workloads.muons.models import layers
from crpipe.workloads.muons.models.critic_gradient import critic_gradient
from crpipe.workloads.muons.models.layers import largest_of, mean_of
from crpipe.workloads.muons.models.networks import (
    Critic,
    Generator,
    Mixture,
    Multiplicity,
    log_likelihood,
    multiplicity_phase,
    sample,
)

EVENT = torch.tensor([0, 0, 0, 1, 2, 2])
KEPT = torch.tensor([3.0, 1.0, 2.0])


@pytest.mark.parametrize("enabled", [False, True])
def test_critic_is_its_layers_written_out(enabled):
    """Its products go onto gathered sums, in place: the plain formula, also where autocast copies them."""
    critic, muons, context = Critic(5, 2, 8), torch.randn(6, 2), torch.randn(3, 5)
    rectify = torch.nn.LeakyReLU(0.2)

    def seen(x):
        return torch.cat([mean_of(x, EVENT, KEPT), largest_of(x, EVENT, KEPT)], dim=1)

    x = rectify(critic.point(muons) + critic.point_context(context)[EVENT])
    x = rectify(critic.point_mix(x) + x)
    first = rectify(critic.summary(torch.cat([seen(x), context], dim=1)))
    collected = rectify(critic.exchange.collect(torch.cat([seen(x), first, context], dim=1)))
    summary = rectify(critic.exchange.condense(collected) + first)
    heard = rectify(critic.exchange.local(x) + critic.exchange.spread(summary)[EVENT])
    x = rectify(critic.exchange.local_mix(heard) + x)
    plain = critic.decide(torch.cat([seen(x), summary, context], dim=1))[:, 0]
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        scores = critic(muons, context, EVENT, KEPT)
    torch.testing.assert_close(scores, plain, **({"atol": 0.03, "rtol": 0.03} if enabled else {}))


def test_generator_is_its_layers_written_out():
    network, context = Generator(5, 2, 8), torch.randn(3, 5)
    event_noise, noise = torch.randn(3, network.event_latent), torch.randn(6, network.muon_latent)
    told = network.event_net(torch.cat([context, event_noise], dim=1))
    x = network.lift(noise)
    for depth, layer in enumerate(network.modulation):
        scale, shift = layer(told)[EVENT].chunk(2, dim=1)
        x = torch.nn.functional.leaky_relu((1 + scale) * x + shift, 0.2)
        if depth < len(network.mix):
            x = network.mix[depth](x) + x
    centre, spread = network.skip(told)[EVENT].chunk(2, dim=1)
    plain = network.out(x) + centre + 0.5 * torch.nn.functional.softplus(spread) * noise[:, :2]
    torch.testing.assert_close(network(context, EVENT, event_noise, noise), plain)


MANY = torch.arange(40).repeat_interleave(torch.arange(40) % 7 + 1)
MANY_KEPT = torch.bincount(MANY).float()


@pytest.fixture
def given():
    torch.manual_seed(1)
    muons, context = torch.randn(len(MANY), 3), torch.randn(40, 5)
    muons[20:22] = muons[22]  # ties
    return Critic(5, 3, 16), muons.requires_grad_(), context


@pytest.mark.parametrize("worth_it", [0.0, 1e9])
def test_the_gradient_and_its_derivatives_are_those_of_automatic_differentiation(
    given, worth_it, monkeypatch
):
    critic, muons, context = given
    monkeypatch.setattr(layers, "_WORTH_IT", worth_it)
    mine = critic_gradient(critic, muons, context, MANY, MANY_KEPT)
    monkeypatch.setattr(layers, "is_fused", lambda _: False)
    scores = critic(muons, context, MANY, MANY_KEPT)
    (known,) = torch.autograd.grad(scores.sum(), muons, create_graph=True)
    torch.testing.assert_close(mine, known, rtol=1e-4, atol=1e-6)
    weights = [weight for name, weight in critic.named_parameters() if name.endswith("weight")]
    factors = torch.randn(known.shape)
    pairs = zip(
        torch.autograd.grad((mine * factors).square().sum(), weights, allow_unused=True),
        torch.autograd.grad((known * factors).square().sum(), weights, allow_unused=True),
        strict=True,
    )
    for found, wanted in pairs:
        if wanted is None or found is None:  # the score does not depend on it, or in steps alone
            assert not any(gradient is not None and gradient.any() for gradient in (found, wanted))
        else:
            torch.testing.assert_close(found, wanted)


def test_it_is_float32_in_bfloat16_too(given):
    critic, muons, context = given
    with torch.autocast("cpu", torch.bfloat16):
        rough = critic_gradient(critic, muons, context, MANY, MANY_KEPT)
    assert torch.equal(rough, critic_gradient(critic, muons, context, MANY, MANY_KEPT))


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
