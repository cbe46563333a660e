"""train.compile is a wish: where it does not work, training runs eager and says so once."""

import torch
from torch import nn

from crpipe.train.compiling import compile_modules


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


def test_a_compiled_module_computes_what_the_eager_one_did():
    model = make_model()
    x = torch.randn(5, 3)
    eager = model["critic"](x)
    assert compile_modules(model, lambda: model["critic"](x).sum().backward(), print)
    assert torch.allclose(model["critic"](x), eager, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())
