import pytest
import torch

from crpipe.workloads.muons.models.layers import largest_of, mean_of, spread_out
from crpipe.workloads.muons.models.networks import Critic, Generator

EVENT = torch.tensor([0, 0, 0, 1, 2, 2])
KEPT = torch.tensor([3.0, 1.0, 2.0])


def test_pooling_is_that_of_each_event_alone():
    values = torch.randn(6, 5)
    alone = [values[number == EVENT] for number in range(3)]
    torch.testing.assert_close(mean_of(values, EVENT, KEPT), torch.stack([one.mean(0) for one in alone]))
    torch.testing.assert_close(largest_of(values, EVENT, KEPT), torch.stack([one.amax(0) for one in alone]))


def test_pooling_gradients_are_numerical_ones_twice():
    values = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)

    def pooled(x):
        return largest_of(x, EVENT, KEPT) ** 2

    assert torch.autograd.gradcheck(pooled, (values,))
    assert torch.autograd.gradgradcheck(pooled, (values,))


def test_spreading_out_and_adding_up_are_each_others_gradients():
    values, bundle = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    weights = torch.randn(6, 4), torch.randn(3, 4)
    spread = spread_out(values, EVENT)
    assert torch.equal(spread, values[EVENT])
    (found,) = torch.autograd.grad((spread * weights[0]).sum(), values)
    torch.testing.assert_close(
        found, torch.stack([weights[0][number == EVENT].sum(0) for number in range(3)])
    )
    (found,) = torch.autograd.grad((mean_of(bundle, EVENT, KEPT) * weights[1]).sum(), bundle)
    torch.testing.assert_close(found, (weights[1] / KEPT[:, None])[EVENT])


def test_a_mean_can_be_differentiated_twice():
    bundle = torch.randn(6, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(mean_of(bundle, EVENT, KEPT).pow(3).sum(), bundle, create_graph=True)
    (found,) = torch.autograd.grad(slope.sum(), bundle)
    means = mean_of(bundle, EVENT, KEPT).detach()
    torch.testing.assert_close(found, (6 * means / KEPT[:, None])[EVENT])


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


def test_critic_ignores_the_order_of_an_events_muons():
    critic, muons, context = Critic(5, 2, 8), torch.randn(6, 2), torch.randn(3, 5)
    order = torch.tensor([2, 0, 1, 3, 5, 4])
    there = critic(muons, context, EVENT, KEPT)
    back = critic(muons[order], context, EVENT, KEPT)
    torch.testing.assert_close(there, back)


def test_a_muon_depends_on_its_own_event_and_noise_alone():
    network, context = Generator(5, 2, 8), torch.randn(3, 5)
    event_noise, noise = torch.randn(3, network.event_latent), torch.randn(6, network.muon_latent)
    whole = network(context, EVENT, event_noise, noise)
    for number in range(3):
        chosen = number == EVENT
        alone = network(context[[number]], EVENT[chosen] * 0, event_noise[[number]], noise[chosen])
        torch.testing.assert_close(whole[chosen], alone)


@pytest.mark.parametrize("network", [Critic(5, 2, 8), Generator(5, 2, 8)])
def test_networks_take_batches_without_muons(network):
    empty = torch.zeros(0, dtype=torch.int64)
    if isinstance(network, Critic):
        assert network(torch.zeros(0, 2), torch.zeros(0, 5), empty, torch.zeros(0)).shape == (0,)
    else:
        made = network(torch.zeros(0, 5), empty, torch.zeros(0, 8), torch.zeros(0, 4))
        assert made.shape == (0, 2)
