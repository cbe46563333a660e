"""A loss at static shapes is one graph, and waits for no device: what a compiler and CUDA graphs need."""

from functools import partial

import numpy as np
import pytest
import torch

from crpipe.workloads.muons import MuonFlow, MuonFlowOptions, MuonGan, MuonGanOptions
from one_graph import NeverWaits, assert_never_waits, assert_one_graph

PENALTIES = ["none", "pair_slope", "gradient"]


def _gan(penalty, phase, bundles):
    sides = "two" if penalty == "gradient" else "one"
    workload = MuonGan(MuonGanOptions(hidden=16, max_muons=0, penalty=penalty, penalty_sides=sides))
    torch.manual_seed(1)
    model, batch = workload.model(), workload.collate(bundles(np.arange(600) % 7), np.arange(600), (1,))
    drawn = workload.draw(model, batch, torch.Generator().manual_seed(2))
    if penalty == "gradient":
        drawn = drawn._replace(share=torch.linspace(0, 1, len(batch["sampled"])))
    return partial(getattr(workload, f"{phase}_objective"), model, batch, drawn), model.get_submodule(phase)


def _flow(bundles):
    workload = MuonFlow(MuonFlowOptions(hidden=16))
    torch.manual_seed(1)
    model, batch = workload.model(), workload.collate(bundles(np.arange(600) % 7), np.arange(600), (1,))
    noise, time = torch.randn(batch["muons"].shape), torch.rand(len(batch["kept"]), 1)
    return partial(workload.velocity_objective, model, batch, noise, time), model.velocity


def _multiplicity(bundles):
    workload = MuonGan(MuonGanOptions())
    model, batch = workload.model(), workload.collate(bundles(np.arange(600) % 7), np.arange(600), (1,))
    return partial(workload.phases()[0].loss, model, batch, torch.Generator()), model.multiplicity


CASES = {
    **{f"critic, penalty {name}": partial(_gan, name, "critic") for name in PENALTIES},
    "generator": partial(_gan, "none", "generator"),
    "velocity": _flow,
    "multiplicity": _multiplicity,
}


@pytest.mark.slow
# torch's compiler itself makes an instance of each autograd.Function that it meets.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_one_graph_with_the_same_result(bundles, case):
    assert_one_graph(*CASES[case](bundles))


@pytest.mark.parametrize("case", CASES)
def test_a_loss_and_its_gradients_wait_for_no_device(bundles, case, monkeypatch):
    monkeypatch.setattr("crpipe.workloads.muons.models.layers.is_fused", lambda _: False)  # on a CPU alone
    assert_never_waits(*CASES[case](bundles))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: float(x.sum()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.repeat_interleave(x.abs().long()),
    ],
)
def test_a_wait_fails(wait):
    with pytest.raises(AssertionError), NeverWaits():
        wait(torch.ones(3))
