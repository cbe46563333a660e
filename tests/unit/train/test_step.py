"""A step never waits for the device, is skipped as a whole, and names what it cannot do."""

import copy
import itertools
import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from crpipe.core.errors import DeviceMemoryError, TrainError
from crpipe.core.journal import Journal
from crpipe.events.batch import Cursor
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import Backup, TrainState
from crpipe.train.step import Stepper, compile_modules, named_out_of_memory
from crpipe.train.workload import WorkloadCall
from models import equal, train_range, trained
from one_graph import NeverWaits
from told import Told
from toy import RANGES, Toy, ToyOptions, make_events, toy_config

CPU = torch.device("cpu")


@pytest.fixture
def make_stepper(tmp_path):
    def make(world, kind=Toy, precision="float32", **options):
        config = toy_config(tmp_path, train={"precision": precision})
        workload = kind(ToyOptions(**options))
        state = TrainState(workload.model(), workload.phases(), 1, CPU)
        meter = Meter(CPU)
        return Stepper(config.train, config.load, workload, state, world, meter), state, meter

    return make


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_never_waits_for_the_device(make_stepper, monkeypatch, ranks, precision, optimizer):
    monkeypatch.setattr(dist, "all_reduce", lambda _: None)
    world = World(0, ranks, CPU)
    stepper, state, meter = make_stepper(
        world, precision=precision, optimizer=optimizer, momentum=0.5, poison_row=3
    )
    before = [value.clone() for value in state.model.parameters()]
    groups = [[(make_events(20, seed), Cursor(0, seed))] for seed in range(3)]
    with NeverWaits():
        for group in groups:
            stepper.step(group, (1,), 1.0)
            state.counters.step += 1
    monkeypatch.undo()
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
    assert "critic/gap" in meter.means(World(0, 1, CPU))


class ScalarsAlone(Toy):
    """Losses without metrics."""

    def phases(self):
        losses = [(phase, phase.loss) for phase in super().phases()]
        return [replace(phase, loss=lambda *given, of=of: of(*given)[0]) for phase, of in losses]


def test_a_loss_may_be_a_scalar_alone(make_stepper):
    weights = []
    for kind in (Toy, ScalarsAlone):
        torch.manual_seed(1)
        stepper, state, _ = make_stepper(World(0, 1, CPU), kind)
        stepper.probe(make_events(20, 1), (1,))
        stepper.step([(make_events(20, seed), Cursor(0, seed)) for seed in range(3)], (1,), 1.0)
        weights.append(state.model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


class CriticAlone(Toy):
    """The last phase takes several optimizer steps."""

    def phases(self):
        return super().phases()[:1]


@pytest.mark.parametrize("kind", [Toy, CriticAlone])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_step_that_turns_bad_in_its_last_repeat_changes_nothing(
    make_stepper, kind, optimizer, steps_before
):
    """Two critic repeats are good and applied; then row 30 of the last batch poisons the third."""
    stepper, state, _ = make_stepper(World(0, 1, CPU), kind, optimizer=optimizer, momentum=0.5, poison_row=30)
    good = [(make_events(20, seed), Cursor(0, seed)) for seed in range(3)]
    bad = (make_events(40, 9), Cursor(0, 9))
    for _ in range(steps_before):
        assert stepper.step(good, (1,), 1.0) == 0
        state.counters.step += 1
    before = copy.deepcopy(state.state({}))
    assert stepper.step([*good[:2], bad], (1,), 1.0) == 1
    assert equal(before, state.state({}))
    assert stepper.step(good, (1,), 1.0) == 0
    assert not equal(before, state.state({}))


@pytest.mark.parametrize("wanted", [0, 1])
def test_what_is_held_is_put_back_only_where_wanted(wanted):
    tensors = [torch.ones(2, 3), torch.tensor(1.0), torch.tensor(7)]  # one integer alone: a counting buffer
    backup = Backup(tensors)
    for tensor in tensors:
        tensor.add_(1)
    backup.restore_where(torch.tensor(float(wanted)))
    assert [tensor.unique().tolist() for tensor in tensors] == (
        [[1], [1], [7]] if wanted else [[2], [2], [8]]
    )


def test_a_batch_is_collated_once_for_all_phases_of_a_step(make_stepper, monkeypatch):
    stepper, _, _ = make_stepper(World(0, 1, CPU))
    collated = []
    monkeypatch.setattr(Toy, "on_collate", staticmethod(lambda: collated.append(1)))
    stepper.step([(make_events(20, seed), Cursor(0, seed)) for seed in range(3)], (1,), 1.0)
    assert len(collated) == 3  # four optimizer steps: three of the critic, one of the generator


def test_gradients_that_overflow_only_together_are_skipped_by_all_ranks(make_stepper, monkeypatch):
    """Each rank's gradients are finite, their weighted sum is not."""

    def overflow(buffer):
        buffer[0] = np.inf

    monkeypatch.setattr(dist, "all_reduce", overflow)
    stepper, state, _ = make_stepper(World(0, 2, CPU))
    before = [value.clone() for value in state.model.parameters()]
    assert stepper.step([(make_events(20, 1), Cursor(0, 1))], (1,), 1.0) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))


def test_an_anomaly_is_named_with_its_phase(tmp_path, monkeypatch):
    loss = Toy.generator_loss

    def broken(self, model, batch, generator):
        value, metrics = loss(self, model, batch, generator)
        return value + (value - value.detach()).sqrt() * 0.0, metrics

    monkeypatch.setattr(Toy, "generator_loss", broken)
    with pytest.raises(
        TrainError, match=r"phase generator: Function 'SqrtBackward0' returned nan .*test_step.py"
    ):
        trained(toy_config(tmp_path), anomaly=True)


def test_a_loss_that_is_not_finite_is_an_anomaly(tmp_path):
    config = toy_config(tmp_path, model={"poison_row": 7})
    with pytest.raises(TrainError, match="phase critic: the loss is nan"):
        trained(config, anomaly=True)


def make_model():
    return nn.ModuleDict({"critic": nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 1))})


def test_falls_back_to_eager_when_the_probe_fails_and_keeps_the_weights():
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def probe():
        with torch.no_grad():
            model["critic"][0].weight.add_(1.0)
        raise RuntimeError("aot_autograd does not support double backward\nmore")

    told = []
    assert compile_modules(model, probe, told.append) is False
    assert len(told) == 1
    assert "training runs eager (aot_autograd does not support double backward)" in told[0]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model["critic"](torch.ones(2, 3)).shape == (2, 1)


class Own(nn.Module):
    """A module of a workload, of another shape of class than torch's."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x):
        return self.inner(x).sin()


@pytest.mark.parametrize("child", [Own(), nn.Sequential(nn.Linear(3, 4), nn.SiLU()), nn.Linear(3, 1)])
def test_every_kind_of_module_is_compiled_and_takes_any_number_of_rows(child):
    from torch._dynamo.utils import counters as dynamo  # takes a second

    before = dynamo["stats"]["unique_graphs"]
    model = nn.ModuleDict({"child": child})
    assert compile_modules(model, lambda: model["child"](torch.ones(5, 3)), print)
    assert dynamo["stats"]["unique_graphs"] == before + 1
    for rows in (64, 7, 1, 0):
        assert len(model["child"](torch.ones(rows, 3))) == rows


def test_a_gradient_penalty_through_a_compiled_module_falls_back(tmp_path):
    _, _, told = trained(toy_config(tmp_path, train={"compile": True}))
    assert "train.compile does not work here, training runs eager" in told


def test_a_compiled_module_computes_what_the_eager_one_did():
    model = make_model()
    x = torch.randn(5, 3)
    eager = model["critic"](x)
    assert compile_modules(model, lambda: model["critic"](x).sum().backward(), print)
    assert torch.allclose(model["critic"](x), eager, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "fullgraph"])
def test_the_mode_reaches_torch_and_the_numbers_stay(mode, monkeypatch):
    model, x, given = make_model(), torch.randn(5, 3), []
    eager, compiler = model["critic"](x), torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: given.append(k) or compiler(*a, **k))
    assert compile_modules(model, lambda: model["critic"](x).sum().backward(), print, mode)
    whole = mode == "fullgraph"
    assert given == [{"dynamic": True, "fullgraph": whole, "mode": None if whole else mode}]
    assert torch.allclose(model["critic"](x), eager, atol=1e-6)


class Broken(nn.Module):
    """Two graphs: what is between them cannot be compiled."""

    def forward(self, x):
        torch._dynamo.graph_break()
        return x.sin()


@pytest.mark.parametrize(("mode", "compiles"), [(True, True), ("fullgraph", False)])
def test_what_is_no_whole_graph_runs_eager_only_where_that_is_asked_for(mode, compiles):
    torch._dynamo.reset()
    told, model = [], nn.ModuleDict({"child": Broken()})
    assert compile_modules(model, lambda: model["child"](torch.ones(3)), told.append, mode) is compiles
    assert len(told) == (not compiles)


def test_without_a_compiler_training_runs_eager_with_one_warning(tmp_path, monkeypatch):
    """Where torch finds no C++ compiler (on a GPU: no Triton) the first loss is that of an eager run."""
    import torch._inductor.config as inductor
    from torch._inductor.utils import fresh_cache

    monkeypatch.setattr(inductor.cpp, "cxx", (str(tmp_path / "no-compiler"),))
    torch._dynamo.reset()
    told, model = [], make_model()
    x = torch.randn(5, 3)
    eager = model["critic"](x)
    with fresh_cache():
        assert compile_modules(model, lambda: model["critic"](x).sum().backward(), told.append) is False
    assert len(told) == 1
    assert "compiler" in told[0]
    assert "training runs eager" in told[0]
    assert torch.equal(model["critic"](x), eager)


def test_the_journal_has_what_was_asked_for_and_what_runs(tmp_path):
    config = toy_config(tmp_path, train={"compile": "reduce-overhead"})
    trained(config)
    rows = [row for row in Journal(config.paths().train_journal()).rows() if row["what"] == "compile"]
    assert [(row["requested"], row["compiled"]) for row in rows] == [("reduce-overhead", False)]


def test_deterministic_algorithms_are_on_for_a_link_that_asks_for_them(tmp_path, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    trained(toy_config(tmp_path / "on", train={"deterministic": True}))
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    trained(toy_config(tmp_path / "off"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_too_little_memory_is_not_called_a_failure_of_compiling():
    def probe():
        raise torch.OutOfMemoryError("CUDA out of memory")

    told = []
    with pytest.raises(torch.OutOfMemoryError):
        compile_modules(nn.ModuleDict({"child": nn.Linear(3, 2)}), probe, told.append)
    assert not told


OF_TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 1.06 "
    "MiB is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use."
)
SAID = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 1.06 "
    "MiB is free; lower it"
)


def test_the_message_is_torchs_own_and_what_to_do():
    with pytest.raises(DeviceMemoryError) as caught, named_out_of_memory("lower it"):
        raise torch.OutOfMemoryError(OF_TORCH)
    assert str(caught.value) == SAID


def test_other_errors_pass_unchanged():
    with pytest.raises(RuntimeError, match="an illegal memory access"), named_out_of_memory("lower it"):
        raise RuntimeError("CUDA error: an illegal memory access")


def test_a_workload_is_not_blamed_for_it():
    call = WorkloadCall(object(), "predict", make_events(3, 1), np.arange(3))
    with pytest.raises(DeviceMemoryError), named_out_of_memory("lower it"), call:
        raise torch.OutOfMemoryError(OF_TORCH)


def test_training_names_the_budget_and_goes_on_where_its_last_snapshot_was(tmp_path, monkeypatch):
    config = toy_config(tmp_path, train={"snapshot_steps": 2})
    backward, calls = torch.Tensor.backward, itertools.count()

    def full(tensor, *given, **named):
        if next(calls) == 20:
            raise torch.OutOfMemoryError(OF_TORCH)
        return backward(tensor, *given, **named)

    monkeypatch.setattr(torch.Tensor, "backward", full)
    budget = f"{config.load.max_items:,}"
    with pytest.raises(DeviceMemoryError, match=rf"lower load.max_items \({budget} items"):
        train_range(config, RANGES[0], Told())
    rows = map(json.loads, config.paths().train_journal().read_text().splitlines())
    assert ["load.max_items" in row["error"] for row in rows if row["what"] == "failed"] == [True]
    told = Told()
    train_range(config, RANGES[0], told)
    assert "resumes at step" in str(told)
