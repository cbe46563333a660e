"""Which parameters decay, and which are frozen at first."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from crpipe.core.errors import ConfigError
from crpipe.events.batch import Cursor
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.train.workload import OptimizerSpec, Phase
from toy import Toy, ToyOptions, make_events, toy_config

CPU = torch.device("cpu")
ONE = World(0, 1, CPU)
FROZEN = ("critic.0.weight", "critic.0.bias", "generator.0.0.weight", "generator.0.0.bias")


def never_called(*_):
    raise AssertionError("an optimizer is built without any loss")


def optimizer_of(model, **options):
    phase = Phase("fit", lambda m: m.parameters(), never_called, OptimizerSpec("adam", 1e-3, **options))
    return TrainState(model, [phase], 1, CPU).optimizers["fit"]


def decays(optimizer):
    return [(group["weight_decay"], [p.dim() for p in group["params"]]) for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [(0.0, [2, 1, 1, 1])]),
        ({"weight_decay": 0.1}, [(0.1, [2]), (0.0, [1, 1, 1])]),
        ({"weight_decay": 0.1, "decay_all": True}, [(0.1, [2, 1, 1, 1])]),
    ],
)
def test_norms_and_biases_do_not_decay(options, wanted):
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    assert decays(optimizer_of(model, **options)) == wanted


def test_decaying_weights_and_no_others_shrink_without_a_gradient():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimizer = optimizer_of(model, weight_decay=0.1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {"0.weight"}


@pytest.fixture
def make_stepper(tmp_path):
    def make(world, workload):
        config = toy_config(tmp_path)
        state = TrainState(workload.model(), workload.phases(), 1, CPU)
        return Stepper(config.train, config.load, workload, state, world, Meter(CPU)), state

    return make


def changed_after(stepper, state, steps):
    """Train some steps; name the parameters, averages and moments that differ from those before."""
    before = {name: value.detach().clone() for name, value in state.model.named_parameters()}
    average = {name: value.clone() for name, value in state.average.items()}
    for _ in range(steps):
        assert stepper.step([(make_events(20, seed), Cursor(0, seed)) for seed in range(3)], (1,), 1.0) == 0
        state.counters.step += 1
    changed = {name for name, value in state.model.named_parameters() if not torch.equal(value, before[name])}
    return changed, {name for name, value in state.average.items() if not torch.equal(value, average[name])}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_frozen_parameters_change_after_their_last_step_only(make_stepper, monkeypatch, ranks, optimizer):
    monkeypatch.setattr(dist, "all_reduce", lambda _: None)
    options = ToyOptions(optimizer=optimizer, momentum=0.5, decay=0.1, frozen_steps=3)
    stepper, state = make_stepper(World(0, ranks, CPU), Toy(options))
    # The last bias of the critic cancels in its loss.
    every = {name for name, _ in state.model.named_parameters()} - {"critic.2.bias"}
    changed, averaged = changed_after(stepper, state, 3)
    assert changed == every - {*FROZEN}
    assert averaged == {name for name in changed if name.startswith("generator")}
    moments = {
        name: state.optimizers["critic"].state[value] for name, value in state.model.named_parameters()
    }
    assert all(not value.any() for value in moments["critic.0.weight"].values())
    changed, averaged = changed_after(stepper, state, 1)
    assert changed == every
    assert {name for name in FROZEN if name.startswith("generator")} < averaged


class AllFrozen(Toy):
    def phases(self):
        critic, generator = super().phases()
        slots = {
            name: getattr(generator, name) for name in ("name", "params", "loss", "optimizer", "average")
        }
        return [critic, Phase(**slots, frozen=generator.params, frozen_steps=2)]


def test_a_phase_that_is_frozen_as_a_whole_waits(make_stepper):
    stepper, state = make_stepper(ONE, AllFrozen(ToyOptions()))
    assert {name.partition(".")[0] for name in changed_after(stepper, state, 2)[0]} == {"critic"}
    assert {name.partition(".")[0] for name in changed_after(stepper, state, 1)[0]} == {"critic", "generator"}


def test_what_a_phase_does_not_train_it_cannot_freeze():
    model = nn.ModuleDict({"one": nn.Linear(1, 1), "other": nn.Linear(1, 1)})
    phase = Phase(
        "fit",
        lambda m: m["one"].parameters(),
        never_called,
        OptimizerSpec("adam", 1e-3),
        frozen=lambda m: m["other"].parameters(),
        frozen_steps=5,
    )
    with pytest.raises(ConfigError, match=r"phase fit: .* other.bias, other.weight"):
        TrainState(model, [phase], 1, CPU)
