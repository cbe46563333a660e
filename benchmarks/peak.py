"""The largest memory of a process, as the kernel counts it; and a verb in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

_ALONE = """
import atexit
from crpipe.cli.app import main
from peak import peak_mib
atexit.register(lambda: print(peak_mib()))
main()
"""


def peak_mib() -> float:
    """Give this process's largest resident set so far.

    Not getrusage: its peak is that of the process which started this one, if that was larger.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def run_verb(settings: list[str], verb: list[str], folder: Path, **more: str) -> tuple[float, float]:
    """Run a verb of crpipe in ``folder``; return its largest resident set in MiB, and seconds.

    ``settings`` are given as --set; ``more`` is added to the environment.
    """
    options = [word for setting in settings for word in ("--set", setting)]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, *options, *verb],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"} | more,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(verb)}: {done.stderr}")
    return float(done.stdout.split()[-1]), time.perf_counter() - begin
