"""One graph of a model serves any number of events, and in half precision its loss is near."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from crpipe.workloads.common import formulas
from crpipe.workloads.xec.models.features import sensors_of
from xenon_models import ALL_TASKS, build, collate
from xenon_toy import make_gammas

ITEMS = torch.from_numpy(sensors_of(make_gammas(9)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("Regressor", {"tasks": ALL_TASKS}), ("Inpainter", {})])
def test_one_graph_serves_any_number_of_events(name, options, monkeypatch):
    """A face whose shape is a variable is more than torch's compiler can sort: it falls back to eager."""
    # A graph has torch's own gelu also where no vector is filled: the last bits would differ there.
    monkeypatch.setattr(formulas, "_Gelu", SimpleNamespace(apply=functional.gelu))
    _, model = build(name, **options)
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model.forward, dynamic=True, backend=keep, fullgraph=True)
    with torch.no_grad():
        for events in (5, 9, 2):  # not 4, which is the number of columns too
            found, wanted = compiled(ITEMS[:events]), model(ITEMS[:events])
            pairs = zip(_tensors(found), _tensors(wanted), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
    assert len(graphs) == 1
    values = [node.meta.get("example_value") for node in graphs[0].graph.nodes]
    sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    variables = [size.node.expr.free_symbols for size in sizes if isinstance(size, torch.SymInt)]
    assert len(set().union(*variables)) <= 2  # events, and columns, of the items


def _tensors(found):
    if isinstance(found, dict):
        return [tensor for pair in found.values() for tensor in pair if tensor is not None]
    return list(found)


CASES = {"Regressor": {"tasks": ALL_TASKS}, "MaskedAutoencoder": {}, "Inpainter": {}}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_in_16_bits_a_loss_is_near_and_float32(name, kind):
    made, model = build(name, **CASES[name])
    compute = partial(made.loss, model, collate(made, make_gammas(4), seed=(1,)), torch.Generator())
    exact, _ = compute()
    with torch.autocast("cpu", kind):
        rough, _ = compute()
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.05)
