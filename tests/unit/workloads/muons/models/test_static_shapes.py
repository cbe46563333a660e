"""Padding brings batches to few shapes and counts for nothing."""

import numpy as np
import pytest
import torch

from crpipe.loading.microbatch import rounded
from crpipe.workloads.muons import MuonFlow, MuonFlowOptions, MuonGan, MuonGanOptions
from crpipe.workloads.muons.models import gan, layers
from crpipe.workloads.muons.models.layers import LEAST, padding

WORKLOADS = [
    MuonGan(MuonGanOptions(hidden=16)),
    MuonGan(MuonGanOptions(hidden=16, penalty="gradient", penalty_sides="two")),
    MuonGan(MuonGanOptions(hidden=16, penalty="gradient", gp_max_pairs=400, features="cartesian")),
    MuonFlow(MuonFlowOptions(hidden=16)),
]


@pytest.mark.parametrize(("events", "items"), [(2, LEAST), (63, 1025), (1000, 2000), (4095, 99_999)])
def test_padding_brings_events_and_items_to_shapes(events, items):
    added = padding(events, items)
    assert added.min() >= 1
    assert rounded(events + len(added)) == events + len(added)
    total = items + int(added.sum())
    assert rounded(total) == total
    assert total <= 33 / 32 * (items + len(added))


def test_a_single_event_and_few_items_are_not_padded():
    assert not len(padding(1, 10**6))
    assert not len(padding(500, LEAST - 1))
    assert not len(padding(0, 0))


def _batch(workload, events, weight=False):
    index = np.random.default_rng(1).permutation(len(events))
    batch = workload.collate(events, index, (1,))
    if weight:
        batch["weight"] = torch.linspace(0.5, 2.0, len(index))
    return batch


def _gradients(workload, batch, monkeypatch):
    """Every phase's loss and gradients, from the same weights; equal rows of noise for equal places."""
    noise = torch.Generator().manual_seed(3)
    normal, uniform = torch.randn(4000, 8, generator=noise), torch.rand(4000, generator=noise)
    with monkeypatch.context() as patch:
        patch.setattr(gan, "_normal", lambda rows, columns, _: normal[:rows, :columns])
        patch.setattr(torch, "randn", lambda shape, **_: normal[: shape[0], : shape[1]])
        patch.setattr(torch, "rand", lambda *shape, **_: uniform[: shape[0]].reshape(shape))
        torch.manual_seed(1)
        model = workload.model()
        found = []
        for phase in workload.phases():
            loss, metrics = phase.loss(model, batch, torch.Generator())
            gradients = torch.autograd.grad(loss, list(phase.params(model)))
            found += [loss.detach(), *metrics.values(), *gradients]
    return found


@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_padded_batch_gives_the_losses_and_gradients_of_the_batch(bundles, workload, weight, monkeypatch):
    events = bundles(np.arange(600) % 7)
    padded = _batch(workload, events, weight)
    with monkeypatch.context() as patch:
        patch.setattr(layers, "LEAST", 10**9)
        plain = _batch(workload, events, weight)
    assert len(plain["counts"]) == 600 < len(padded["counts"])
    for name in ("counts", "muons", "kept"):
        assert rounded(len(padded[name])) == len(padded[name]) > len(plain[name])
    close = {"rtol": 1e-4, "atol": 1e-6}
    pairs = zip(*(_gradients(workload, batch, monkeypatch) for batch in (padded, plain)), strict=True)
    for mine, known in pairs:
        torch.testing.assert_close(mine, known, **close)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_padding_holds_does_not_matter(bundles, workload, monkeypatch):
    batch = _batch(workload, bundles(np.arange(600) % 7), weight=True)
    other = {name: tensor.clone() for name, tensor in batch.items()}
    filled = int(batch["counts"][: len(batch["kept"])].sum())
    false = batch["counts"] == 0
    other["conditions"][false] = 3.0
    other["multiplicity"][false] = 1000
    other["order"][false] = 5
    other["muons"][batch["event"] >= filled] = -2.0
    for mine, known in zip(
        _gradients(workload, other, monkeypatch), _gradients(workload, batch, monkeypatch), strict=True
    ):
        assert torch.equal(mine, known)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_batches_of_a_kind_have_few_shapes(bundles, workload):
    rng = np.random.default_rng(2)
    batches = [_batch(workload, bundles(rng.poisson(4.0, 2000))) for _ in range(20)]
    for name in batches[0]:
        assert len({batch[name].shape for batch in batches}) <= 8
