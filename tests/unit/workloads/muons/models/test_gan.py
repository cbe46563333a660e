import copy

import numpy as np
import pytest
import torch

from crpipe.config.loading import validate
from crpipe.events.batch import Cursor
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.workloads.muons import MuonGan, MuonGanOptions
from crpipe.workloads.muons.models import layers

SETTINGS = [
    {},
    {"penalty_sides": "two", "features": "cartesian"},
    {"penalty": "gradient", "gp_sample_fraction": 0.5},
    {"penalty": "none", "optimizer": "sgd", "momentum": 0.5},
]


def build(**options):
    torch.manual_seed(0)
    workload = MuonGan(MuonGanOptions(hidden=8, max_muons=6, **options))
    return workload, workload.model()


def losses(workload, model, batch, seed=1):
    for phase in workload.phases():
        loss, metrics = phase.loss(model, batch, torch.Generator().manual_seed(seed))
        yield phase, loss, metrics


def gradient(phase, model, loss):
    params = list(phase.params(model))
    grads = torch.autograd.grad(loss, params, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if g is None else g.flatten()
            for p, g in zip(params, grads, strict=True)
        ]
    )


@pytest.mark.parametrize("options", SETTINGS)
def test_losses_are_finite_repeatable_and_reach_their_parameters(bundles, options):
    workload, model = build(**options)
    events = bundles([0, 1, 2, 40, 0, 5])
    batch = workload.collate(events, np.arange(6), (1,))
    for (phase, loss, metrics), (_, again, _) in zip(
        losses(workload, model, batch), losses(workload, model, batch), strict=True
    ):
        assert loss.ndim == 0
        assert torch.equal(loss, again)
        assert gradient(phase, model, loss).abs().sum() > 0
        assert all(value.ndim == 0 and not value.requires_grad for value in metrics.values())


@pytest.mark.parametrize("options", SETTINGS)
def test_events_without_muons_do_not_move_generator_and_critic(bundles, options):
    workload, model = build(**options)
    batch = workload.collate(bundles([0, 0, 0]), np.arange(3), (1,))
    for phase, loss, _ in losses(workload, model, batch):
        moved = gradient(phase, model, loss).abs().sum() > 0
        assert torch.isfinite(loss)
        assert moved == (phase.name == "multiplicity")


def test_micro_batches_weighted_by_events_add_up_to_the_whole(bundles, monkeypatch):
    """Noise is made a function of nothing, so that only the weights are tested."""
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: torch.full(shape[:2], 0.3))
    workload, model = build()
    events = bundles([0, 0, 3, 1, 0, 6, 2, 0, 5])
    whole, one, two = (
        workload.collate(events, index, (1,)) for index in (np.arange(9), np.arange(4), np.arange(4, 9))
    )
    parts = zip(*(losses(workload, model, batch) for batch in (whole, one, two)), strict=True)
    for (phase, all_loss, all_metrics), (_, first, some), (_, second, rest) in parts:
        torch.testing.assert_close(all_loss, (4 * first + 5 * second) / 9)
        for name, value in all_metrics.items():
            torch.testing.assert_close(
                value, (4 * some[name] + 5 * rest[name]) / 9, msg=f"{phase.name} {name}"
            )


def test_a_rarer_penalty_keeps_its_weight(bundles):
    events = bundles(np.full(40, 3))

    def penalties(every, seeds):
        workload, model = build(penalty="gradient", penalty_sides="two", gp_every=every)
        batch = workload.collate(events, np.arange(40), (1,))
        critic = workload.phases()[1]
        made = [critic.loss(model, batch, torch.Generator().manual_seed(seed)) for seed in range(seeds)]
        return np.array([float(metrics["penalty"]) for _, metrics in made])

    rare = penalties(3, 240)
    assert np.mean(rare > 0) == pytest.approx(1 / 3, abs=0.1)
    assert rare[rare > 0].mean() == pytest.approx(3 * penalties(1, 20).mean(), rel=0.02)


@pytest.mark.parametrize("options", [{"gp_sample_fraction": 0.25}, {"gp_max_pairs": 10}])
def test_a_penalty_on_a_sample_keeps_its_weight(bundles, options):
    events = bundles(np.full(40, 3))

    def mean_penalty(**chosen):
        workload, model = build(penalty="gradient", penalty_sides="two", **chosen)
        critic = workload.phases()[1]
        batches = [workload.collate(events, np.arange(40), (number,)) for number in range(40)]
        losses = [critic.loss(model, batch, torch.Generator().manual_seed(5)) for batch in batches]
        return np.mean([float(metrics["penalty"]) for _, metrics in losses])

    assert mean_penalty(**options) == pytest.approx(mean_penalty(), rel=0.1)


@pytest.mark.parametrize("options", SETTINGS)
def test_bfloat16_losses_are_close_to_float32_ones(bundles, options):
    workload, model = build(**options)
    batch = workload.collate(bundles(np.arange(60)), np.arange(60), (1,))
    exact = [loss for _, loss, _ in losses(workload, model, batch)]
    with torch.autocast("cpu", torch.bfloat16):
        rough = list(losses(workload, model, batch))
    for (phase, loss, _), known in zip(rough, exact, strict=True):
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, known, atol=0.01, rtol=0 if phase.name == "multiplicity" else 0.02)
        assert torch.isfinite(gradient(phase, model, loss)).all()
    assert rough[0][1] == exact[0]


def _stepper():
    """Prepare a training in bfloat16, with micro-batches of several events."""
    train = {"workload": "crpipe.workloads.muons:MuonGan", "precision": "bfloat16"}
    config = validate({"train": train, "load": {"budget_items": 90}})
    workload, model = build(penalty="gradient")
    cpu = torch.device("cpu")
    state = TrainState(model, workload.phases(), 1, cpu)
    return Stepper(config.train, config.load, workload, state, World(0, 1, cpu), Meter(cpu))


def _train(stepper, events, steps):
    for _ in range(steps):
        groups = [(events, Cursor(stepper.state.counters.step, number)) for number in range(5)]
        assert stepper.step(groups, (1,), 1.0) == 0
        stepper.state.counters.step += 1


@pytest.mark.parametrize("least", [layers.LEAST, 1])
def test_a_training_in_bfloat16_continues_bit_for_bit(bundles, monkeypatch, least):
    monkeypatch.setattr(layers, "LEAST", least)  # micro-batches as they are, or padded
    events = bundles(np.arange(60) % 9)
    whole, first, rest = (_stepper() for _ in range(3))
    _train(whole, events, 3)
    _train(first, events, 1)
    rest.state.restore(copy.deepcopy(first.state.state({})))
    _train(rest, events, 2)
    wanted = dict(whole.state.model.named_parameters())
    for name, value in rest.state.model.named_parameters():
        assert value.dtype == torch.float32
        assert torch.equal(value, wanted[name])


def test_size_is_what_collate_keeps(bundles):
    workload, _ = build()
    events = bundles([0, 3, 6, 7, 500])
    assert workload.size(events).tolist() == [0, 3, 6, 6, 6]
    assert len(workload.collate(events, np.arange(5), (1,))["muons"]) == 21


def test_prediction_takes_given_multiplicities(bundles):
    workload, model = build()
    wanted = np.array([0, 300_000, 1])
    made = workload.generate(model, bundles([0, 0, 0]), wanted, torch.Generator())
    assert made.multiplicity.tolist() == wanted.tolist()
    assert np.isfinite(made.items).all()
    with pytest.raises(ValueError, match="2 values for 3 events"):
        workload.generate(model, bundles([0, 0, 0]), wanted[:2], torch.Generator())
