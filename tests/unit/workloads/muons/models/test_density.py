"""The law of muons given their event: densities against scipy, and muons drawn from them."""

import numpy as np
import pytest
import torch
from scipy import stats

from crpipe.workloads.muons import MuonVae, MuonVaeOptions, features
from crpipe.workloads.muons.batches import collate
from crpipe.workloads.muons.models.density import Burr

# log weight, place, log scale, log shape of three components; the last one is nearly a Weibull
COMPONENTS = np.array(
    [[-0.5, -1.2, -2.0], [-1.0, 0.3, 2.0], [-1.0, -0.5, -2.0], [0.0, -1.0, 5.0]], np.float32
)


def burr(muons, components=COMPONENTS):
    log_weight, *others = torch.from_numpy(components)[:, None].expand(-1, muons, -1)
    return Burr(torch.log_softmax(log_weight, dim=1), *others)


def shares(x):
    """The share of the mixture below each x, by scipy's law of exp(x)."""
    log_weight, place, log_scale, log_shape = COMPONENTS.astype(float)
    weight, scale, shape = np.exp(log_weight), np.exp(log_scale), np.exp(log_shape)
    each = stats.burr12.cdf(np.exp(x[:, None] - place), 1 / scale, shape, scale=shape**scale)
    return (each * weight / weight.sum()).sum(axis=1)


def test_the_density_is_the_slope_of_the_share_below():
    x = np.linspace(-10, 30, 200_001)
    density = np.exp(burr(len(x)).log_density(torch.from_numpy(x).float()).numpy())
    np.testing.assert_allclose(np.diff(shares(x)), (density[1:] + density[:-1]) / 2 * np.diff(x), atol=1e-6)
    assert np.trapezoid(density, x) == pytest.approx(1.0, abs=1e-3)


def test_uniform_numbers_become_muons_of_that_density():
    generator = torch.Generator().manual_seed(3)
    chosen, within = torch.rand(2, 50_000, generator=generator)
    drawn = burr(50_000).quantile(chosen, within).numpy().astype(float)
    assert stats.kstest(drawn, shares).pvalue > 0.01


@pytest.mark.parametrize("log_shape", [-3.0, 0.0, 6.0])
def test_far_out_a_variate_is_still_the_inverse_of_its_share(log_shape):
    above = np.array([1 - 2.0**-24, 0.99999, 0.9, 0.5, 1e-3, 2.0**-24], np.float32)
    one = burr(6, np.array([[0.0], [0.0], [0.0], [log_shape]], np.float32))
    x = one.quantile(torch.zeros(6), torch.from_numpy(above)).numpy().astype(float)
    shape = np.exp(log_shape)
    np.testing.assert_allclose(
        stats.burr12.logsf(np.exp(x), 1, shape, scale=shape), np.log(above.astype(float)), rtol=2e-4
    )
    assert torch.isfinite(one.quantile(torch.ones(6), torch.zeros(6))).all()


def test_the_share_below_is_scipys():
    x = np.linspace(-6, 8, 201)
    found = burr(len(x)).log_share_below(torch.from_numpy(x).float()).exp()
    np.testing.assert_allclose(found, shares(x), atol=1e-6)


@pytest.mark.parametrize("leading", [0, 8])
def test_windows_of_large_events_favour_no_other_law(bundles, monkeypatch, leading):
    """The likelihood's slope has the mean 0 where the muons come from the law itself, tails included."""
    generator, size = torch.Generator().manual_seed(5), 300
    drawn = burr(400 * size).quantile(*torch.rand(2, 400 * size, generator=generator)).numpy()
    monkeypatch.setattr(features, "encode", lambda items, _: items[:, :2])
    events = bundles(np.full(400, size))
    events.items[:, 0] = drawn
    batch = collate(events, np.arange(400), most=64, kind="polar", seed=(1,), leading=leading)
    values = torch.from_numpy(COMPONENTS)[:, None].repeat(1, 400, 1).requires_grad_()
    there = batch["event"] < 400  # not padding
    log_weight, *others = values[:, batch["event"][there]]
    law, x = Burr(torch.log_softmax(log_weight, dim=1), *others), batch["muons"][there, 0]
    (law.log_density(x) + batch["below"][there] * law.log_share_below(x)).sum().backward()
    slopes = values.grad.numpy()
    assert (np.abs(slopes.mean(axis=1)) < 4 * slopes.std(axis=1) / np.sqrt(400)).all()


def learned(events, steps, **options):
    torch.manual_seed(0)
    workload = MuonVae(MuonVaeOptions(hidden=16, components=3, **options))
    model, phase = workload.model(), workload.phases()[1]
    optimizer = torch.optim.Adam(phase.params(model), 5e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        batch = workload.collate(events, np.arange(len(events)), (step,))
        loss, metrics = phase.loss(model, batch, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return workload.generate(model, events, events.multiplicity.astype(int), generator), metrics


@pytest.mark.slow
def test_the_latent_holds_what_the_muons_of_an_event_share(bundles):
    """Each event's radii have a scale of their own, of which the conditions know nothing."""
    events = bundles(np.full(400, 12))
    events.items[:, 1:] *= np.repeat(10 ** np.random.default_rng(2).normal(0, 0.5, (400, 1)), 12, axis=0)
    made, metrics = learned(events, 400)

    def spread(events):
        log_radius = np.log10(np.hypot(*events.items[:, 1:].T) + 0.01).reshape(400, 12)
        return log_radius.mean(axis=1).std(), log_radius.std(axis=1).mean()

    energies = np.log10(made.items[:, 0])  # log-normal in the fixture
    assert energies.mean() == pytest.approx(2.2, abs=0.15)
    assert energies.std() == pytest.approx(0.7, abs=0.15)
    assert float(metrics["divergence"]) > 0.5
    assert spread(made) == pytest.approx(spread(events), rel=0.15)
