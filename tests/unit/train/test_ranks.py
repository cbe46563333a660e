"""A process of the training: the GPU that it finds, the memory that it keeps.

What several of them do together is in tests/integration.
"""

import contextlib
import os
import platform
import subprocess
import sys

import pytest
import torch

from crpipe import __version__
from crpipe.core.errors import ConfigError
from crpipe.train import ranks
from crpipe.train.ranks import World, find_device, joined, machine, refuse_slow_precision

FAULTS = """
import resource
import torch
from crpipe.train.ranks import keep_freed_memory
keep_freed_memory()
def faults():
    tensors = [torch.ones(1 << 20) for _ in range(40)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = [faults() for _ in range(4)]
print(counts[-1] - counts[1])
"""
# "hg" among the flags of a part of memory: the system was asked for large pages there.
LARGE_PAGES = """
from pathlib import Path
import torch
from crpipe.train.ranks import use_large_pages
use_large_pages()
tensor = torch.ones(1 << 22)
lines = [line.split() for line in Path("/proc/self/smaps").read_text().splitlines()]
print(sum(line[0] == "VmFlags:" and "hg" in line for line in lines))
"""


@pytest.fixture
def gpus(monkeypatch):
    """Make torch believe in so many GPUs, and torchrun in so many processes on this node."""

    def believe(count, processes=1, rank=0):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, str(processes))
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, str(rank))

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


@pytest.mark.parametrize("is_there", [False, True])
def test_a_gpu_of_apple_is_taken_where_torch_finds_it(monkeypatch, is_there):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: is_there)
    if is_there:
        assert find_device("mps") == torch.device("mps")
    else:
        with pytest.raises(ConfigError, match=r"device mps: .* finds no such GPU here; use auto or cpu"):
            find_device("mps")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_more_processes_than_gpus_are_refused_on_every_rank(gpus, device, rank):
    gpus(1, processes=2, rank=rank)
    message = r"train.gpus: 2 processes of training on this node, and it has 1 GPU; set train.gpus: 1"
    with pytest.raises(ConfigError, match=message), joined(device):
        pass


@pytest.mark.parametrize("has", [False, True])
def test_bfloat16_is_refused_where_a_processor_cannot_multiply_it(monkeypatch, has):
    monkeypatch.setattr(ranks.platform, "machine", lambda: "x86_64")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has)
    cpu = torch.device("cpu")
    refuse_slow_precision("float32", cpu)
    refuse_slow_precision("bfloat16", torch.device("cuda"))
    with contextlib.nullcontext() if has else pytest.raises(ConfigError, match="set float32, or train where"):
        refuse_slow_precision("bfloat16", cpu)


def test_float16_is_refused_on_a_processor_with_what_to_set():
    refuse_slow_precision("float16", torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"on a CPU set bfloat16, where lscpu lists .*, else float32$"):
        refuse_slow_precision("float16", torch.device("cpu"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_memory_that_was_freed_is_kept():
    """Forty tensors of 4 MiB, four times: their 40,960 pages are cleared by the kernel once."""
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 4096


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux", reason="other systems have other pages")
@pytest.mark.parametrize(("set_by_a_person", "asked"), [({}, True), ({"THP_MEM_ALLOC_ENABLE": "0"}, False)])
def test_large_tensors_get_large_pages(set_by_a_person, asked):
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    command = [sys.executable, "-c", LARGE_PAGES]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment | set_by_a_person
    )
    assert (int(run.stdout) > 0) == asked


def test_the_device_and_the_versions_are_named():
    row = machine(World(0, 2, torch.device("cpu")))
    assert (row["device"], row["ranks"], row["crpipe"]) == ("cpu", 2, __version__)
    assert row["torch"] == torch.__version__
