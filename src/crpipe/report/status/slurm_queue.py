"""What Slurm says of this directory's jobs, where there is a Slurm; a campaign elsewhere has none."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

LOGS = Path("logs/slurm")  # slurm-logdir of the profile: where it stands, jobs were submitted from here
PREFIX = "crpipe_"  # slurm-jobname-prefix of the profile
_FORMAT = "%i|%T|%N|%r|%k|%j|%Z"
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job in Slurm's queue; where: its node once it runs, before that the reason why it waits."""

    number: str
    state: str
    where: str
    work: str


def jobs_here() -> tuple[QueuedJob, ...]:
    """Ask Slurm for the jobs submitted from the working directory; none where nobody answers in time."""
    squeue = shutil.which("squeue")
    if squeue is None or not LOGS.is_dir():
        return ()
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [squeue, "-h", "--me", "-o", _FORMAT],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ()
    return read_queue(done.stdout, os.path.realpath("."))


def read_queue(told: str, folder: str) -> tuple[QueuedJob, ...]:
    """Read squeue's answer; keep what was submitted from ``folder``."""
    jobs = []
    for line in told.splitlines():
        number, state, node, reason, comment, name, place = line.split("|", 6)
        if name.startswith(PREFIX) and os.path.realpath(place) == folder:
            rule, _, wildcards = comment.removeprefix("rule_").partition("_wildcards_")
            work = f"{rule} {wildcards}".strip()
            jobs.append(QueuedJob(number, state.lower(), node or reason, work))
    return tuple(jobs)
