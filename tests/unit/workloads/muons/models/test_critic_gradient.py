import pytest
import torch

from crpipe.workloads.muons.models import layers
from crpipe.workloads.muons.models.critic_gradient import critic_gradient
from crpipe.workloads.muons.models.networks import Critic

EVENT = torch.arange(40).repeat_interleave(torch.arange(40) % 7 + 1)
KEPT = torch.bincount(EVENT).float()


@pytest.fixture
def given():
    torch.manual_seed(1)
    muons, context = torch.randn(len(EVENT), 3), torch.randn(40, 5)
    muons[20:22] = muons[22]  # ties
    return Critic(5, 3, 16), muons.requires_grad_(), context


@pytest.mark.parametrize("worth_it", [0.0, 1e9])
def test_the_gradient_and_its_derivatives_are_those_of_automatic_differentiation(
    given, worth_it, monkeypatch
):
    critic, muons, context = given
    monkeypatch.setattr(layers, "_WORTH_IT", worth_it)
    mine = critic_gradient(critic, muons, context, EVENT, KEPT)
    monkeypatch.setattr(layers, "is_fused", lambda _: False)
    monkeypatch.setattr("crpipe.workloads.muons.models.layers.is_fused", lambda _: False)
    scores = critic(muons, context, EVENT, KEPT)
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
        rough = critic_gradient(critic, muons, context, EVENT, KEPT)
    assert torch.equal(rough, critic_gradient(critic, muons, context, EVENT, KEPT))
