"""How the threads of one operation wait for each other: chosen before a process imports torch.

Threads that spin are as fast as the cores allow; beside others that need these cores a step takes many times
as long, and as much CPU time. Threads that sleep at once need no core meanwhile; on free cores of a virtual
machine a step then takes up to twice as long. No result depends on it.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

SPINS = "20000"  # some 0.1 ms: longer than most waits
_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_CHOSEN = "CRPIPE_WAITS"  # holds what crpipe itself chose: each process chooses anew
_LOOKS, _PAUSE_S = 3, 0.003
_LOADAVG = Path("/proc/loadavg")


def choose_waiting() -> None:
    """Set the variables that OpenMP reads when torch is imported, unless a person has set one of them.

    The ranks of one training keep what its first process chose: they would count each other.
    """
    if _CHOSEN in os.environ and "RANK" not in os.environ:
        for name in (_CHOSEN, *_VARIABLES):
            os.environ.pop(name, None)
    if any(name in os.environ for name in _VARIABLES):
        return
    name, value = ("GOMP_SPINCOUNT", SPINS) if cores_are_free() else ("OMP_WAIT_POLICY", "PASSIVE")
    os.environ |= {name: value, _CHOSEN: name}


def cores_are_free() -> bool:
    """Return whether the machine has cores for all threads of this process, beside what else runs on it.

    Where a process may use some of the cores alone, as jobs of a cluster do, others cannot be told apart.
    Other systems than Linux do not say.
    """
    if not hasattr(os, "sched_getaffinity"):
        return True
    cores, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    wanted = int(os.environ.get("SLURM_CPUS_PER_TASK", "0")) or allowed
    return allowed < cores or others_running() <= cores - wanted


def others_running() -> int:
    """Count the threads that run, or wait for a core, beside this one: the fewest that a few looks see."""
    seen = []
    for number in range(_LOOKS):
        time.sleep(_PAUSE_S if number else 0)
        try:
            running = re.search(r" (\d+)/\d+ ", _LOADAVG.read_text())
        except OSError:  # no Linux
            return 0
        seen.append(int(running[1]) - 1 if running else 0)
    return max(min(seen), 0)
