"""Between two log intervals the host never waits for the device."""

import copy

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from crpipe.events.batch import Cursor
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import Backup, TrainState
from crpipe.train.step import Stepper
from toy import Toy, ToyOptions, make_events, toy_config

CPU = torch.device("cpu")
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}


class NoWaiting(TorchDispatchMode):
    """Refuses what copies a value from the device to the host, or needs one to know a shape."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name.startswith("index") and any(getattr(part, "dtype", 0) == torch.bool for part in args[1])
        assert name not in WAITING, f"aten::{name} waits for the device"
        assert not masks, f"aten::{name} counts what a mask selects, and waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_waiting(monkeypatch):
    """On the CPU these read memory directly, past the dispatcher; on a GPU they would wait."""

    def refuse(*_, **__):
        pytest.fail("a value is copied from the device to the host")

    for name in ("cpu", "numpy", "tolist", "item", "__array__", "__bool__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    return NoWaiting()


@pytest.fixture
def make_stepper(tmp_path):
    def make(world, **options):
        config = toy_config(tmp_path)
        workload = Toy(ToyOptions(**options))
        state = TrainState(workload.model(), workload.phases(), 1, CPU)
        meter = Meter(CPU)
        return Stepper(config.train, config.load, workload, state, world, meter), state, meter

    return make


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_never_waits_for_the_device(make_stepper, no_waiting, monkeypatch, ranks, optimizer):
    monkeypatch.setattr(dist, "all_reduce", lambda _: None)
    world = World(0, ranks, CPU)
    stepper, state, meter = make_stepper(world, optimizer=optimizer, momentum=0.5, poison_row=3)
    before = [value.clone() for value in state.model.parameters()]
    groups = [[(make_events(20, seed), Cursor(0, seed))] for seed in range(3)]
    with no_waiting:
        for group in groups:
            stepper.step(group, (1,), 1.0)
            state.counters.step += 1
    monkeypatch.undo()
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
    assert "critic/gap" in meter.means(World(0, 1, CPU))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_step_that_turns_bad_in_its_last_repeat_changes_nothing(make_stepper, optimizer, steps_before):
    """Two critic repeats are good and applied; then row 30 of the last batch poisons the third."""
    stepper, state, _ = make_stepper(World(0, 1, CPU), optimizer=optimizer, momentum=0.5, poison_row=30)
    good = [(make_events(20, seed), Cursor(0, seed)) for seed in range(3)]
    bad = (make_events(40, 9), Cursor(0, 9))
    for _ in range(steps_before):
        assert stepper.step(good, (1,), 1.0) == 0
        state.counters.step += 1
    before = copy.deepcopy(state.state({}))
    assert stepper.step([*good[:2], bad], (1,), 1.0) == 1
    assert _equal(before, state.state({}))
    assert stepper.step(good, (1,), 1.0) == 0
    assert not _equal(before, state.state({}))


@pytest.mark.parametrize("wanted", [0, 1])
def test_what_is_held_is_put_back_only_where_wanted(wanted):
    tensors = [torch.ones(2, 3), torch.tensor(1.0), torch.tensor(7)]  # one integer alone: a counting buffer
    held = Backup(tensors)
    for tensor in tensors:
        tensor.add_(1)
    held.restore_where(torch.tensor(float(wanted)))
    assert [tensor.unique().tolist() for tensor in tensors] == (
        [[1], [1], [7]] if wanted else [[2], [2], [8]]
    )


def _equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def test_a_batch_is_collated_once_for_all_phases_of_a_step(make_stepper, monkeypatch):
    stepper, _, _ = make_stepper(World(0, 1, CPU))
    collated = []
    monkeypatch.setattr(Toy, "on_collate", staticmethod(lambda: collated.append(1)))
    stepper.step([(make_events(20, seed), Cursor(0, seed)) for seed in range(3)], (1,), 1.0)
    assert len(collated) == 3  # four optimizer steps: three of the critic, one of the generator


def test_what_waits_is_noticed(no_waiting):
    for act in (lambda x: x[x > 0], torch.nonzero, torch.unique):
        with no_waiting, pytest.raises(AssertionError, match="waits for the device"):
            act(torch.ones(3))
    with pytest.raises(pytest.fail.Exception):
        float(torch.ones(()))


def test_gradients_that_overflow_only_together_are_skipped_by_all_ranks(make_stepper, monkeypatch):
    """Each rank's gradients are finite, their weighted sum is not."""

    def overflow(buffer):
        buffer[0] = np.inf

    monkeypatch.setattr(dist, "all_reduce", overflow)
    stepper, state, _ = make_stepper(World(0, 2, CPU))
    before = [value.clone() for value in state.model.parameters()]
    assert stepper.step([(make_events(20, 1), Cursor(0, 1))], (1,), 1.0) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
