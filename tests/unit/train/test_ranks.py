"""A GPU that is not there is an error of the configuration, before anything waits for another process."""

import pytest
import torch

from crpipe.core.errors import ConfigError
from crpipe.train.ranks import find_device, joined


@pytest.fixture
def gpus(monkeypatch):
    """Make torch believe in so many GPUs, and torchrun in so many processes on this node."""

    def believe(count, processes=1):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, str(processes))
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("LOCAL_RANK", "0")

    return believe


def test_auto_takes_a_gpu_where_there_is_one(gpus):
    gpus(0)
    assert find_device("auto") == torch.device("cpu")
    gpus(2)
    assert find_device("auto", 1) == torch.device("cuda", 1)
    assert find_device("cpu") == torch.device("cpu")


def test_a_gpu_that_torch_does_not_find_is_refused(gpus):
    gpus(0)
    with pytest.raises(ConfigError, match=r"finds no GPU; `crpipe doctor` says why; or use auto or cpu"):
        find_device("cuda")


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_more_processes_than_gpus_are_refused_on_every_rank(gpus, device):
    gpus(1, processes=2)
    message = r"train.gpus: 2 processes of training on this node, and it has 1 GPU; set train.gpus: 1"
    with pytest.raises(ConfigError, match=message), joined(device):
        pass
