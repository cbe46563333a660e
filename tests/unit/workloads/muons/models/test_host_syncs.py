"""A meta tensor has a shape and no value: a loss that runs on it waits for no device."""

import numpy as np
import pytest
import torch

from crpipe.config.sections import LoadSection, TrainSection
from crpipe.events.batch import Cursor
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.workloads.muons import MuonFlow, MuonFlowOptions, MuonGan, MuonGanOptions

WORKLOADS = [
    MuonGan(MuonGanOptions()),
    MuonGan(MuonGanOptions(penalty="none", features="cartesian")),
    MuonGan(MuonGanOptions(penalty="gradient", gp_every=2, gp_sample_fraction=0.5)),
    MuonFlow(MuonFlowOptions()),
]


@pytest.fixture
def everything_on_meta(monkeypatch):
    """No random generator lives on meta: tensors are drawn without one, scalars on the host as always."""

    def drawn(original):
        def draw(*shape, generator, device=None):
            if shape == ((),):
                return original((), generator=generator)
            return original(*shape, device="meta")

        return draw

    monkeypatch.setattr(torch, "randn", drawn(torch.randn))
    monkeypatch.setattr(torch, "rand", drawn(torch.rand))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)


@pytest.mark.usefixtures("everything_on_meta")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_losses_and_their_gradients_never_ask_the_device(bundles, workload):
    model = workload.model().to("meta")
    batch = workload.collate(bundles([0, 3, 100, 2]), np.arange(4), (1,))
    batch = {name: tensor.to("meta") for name, tensor in batch.items()}
    generator = torch.Generator().manual_seed(1)
    for phase in workload.phases():
        for _ in range(4):
            loss, _ = phase.loss(model, batch, generator)
            gradients = torch.autograd.grad(loss, list(phase.params(model)), allow_unused=True)
            assert loss.is_meta
            assert any(gradient is not None for gradient in gradients)


def test_asking_a_meta_tensor_fails():
    with pytest.raises(RuntimeError):
        float(torch.zeros((), device="meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_whole_step_on_a_gpu_never_waits_for_it(bundles, workload):
    device = torch.device("cuda", 0)
    state = TrainState(workload.model(), workload.phases(), 1, device)
    stepper = Stepper(TrainSection(), LoadSection(), workload, state, World(0, 1, device), Meter(device))
    group = [(bundles([0, 3, 100, 2], seed), Cursor(0, seed)) for seed in range(3)]
    stepper.step(group, (1,), 1.0)  # what is set up once may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stepper.step(group, (1,), 1.0)
        with pytest.raises(RuntimeError):
            float(torch.zeros((), device=device))
    finally:
        torch.cuda.set_sync_debug_mode("default")
