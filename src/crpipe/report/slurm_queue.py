"""The jobs of this directory in Slurm's queue, where there is a Slurm."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from crpipe.core.errors import QueueError

LOGS = Path("logs/slurm")  # slurm-logdir of the profile: where it exists, jobs were submitted from here
PREFIX = "crpipe_"  # slurm-jobname-prefix of the profile
_FORMAT = "%i|%T|%N|%r|%j|%Z|%k"  # the comment last: it may hold anything
_FIELDS = _FORMAT.count("|") + 1
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job in Slurm's queue; where: its node once it runs, before that the reason why it waits."""

    number: str
    state: str
    where: str
    work: str


def jobs_here() -> tuple[QueuedJob, ...]:
    """Ask Slurm for the jobs submitted from the working directory; none if it does not answer in time."""
    try:
        return ask_slurm(_PATIENCE_S) if has_slurm() else ()
    except QueueError:
        return ()


def has_slurm() -> bool:
    """Return whether jobs of this directory can be in a Slurm's queue."""
    return LOGS.is_dir() and shutil.which("squeue") is not None


def ask_slurm(patience_s: float) -> tuple[QueuedJob, ...]:
    """Ask squeue for the jobs submitted from the working directory; raise QueueError without an answer."""
    command = [shutil.which("squeue") or "squeue", "-h", "--me", "-o", _FORMAT]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise QueueError(f"squeue does not answer within {patience_s:g} s") from error
    if done.returncode:
        raise QueueError(f"squeue failed: {' '.join(done.stderr.split())}")
    return read_queue(done.stdout, os.path.realpath("."))


def read_queue(answer: str, folder: str) -> tuple[QueuedJob, ...]:
    """Read squeue's answer; keep the jobs that a crpipe workflow submitted from ``folder``."""
    rows = [line.split("|", _FIELDS - 1) for line in answer.splitlines()]
    jobs = []
    for row in rows:
        if len(row) != _FIELDS:  # a comment of several lines
            continue
        number, state, node, reason, name, work_folder, comment = row
        if name.startswith(PREFIX) and os.path.realpath(work_folder) == folder:
            jobs.append(QueuedJob(number, state.lower(), node or reason, _work(comment)))
    return tuple(jobs)


def _work(comment: str) -> str:
    """Read the rule and its wildcards from the comment that Snakemake gives to its jobs."""
    rule, _, wildcards = comment.removeprefix("rule_").partition("_wildcards_")
    return f"{rule} {wildcards}".strip()
