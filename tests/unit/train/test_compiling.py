"""train.compile is a wish: where it does not work, training runs eager and says so once."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from crpipe.core.text import NullProgress
from crpipe.train.step import compile_modules
from models import train_range
from toy import RANGES, toy_config


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
    before = counters["stats"]["unique_graphs"]
    model = nn.ModuleDict({"child": child})
    assert compile_modules(model, lambda: model["child"](torch.ones(5, 3)), print)
    assert counters["stats"]["unique_graphs"] == before + 1
    for rows in (64, 7, 1, 0):
        assert len(model["child"](torch.ones(rows, 3))) == rows


def test_a_gradient_penalty_through_a_compiled_module_falls_back(tmp_path):
    told = []
    progress = NullProgress()
    progress.message = told.append
    train_range(toy_config(tmp_path, train={"compile": True}), RANGES[0], progress)
    assert any("train.compile does not work here, training runs eager" in line for line in told)


def test_a_compiled_module_computes_what_the_eager_one_did():
    model = make_model()
    x = torch.randn(5, 3)
    eager = model["critic"](x)
    assert compile_modules(model, lambda: model["critic"](x).sum().backward(), print)
    assert torch.allclose(model["critic"](x), eager, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_too_little_memory_is_not_called_a_failure_of_compiling():
    def probe():
        raise torch.OutOfMemoryError("CUDA out of memory")

    told = []
    with pytest.raises(torch.OutOfMemoryError):
        compile_modules(nn.ModuleDict({"child": nn.Linear(3, 2)}), probe, told.append)
    assert not told
