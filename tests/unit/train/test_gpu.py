"""The GPU's figures are there where a GPU is, and cost nothing where none is."""

import threading

import pytest
import torch

from crpipe.train.meter import GpuSampler


def test_is_silent_without_a_gpu():
    before = threading.active_count()
    with GpuSampler(torch.device("cpu")) as sampler:
        assert threading.active_count() == before
        assert sampler.read() == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and pip install crpipe[gpu]")
def test_samples_a_gpu():
    pytest.importorskip("pynvml")
    with GpuSampler(torch.device("cuda", 0)) as sampler:
        x = torch.randn(4096, 4096, device="cuda")
        for _ in range(200):
            x = torch.nn.functional.normalize(x @ x)
        torch.cuda.synchronize()
        threading.Event().wait(1.5)
        assert sampler.read()["gpu/used_mib"] > 0
