"""A training step in processes of its own, which train together as those of torchrun do, for a benchmark."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from crpipe.train.ranks import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    Make = Callable[..., Callable[[], None]]  # from ``world`` to the step of one of its processes


def in_processes(make: Make, processes: int, threads: int = 1) -> Callable[[], None]:
    """Start processes of so many CPU threads, which wait for their turn, and give a step of all of them."""
    spawn = multiprocessing.get_context("spawn")
    meeting = Path(tempfile.mkdtemp()) / "meeting"
    pipes = []
    for rank in range(processes):
        here, there = spawn.Pipe()
        arguments = (make, rank, processes, threads, meeting, there)
        spawn.Process(target=_steps, args=arguments, daemon=True).start()
        pipes.append(here)

    def step() -> None:
        for pipe in pipes:
            pipe.send(None)
        for pipe in pipes:
            pipe.recv()

    return step


def _steps(make: Make, rank: int, processes: int, threads: int, meeting: Path, pipe: Connection) -> None:
    """Take a step for each message, and answer it."""
    torch.set_num_threads(threads)
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    step = make(world=World(rank, processes, torch.device("cpu")))
    with contextlib.suppress(EOFError):  # the benchmark is over
        while True:
            pipe.recv()
            step()
            pipe.send(None)
