"""An event larger than a piece is trained on piece by piece, as if it were whole, in bounded memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from crpipe.workloads.muons import MuonGan, MuonGanOptions
from crpipe.workloads.muons.models import gan as pieces

OPTIONS = [
    MuonGanOptions(max_muons=0, hidden=8),
    MuonGanOptions(max_muons=0, hidden=8, penalty="gradient", features="cartesian"),
]


def gradients(workload, batch):
    """Every phase's loss and gradients, from the same weights and random numbers."""
    torch.manual_seed(1)
    model = workload.model()
    found = []
    for phase in workload.phases():
        generator = torch.Generator().manual_seed(2)
        loss, _ = phase.loss(model, batch, generator)
        found += [loss.detach(), *torch.autograd.grad(loss, list(phase.params(model)))]
    return found


@pytest.mark.parametrize("options", OPTIONS)
def test_losses_and_gradients_in_pieces_equal_those_in_one_go(bundles, monkeypatch, options):
    workload = MuonGan(options)
    batch = workload.collate(bundles([1000]), np.arange(1), (1,))
    batch["muons"][500:600] = batch["muons"][:100]  # muons that tie, in pieces of 300, in other ones
    whole = gradients(workload, batch)
    monkeypatch.setattr(pieces, "PIECE", 300)
    calls = []
    scores = pieces.scores
    monkeypatch.setattr(pieces, "scores", lambda *args: calls.append(1) or scores(*args))
    for one, other in zip(whole, gradients(workload, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2  # critic and generator


def test_several_events_in_pieces_score_as_in_one_go(bundles, monkeypatch):
    workload = MuonGan(OPTIONS[0])
    batch = workload.collate(bundles([700, 1, 200, 40]), np.arange(4), (1,))
    critic = workload.model().critic
    context = torch.randn(4, critic.point_context.in_features)
    given = batch["muons"], context, batch["event"], batch["kept"]
    monkeypatch.setattr(pieces, "PIECE", 300)
    torch.testing.assert_close(pieces.scores(critic, *given), critic(*given), rtol=1e-5, atol=1e-5)


def test_only_an_event_that_no_micro_batch_can_split_is_taken_in_pieces():
    assert pieces.needed(pieces.PIECE + 1, 1)
    assert not pieces.needed(pieces.PIECE, 1)
    assert not pieces.needed(10 * pieces.PIECE, 2)


GIANT = """
import sys
sys.path[:0] = sys.argv[2:]
import numpy as np, torch
from conftest import make_events
from crpipe.workloads.muons import MuonGan, MuonGanOptions
def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
torch.set_num_threads(1)
workload = MuonGan(MuonGanOptions(max_muons=0))
model, generator = workload.model(), torch.Generator()
def train(muons):
    batch = workload.collate(make_events([muons]), np.arange(1), (1,))
    for phase in workload.phases():
        loss, _ = phase.loss(model, batch, generator)
        loss.backward()
train(40_000)
before = peak()
train(int(sys.argv[1]))
print(peak() - before)
"""


@pytest.mark.slow
def test_an_event_of_a_million_muons_fits_into_a_bounded_memory(request):
    script = [sys.executable, "-c", GIANT, "1000000", str(request.path.parents[1]), *sys.path]
    run = subprocess.run(script, capture_output=True, text=True, check=True)
    assert (
        int(run.stdout) < 1_400_000
    )  # KiB on top of the event of 40,000; in one go it is 4.6 kB for each muon
