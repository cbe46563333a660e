"""Optimizers of torch by their names: refused before any job, undone where a step is bad, resumed exactly."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import small_lab
from crpipe.config.loading import validate
from crpipe.contract.cases import Case
from crpipe.contract.trainings import a_killed_training_ends_in_the_same_bytes
from crpipe.core.errors import ConfigError, PluginError
from crpipe.train.optimizers import OptimizerSpec, build_optimizer, load_moments, same_optimizer, step_unless
from crpipe.train.state import TrainState
from crpipe.train.workload import Phase

CPU = torch.device("cpu")
NAMES = ["adam", "sgd", "Adam", "AdamW", "SGD", "RAdam", "NAdam", "Adagrad", "Adafactor", "Muon"]


class Slow(torch.optim.SGD):
    """An optimizer of a workload's own, with a state that it replaces and a number."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                slots = self.state[parameter]
                slots["count"] = slots.get("count", 0) + 1
                slots["last"] = parameter.detach() / slots["count"]


def slow(params, rate):
    return Slow(params, rate, momentum=0.5)


def spec(kind):
    return OptimizerSpec(kind, 1e-2)


@pytest.mark.parametrize(
    ("choose", "sentence"),
    [
        (lambda: OptimizerSpec("adamw", 1e-3), "OptimizerSpec: kind: 'adamw' is .*did you mean (adam|AdamW)"),
        (lambda: OptimizerSpec("", 1e-3), "'' is not known; known: adam, sgd, .*RAdam"),
        (lambda: OptimizerSpec("LBFGS", 1e-3), "'LBFGS' is not known"),
        (lambda: OptimizerSpec("adam", 1e-3, momentum=0.9), "adam has no momentum"),
        (lambda: OptimizerSpec("sgd", 1e-3, betas=(0.5, 0.9)), "sgd has no betas"),
        (
            lambda: OptimizerSpec("RAdam", 1e-3, betas=(0.5, 0.9)),
            'RAdam has no betas; .*options={"betas": …}',
        ),
        (lambda: OptimizerSpec("RAdam", 1e-3, options={"beta": 1}), "no option beta; did you mean betas"),
        (lambda: OptimizerSpec("SGD", 1e-3, options={"lr": 1}), "SGD has no option lr"),
        (lambda: OptimizerSpec("adam", 1e-3, options={"eps": 1}), "adam has no option eps; it has none"),
        (lambda: OptimizerSpec("Rprop", 1e-3, weight_decay=0.1), "Rprop has no weight_decay"),
    ],
)
def test_what_an_optimizer_has_not_is_refused_where_it_is_named(choose, sentence):
    with pytest.raises(ConfigError, match=sentence):
        choose()


def test_what_it_refuses_itself_is_one_sentence():
    params = list(nn.Linear(2, 2).parameters())
    with pytest.raises(
        PluginError, match=r"phase fit: Muon cannot be built: ValueError: Muon only supports 2D"
    ):
        build_optimizer("fit", params, OptimizerSpec("Muon", 1e-3))
    with pytest.raises(PluginError, match="phase fit: <lambda>: expected an optimizer, found int"):
        build_optimizer("fit", params, OptimizerSpec(lambda _params, _rate: 1, 1e-3))


def make_state(kind):
    torch.manual_seed(1)
    model = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)])
    phases = [
        Phase(name, lambda m, number=number: m[number].parameters(), None, spec(kind))
        for number, name in enumerate(("one", "other"))
    ]
    return TrainState(model, phases, 1, CPU)


def step(state, seed, bad=0.0):
    """Take a step of the first phase with gradients of a seed; undo it where it is bad."""
    generator = torch.Generator().manual_seed(seed)
    before = state.backup()
    for parameter in state.params["one"]:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    step_unless(state.optimizers["one"], torch.tensor(0.0), state.phases[0].optimizer)
    before.restore_where(torch.tensor(bad))


def bits(state):
    """Return weights and the optimizer's state as they would be saved."""
    saved = state.optimizers["one"].state_dict()["state"]
    slots = {
        (index, name): torch.as_tensor(value).clone()
        for index, slots in saved.items()
        for name, value in slots.items()
    }
    return [*(value.clone() for value in state.model.parameters()), *slots.values()], {*slots}


@pytest.mark.parametrize("kind", [*NAMES, slow])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_bad_step_leaves_nothing(kind, steps):
    state = make_state(kind)
    for seed in range(steps):
        step(state, seed)
    tensors, names = bits(state)
    step(state, 9, bad=1.0)
    after, names_after = bits(state)
    assert names_after == names
    assert all(map(torch.equal, tensors, after))


@pytest.mark.parametrize("kind", [*NAMES, slow])
def test_a_bad_gradient_is_no_step(kind):
    state = make_state(kind)
    step(state, 1)
    (weight,) = state.params["one"]
    before, weight.grad = weight.detach().clone(), torch.full_like(weight, torch.nan)
    for bad, same in ((1.0, True), (0.0, False)):
        step_unless(state.optimizers["one"], torch.tensor(bad), state.phases[0].optimizer)
        assert torch.equal(weight, before) is same


@pytest.mark.parametrize("kind", [*NAMES, slow])
def test_a_restored_state_goes_on_bit_for_bit(kind):
    through, resumed = make_state(kind), make_state(kind)
    for seed in range(2):
        step(through, seed)
    saved = copy.deepcopy(through.optimizers["one"].state_dict())  # as if from a file
    resumed.model.load_state_dict(through.model.state_dict())
    assert same_optimizer(resumed.optimizers["one"], saved)
    load_moments(resumed.optimizers["one"], saved)
    for state in (through, resumed):
        step(state, 7)
    assert all(map(torch.equal, bits(through)[0], bits(resumed)[0]))


def test_the_state_of_another_kind_or_shape_is_none():
    state = make_state("RAdam")
    step(state, 1)
    saved = state.optimizers["one"].state_dict()
    assert not same_optimizer(make_state("Adagrad").optimizers["one"], saved)
    wide = build_optimizer("one", [nn.Parameter(torch.zeros(4, 3))], spec("RAdam"))
    assert not same_optimizer(wide, saved)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ['"AdamW"', '"SGD"', '"RAdam"', '"Adagrad"', '"Muon"'])
def test_a_killed_training_ends_in_the_same_bytes(kind, tmp_path, monkeypatch):
    text = Path(small_lab.__file__).read_text()
    changed = text.replace('OptimizerSpec("adam"', f"OptimizerSpec({kind}")
    assert changed != text
    if kind == '"Muon"':
        matrices = "lambda model: [each for each in model.parameters() if each.dim() == 2]"
        changed = changed.replace("lambda model: model.parameters()", matrices)
    name = f"killed_{kind.strip(chr(34))}"
    (tmp_path / f"{name}.py").write_text(changed)
    monkeypatch.syspath_prepend(str(tmp_path))
    a_killed_training_ends_in_the_same_bytes(Case(validate(small_lab.tree(name))))
