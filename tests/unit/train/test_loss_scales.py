"""In float16 a phase's gradients overflow, its scale is halved, and nothing else is changed or blamed."""

import copy
import itertools
import math

import pytest
import torch
import torch.distributed as dist

from crpipe.events.batch import Cursor
from crpipe.train import loss_scales
from crpipe.train.checkpoints import problems
from crpipe.train.loss_scales import LEAST, MOST, LossScales
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from models import equal, interrupted, trained
from toy import RANGES, Toy, ToyOptions, make_events, toy_config

CPU = torch.device("cpu")
GROUP = [(make_events(20, seed), Cursor(0, seed)) for seed in range(3)]
FIRST = 2.0**12  # where the gradients of the generator do not overflow
HUGE = 1e4  # times the critic's loss: its gradients overflow at the first scales


CRITIC_LOSS = Toy.critic_loss


def huge(monkeypatch, factor=HUGE):
    """Make the gradients of the critic overflow at the first scales, those of the generator not."""

    def critic_loss(self, model, batch, generator):
        loss, metrics = CRITIC_LOSS(self, model, batch, generator)
        return factor * loss, metrics

    monkeypatch.setattr(Toy, "critic_loss", critic_loss)


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    """Train in float16 where a user may not; the arithmetic is the same."""
    monkeypatch.setattr("crpipe.train.link.refuse_slow_precision", lambda *_: None)
    monkeypatch.setattr(loss_scales, "FIRST", FIRST)


def make(tmp_path, ranks=1, **options):
    config = toy_config(tmp_path, train={"precision": "float16"})
    workload = Toy(ToyOptions(repeat=1, **options))
    torch.manual_seed(1)
    state = TrainState(workload.model(), workload.phases(), 1, CPU)
    world = World(0, ranks, CPU)
    return Stepper(config.train, config.load, workload, state, world, Meter(CPU)), state


def step(stepper, state):
    bad = stepper.step(GROUP, (1,), 1.0)
    state.counters.step += 1
    return int(bad), int(stepper.overflowed)


def test_an_overflow_skips_the_whole_step_and_halves_the_scale_of_its_phase_alone(tmp_path, monkeypatch):
    huge(monkeypatch)
    stepper, state = make(tmp_path)
    before = copy.deepcopy(state.state({}))
    assert step(stepper, state) == (1, 1)
    after = state.state({})
    assert before.pop("loss_scales") == {"critic": [FIRST, 0], "generator": [FIRST, 0]}
    assert after.pop("loss_scales") == {"critic": [FIRST / 2, 0], "generator": [FIRST, 1]}
    after["counters"]["step"] -= 1
    assert equal(before, after)


def test_a_scale_falls_until_gradients_fit_and_then_the_weights_move(tmp_path, monkeypatch):
    huge(monkeypatch)
    stepper, state = make(tmp_path)
    before = [value.clone() for value in state.model.parameters() if value.dim() > 1]
    flags = (step(stepper, state) for _ in range(13))
    skipped = list(itertools.takewhile(lambda flag: flag == (1, 1), flags))
    assert 3 < len(skipped) < 12
    scales = state.loss_scales.state()
    assert scales == {"critic": [FIRST / 2 ** len(skipped), 1], "generator": [FIRST, len(skipped) + 1]}
    after = [value for value in state.model.parameters() if value.dim() > 1]
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_scaled_step_is_that_without_scales(tmp_path):
    """Scales are powers of two: in bfloat16, whose range is that of float32, they change no bit."""
    weights = []
    for scaled in (False, True):
        stepper, state = make(tmp_path)
        stepper.autocast = torch.autocast("cpu", torch.bfloat16)
        if not scaled:
            state.loss_scales = None
        assert [step(stepper, state) for _ in range(3)] == [(0, 0)] * 3
        weights.append(state.model.state_dict())
    assert equal(*weights)


def test_a_scale_doubles_after_steps_without_an_overflow_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(loss_scales, "GROW_AFTER", 3)
    scales, no = LossScales(["one"], CPU), torch.zeros(())
    found = []
    for infinite in (0, 0, 0, 0, 0, 1, 0, 0, 0):
        scales.update("one", torch.tensor(float(infinite)), no)
        found.append(scales.state()["one"])
    f = FIRST
    assert found == [[f, 1], [f, 2], [2 * f, 0], [2 * f, 1], [2 * f, 2], [f, 0], [f, 1], [f, 2], [2 * f, 0]]
    for _ in range(100):
        scales.update("one", no, no)
    assert scales.state()["one"][0] == MOST


def test_what_no_scale_can_help_is_a_failure(tmp_path, monkeypatch):
    stepper, state = make(tmp_path, poison_row=3)  # the critic's loss is not a number
    assert step(stepper, state) == (1, 0)
    assert state.loss_scales.state()["critic"] == [FIRST, 0]
    huge(monkeypatch, 1e30)
    stepper, state = make(tmp_path)
    flags = [step(stepper, state) for _ in range(16)]
    assert flags == [(1, 1)] * 12 + [(1, 0)] * 4
    assert state.loss_scales.state()["critic"][0] == LEAST


@pytest.mark.parametrize("other", [0, 1])
def test_ranks_agree_on_an_overflow(tmp_path, monkeypatch, other):
    """The other rank's gradients of the critic overflow, or no one's do."""
    flags = iter([other, 0])

    def all_reduce(buffer):
        if len(buffer) == 2:  # lost, infinite
            buffer[1] += next(flags)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    stepper, state = make(tmp_path, ranks=2)
    assert step(stepper, state) == (other, other)
    assert state.loss_scales.state()["critic"] == ([FIRST / 2, 0] if other else [FIRST, 1])


def configure(root, **train):
    return toy_config(root, train={"precision": "float16", "stop_loss": 1e9, **train})


def test_overflows_are_counted_and_are_no_failures(tmp_path, monkeypatch):
    monkeypatch.setattr("crpipe.train.loop.MOST_SKIPPED", 1)
    huge(monkeypatch)
    receipt, checkpoint, told = trained(configure(tmp_path))
    halved = math.log2(FIRST / checkpoint["loss_scales"]["critic"][0])
    assert 3 < halved <= 3 * receipt["skipped"]  # three repeats
    assert "gradients overflowed, skipped, and its loss scale is halved" in told
    assert "not finite" not in told


def test_killed_in_the_middle_it_ends_in_the_same_bytes(tmp_path, monkeypatch):
    """Of two phases, three critic steps each; scales fall first and rise later, and the next link goes on."""
    monkeypatch.setattr(loss_scales, "GROW_AFTER", 4)
    huge(monkeypatch)
    keys = {"snapshot_steps": 1, "fresh_batches": False}
    configs = [configure(tmp_path / name, **keys) for name in ("resumed", "whole")]
    for _ in range(9):
        interrupted(configs[0])
    ends = [[trained(config, name)[:2] for name in RANGES[:2]] for config in configs]
    assert [receipt["sha256"] for receipt, _ in ends[0]] == [receipt["sha256"] for receipt, _ in ends[1]]
    (_, first), (_, second) = ends[0]
    for state in (first, second):
        scales = state["loss_scales"]
        assert scales["critic"][0] < FIRST < scales["generator"][0]
        assert 0 < state["counters"]["skipped"] < state["counters"]["step"]


def test_a_run_in_float32_has_no_scales_and_one_in_float16_takes_those_of_its_parent(tmp_path):
    _, checkpoint, _ = trained(toy_config(tmp_path))
    assert "loss_scales" not in checkpoint
    _, state = make(tmp_path)
    state.continue_from({**checkpoint, "loss_scales": {"critic": [8.0, 5.0], "gone": [2.0, 0.0]}}, "reset")
    assert state.loss_scales.state() == {"critic": [8, 5], "generator": [FIRST, 0]}


@pytest.mark.parametrize(
    "scales", [3, {"critic": 1.0}, {"critic": [0.0, 1.0]}, {"critic": [float("inf"), 1.0]}]
)
def test_damaged_scales_are_named(tmp_path, scales):
    _, checkpoint, _ = trained(toy_config(tmp_path))
    assert list(problems(checkpoint)) == []
    assert list(problems({**checkpoint, "loss_scales": scales})) == ["a loss scale is no pair of numbers"]
