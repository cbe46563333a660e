"""The processes of one training: who they are, what they sum, and the machine that they run on.

Ranks come from torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK); without it there is one rank and
nothing is communicated. The reduction works through the double backward of a gradient penalty, since it only
ever sees finished gradients.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from crpipe import __version__
from crpipe.config.loading import check_choice
from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # mallopt(3)


@dataclass(frozen=True, slots=True)
class World:
    """Which rank this process is, of how many, and on which device it computes."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and messages."""
        return self.rank == 0

    def reduce_gradients(self, params: Sequence[nn.Parameter], weight: Tensor, bad: Tensor) -> Tensor:
        """Turn the ranks' gradients into their mean weighted by ``weight``; count the ``bad`` ranks.

        weight: scalar, the events of this rank's gradients, or the sum of their weights. bad: scalar, 1 when
        the gradients are not finite.
        A bad rank contributes zeros, so that its numbers cannot spread; all ranks then skip the step alike.
        """
        if self.size == 1:
            return bad
        gradients = [_gradient(parameter) for parameter in params]
        scale = torch.where(bad > 0, 0.0, weight)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        buffer = torch.cat([torch.nan_to_num(flat, 0.0, 0.0, 0.0) * scale, torch.stack([weight, bad])])
        self.sum(buffer)
        total = torch.where(buffer[-2] > 0, buffer[-2], 1.0)
        start = 0
        for gradient in gradients:
            count = gradient.numel()
            gradient.copy_(buffer[start : start + count].view_as(gradient) / total)
            start += count
        return buffer[-1]

    def sum(self, values: Tensor) -> Tensor:
        """Add up a tensor over all ranks."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Report whether the flag is set on any rank: ranks must agree on when to stop."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor([float(flag)], device=self.device)).item())

    def gather(self, value: Any) -> list[Any]:
        """Collect one small picklable value from every rank, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


@contextlib.contextmanager
def joined(device: str) -> Iterator[World]:
    """Join the other ranks, if torchrun started any, for the length of the block."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device_here = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if device_here.type == "cuda":
        _refuse_missing_gpus(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        torch.cuda.set_device(device_here)  # collectives of plain objects go through the current device
    if size == 1:
        yield World(0, 1, device_here)
        return
    dist.init_process_group("nccl" if device_here.type == "cuda" else "gloo")
    try:
        yield World(rank, size, device_here)
        # A rank that ends while another still writes the checkpoint can abort in torch's own threads, and
        # torchrun then kills the writer: all ranks end together.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _refuse_missing_gpus(processes: int) -> None:
    """Raise ConfigError when this node's processes are more than its GPUs: NCCL needs one for each."""
    gpus = torch.cuda.device_count()
    if processes > gpus:
        raise ConfigError(
            f"train.gpus: {processes} processes of training on this node, and it has {gpus} GPU"
            f"{'' if gpus == 1 else 's'}; set train.gpus: {gpus}, or train.device: cpu"
        )


def find_device(choice: str, local_rank: int = 0) -> torch.device:
    """Turn ``train.device`` into a device; ``auto`` is a GPU when there is one.

    Raise ConfigError where a GPU is asked for, and torch finds none.
    """
    kind = re.sub(r":\d+$", "", choice)  # cuda:1 names one of several
    check_choice("device", kind, ("auto", "cpu", "cuda", "mps"))
    available = torch.cuda.is_available()
    if kind == "cuda" and not available:
        raise ConfigError(
            f"device cuda: torch {torch.__version__} finds no GPU; `crpipe doctor` says why; or use auto or "
            "cpu (train.device, --device)"
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device mps: torch {torch.__version__} finds no such GPU here; use auto or cpu")
    if choice == "auto":
        choice = "cuda" if available else "cpu"
    return torch.device(choice, local_rank) if choice == "cuda" else torch.device(choice)


def refuse_slow_precision(precision: str, device: torch.device) -> None:
    """Raise ConfigError for ``train.precision: float16`` on a CPU, and for bfloat16 on one that lacks it."""
    if precision == "float16" and device.type == "cpu":
        raise ConfigError(
            "train.precision: float16 is for GPUs alone; on a CPU set bfloat16, where lscpu lists "
            "avx512_bf16 or amx_bf16, else float32"
        )
    if precision == "bfloat16" and device.type == "cpu" and not _multiplies_bfloat16():
        raise ConfigError(
            "train.precision: bfloat16, and this processor has no instructions for it (avx512_bf16 or "
            "amx_bf16), so that a step takes many times as long; set float32, or train where they are"
        )


def _multiplies_bfloat16() -> bool:
    if platform.machine() == "x86_64":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - torch is pinned
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def use_threads(threads: int) -> None:
    """Compute with ``train.threads`` CPU threads; with 0, this process's share of the CPUs of its job."""
    cpus = int(os.environ.get("SLURM_CPUS_PER_TASK", "0")) or len(os.sched_getaffinity(0))
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of torchrun on this node: they share the CPUs
    torch.set_num_threads(threads or max(cpus // processes, 1))


def use_deterministic(deterministic: bool) -> None:
    """Allow only operations that give the same bytes each time; torch raises an error at any other."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # it imports a compiler, 1.5 s
        torch.use_deterministic_algorithms(deterministic)


def use_large_pages() -> None:
    """Ask the system for pages of 2 MiB for tensors of that size: a step on a CPU takes about 5 % less time.

    torch reads the variable when it makes its first tensor; a value that a person has set stays.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed_memory() -> None:
    """Keep up to 256 MiB that were freed for the next tensors: a step on a CPU takes about 6 % less time.

    By default glibc gives most of it back to the system after each loss, which clears every page of it again
    for the next one. Tensors of 32 MiB and more are given back as before.
    """
    with contextlib.suppress(AttributeError):  # another C library has no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_TRIM_THRESHOLD, 256 << 20)


def machine(world: World) -> dict[str, str | int]:
    """Name what a link is trained on, for the journal: device, number of ranks, and versions."""
    gpu = world.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(world.device) if gpu else world.device.type,
        "ranks": world.size,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "crpipe": __version__,
    }
