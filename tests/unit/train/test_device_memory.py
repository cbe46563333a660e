"""Too little memory on a GPU is an error that names the key to change, wherever it happens."""

import itertools
import json

import numpy as np
import pytest
import torch

from crpipe.core.errors import DeviceMemoryError
from crpipe.train.step import named_out_of_memory
from crpipe.train.workload import WorkloadCall
from models import train_range
from told import Told
from toy import RANGES, make_events, toy_config

OF_TORCH = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 1.06 "
    "MiB is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use."
)
SAID = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 1.06 "
    "MiB is free; lower it"
)


def test_the_message_is_torchs_own_and_what_to_do():
    with pytest.raises(DeviceMemoryError) as caught, named_out_of_memory("lower it"):
        raise torch.OutOfMemoryError(OF_TORCH)
    assert str(caught.value) == SAID


def test_other_errors_pass_unchanged():
    with pytest.raises(RuntimeError, match="an illegal memory access"), named_out_of_memory("lower it"):
        raise RuntimeError("CUDA error: an illegal memory access")


def test_a_workload_is_not_blamed_for_it():
    call = WorkloadCall(object(), "predict", make_events(3, 1), np.arange(3))
    with pytest.raises(DeviceMemoryError), named_out_of_memory("lower it"), call:
        raise torch.OutOfMemoryError(OF_TORCH)


def test_training_names_the_budget_and_goes_on_where_its_last_snapshot_was(tmp_path, monkeypatch):
    config = toy_config(tmp_path, train={"snapshot_steps": 2})
    backward, calls = torch.Tensor.backward, itertools.count()

    def full(tensor, *given, **named):
        if next(calls) == 20:
            raise torch.OutOfMemoryError(OF_TORCH)
        return backward(tensor, *given, **named)

    monkeypatch.setattr(torch.Tensor, "backward", full)
    budget = f"{config.load.budget_items:,}"
    with pytest.raises(DeviceMemoryError, match=rf"lower load.budget_items \({budget} items"):
        train_range(config, RANGES[0], Told())
    rows = map(json.loads, config.paths().train_journal().read_text().splitlines())
    assert ["load.budget_items" in row["error"] for row in rows if row["what"] == "failed"] == [True]
    told = Told()
    train_range(config, RANGES[0], told)
    assert "resumes at step" in str(told)
