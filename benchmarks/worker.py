"""One side of a comparison in a process of its own: ``worker.py MODULE:FUNCTION ARGUMENTS``.

The function prepares and returns the work (or the work, and what tidies up after it). The work is done once
for each line of standard input and answered by a line of JSON. Only the standard library: other Pythons run
it too.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cpu_seconds() -> tuple[float, float]:
    """Return user and system time of this process and its children, living and waited for."""
    living = [0.0, 0.0]
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        living = [sum_ + int(ticks) / os.sysconf("SC_CLK_TCK") for sum_, ticks in zip(living, fields[11:13])]  # noqa: B905 - any Python
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + ended.ru_utime + living[0], own.ru_stime + ended.ru_stime + living[1]


def memory_mib(name: str = "VmHWM") -> float:
    """Return the largest resident set so far, or with ``VmRSS`` the present one.

    Not getrusage: its peak is that of the process which started this one, if that was larger.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def main() -> None:
    """Prepare and serve; whatever the work prints goes to standard error."""
    warnings.simplefilter("ignore")  # other people's deprecations
    sys.path[0] = str(ROOT)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    prepared = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    work, tidy = prepared if isinstance(prepared, tuple) else (prepared, None)
    for _ in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before, wall, (user, system) = memory_mib("VmRSS"), time.perf_counter(), cpu_seconds()
        answer = work()
        wall, ended = time.perf_counter() - wall, cpu_seconds()
        taken = {"wall": wall, "user": ended[0] - user, "system": ended[1] - system}
        taken.update(before=before, peak=memory_mib(), answer=answer)
        if tidy:
            tidy()
        print(json.dumps(taken), file=answers, flush=True)


if __name__ == "__main__":
    main()
