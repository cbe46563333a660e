"""What the benchmarks beside other systems share. Only the standard library: other Pythons import it too."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RATIOS = "CRPIPE_RATIOS"  # names the file that benchmarks/bench.py makes its table of


def print_facts(name: str, clone: Path | None) -> None:
    """Print what the numbers depend on: the machine, the versions, and the commit of the other system."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    print(f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"Python {platform.python_version()}, torch {version('torch')}")
    if clone:
        git = ["git", "-C", str(clone), "log", "-1", "--format=%h of %cs"]
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        print(f"{name} {commit}")


def spread(ratios: list[float]) -> str:
    """Show the median with the least and greatest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def compared(what: str, peer: str, ratios: list[float], goal: float | None = None) -> str:
    """Show how many times faster crpipe is than ``peer``, one ratio a round; note it for benchmarks/bench.py.

    A ratio above 1 means that crpipe is faster. ``goal`` is what the median should reach.
    """
    if path := os.environ.get(RATIOS):
        row = {"what": what, "peer": peer, "ratios": ratios, "goal": goal}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return spread(ratios)


def cpu_seconds() -> float:
    """Give the CPU time of this process and of its living children."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def prepared_steps(stepper: Any, groups: Sequence[Any]) -> list[Callable[[], object]]:
    """Prepare a step of a crpipe Stepper for each batch with its cursor: all of training but collating."""
    steps: list[Callable[[], object]] = []
    for group in groups:
        ready = {group[1]: stepper.collate_ahead(group, (1,))[2]}

        def step(group: Any = group, ready: Any = ready) -> None:
            stepper.step([group], (1,), 1.0, ready=ready)
            stepper.meter.read(stepper.world)

        steps.append(step)
    return steps
