import numpy as np
import pytest
import torch

from crpipe.workloads.muons import MuonFlow, MuonFlowOptions


def build(**options):
    torch.manual_seed(0)
    workload = MuonFlow(MuonFlowOptions(hidden=8, max_muons=6, sampling_steps=3, **options))
    return workload, workload.model()


@pytest.mark.parametrize("features", ["radial", "cartesian"])
def test_losses_are_finite_repeatable_and_add_up(bundles, features, monkeypatch):
    for name in ("randn", "rand"):
        monkeypatch.setattr(
            torch, name, lambda *shape, **_: torch.full(shape[0] if len(shape) == 1 else shape, 0.3)
        )
    workload, model = build(features=features)
    events = bundles([0, 0, 3, 1, 0, 6, 2, 0, 5])
    whole, one, two = (
        workload.collate(events, index, (1,)) for index in (np.arange(9), np.arange(4), np.arange(4, 9))
    )
    for phase in workload.phases():
        every, first, second = (phase.loss(model, batch, torch.Generator())[0] for batch in (whole, one, two))
        assert torch.isfinite(every)
        torch.testing.assert_close(every, (4 * first + 5 * second) / 9)


def test_a_batch_without_muons_moves_the_multiplicity_alone(bundles):
    workload, model = build()
    batch = workload.collate(bundles([0, 0]), np.arange(2), (1,))
    for phase in workload.phases():
        loss, _ = phase.loss(model, batch, torch.Generator())
        gradients = torch.autograd.grad(loss, list(phase.params(model)), allow_unused=True)
        moved = any(g is not None and g.abs().sum() > 0 for g in gradients)
        assert moved == (phase.name == "multiplicity")


def test_prediction_takes_given_multiplicities_and_repeats(bundles):
    workload, model = build()
    wanted = np.array([0, 2000, 1])
    one, same = (
        workload.generate(model, bundles([0, 0, 0]), wanted, torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert one.multiplicity.tolist() == wanted.tolist()
    assert np.isfinite(one.items).all()
    np.testing.assert_array_equal(one.items, same.items)


@pytest.mark.slow
def test_training_learns_a_simple_distribution(bundles):
    """Muons of the fixture are log-normal in energy and radius: a short training finds mean and width."""
    workload, model = build()
    events = bundles(np.full(400, 4))
    phase = workload.phases()[1]
    optimizer = torch.optim.Adam(phase.params(model), 5e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(300):
        loss, _ = phase.loss(model, workload.collate(events, np.arange(400), (step,)), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    made = workload.generate(model, events, np.full(400, 4), generator)
    logs = np.log10(made.items[:, 0])
    assert logs.mean() == pytest.approx(2.2, abs=0.15)
    assert logs.std() == pytest.approx(0.7, abs=0.15)
