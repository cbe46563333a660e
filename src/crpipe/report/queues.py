"""The jobs of this directory in the queue of a cluster, where there is one: Slurm's or HTCondor's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from crpipe.core.errors import QueueError

_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job in a queue; where: its node once it runs, before that the reason why it waits."""

    number: str
    state: str
    where: str
    work: str


def jobs_here() -> tuple[QueuedJob, ...]:
    """Ask each queue for the jobs submitted from the working directory; without an answer in time, none."""
    jobs: list[QueuedJob] = []
    for has_queue, ask, _ in QUEUES.values():
        if has_queue():
            with contextlib.suppress(QueueError):
                jobs += ask(_PATIENCE_S)
    return tuple(jobs)


def _answer(program: str, *arguments: str, patience_s: float) -> str:
    """Return what a program prints; raise QueueError where it fails, or does not answer in time."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [shutil.which(program) or program, *arguments],
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise QueueError(f"{program} does not answer within {patience_s:g} s") from error
    if done.returncode:
        raise QueueError(f"{program} failed: {' '.join(done.stderr.split())}")
    return done.stdout


# Slurm.


SLURM_LOGS = Path("logs/slurm")  # slurm-logdir of the profile: where it exists, jobs were submitted from here
PREFIX = "crpipe_"  # slurm-jobname-prefix of the profile
_FORMAT = "%i|%T|%N|%r|%j|%Z|%k"  # the comment last: it may hold anything
_FIELDS = _FORMAT.count("|") + 1


def has_slurm() -> bool:
    """Return whether jobs of this directory can be in a Slurm's queue."""
    return SLURM_LOGS.is_dir() and shutil.which("squeue") is not None


def ask_slurm(patience_s: float) -> tuple[QueuedJob, ...]:
    """Ask squeue for the jobs submitted from the working directory; raise QueueError without an answer."""
    answer = _answer("squeue", "-h", "--me", "-o", _FORMAT, patience_s=patience_s)
    return read_slurm_queue(answer, os.path.realpath("."))


def read_slurm_queue(answer: str, folder: str) -> tuple[QueuedJob, ...]:
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


# HTCondor.


# Of all jobs that Snakemake's plugin submits from here.
HTCONDOR_LOG = Path(".snakemake/htcondor/snakemake-rules.log")
# RULE-NUMBER, by Snakemake's plugin; jobs of other directories have the same names.
_BATCH = 'regexp("^[a-z_]+-[0-9]+$", JobBatchName)'
_ASKED = ("ClusterId", "JobStatus", "JobBatchName", "RemoteHost", "HoldReason", "Iwd", "UserLog")
_STATES = {1: "idle", 2: "running", 3: "removed", 5: "held", 6: "transferring", 7: "suspended"}


def has_htcondor() -> bool:
    """Return whether jobs of this directory can be in an HTCondor's queue."""
    return HTCONDOR_LOG.exists() and shutil.which("condor_q") is not None


def ask_htcondor(patience_s: float) -> tuple[QueuedJob, ...]:
    """Ask condor_q for the jobs submitted from the working directory; raise QueueError without an answer."""
    asked = ("-json", "-attributes", ",".join(_ASKED), "-constraint", _BATCH)
    return read_htcondor_queue(_answer("condor_q", *asked, patience_s=patience_s), os.path.realpath("."))


def read_htcondor_queue(answer: str, folder: str) -> tuple[QueuedJob, ...]:
    """Read condor_q's answer; keep the jobs that a workflow submitted from ``folder``, without ended ones."""
    jobs = []
    for row in json.loads(answer.strip() or "[]"):
        log = os.path.join(row.get("Iwd", ""), row.get("UserLog", ""))  # noqa: PTH118 - an absolute one wins
        of_folder = os.path.realpath(log) == os.path.realpath(f"{folder}/{HTCONDOR_LOG}")
        if row["JobStatus"] in _STATES and of_folder:
            where = row.get("HoldReason") or row.get("RemoteHost", "")
            rule = row["JobBatchName"].rpartition("-")[0]
            jobs.append(QueuedJob(str(row["ClusterId"]), _STATES[row["JobStatus"]], where, rule))
    return tuple(jobs)


# Of each: whether jobs can be in it, who asks for them, and the program that cancels them.
QUEUES = {
    "Slurm": (has_slurm, ask_slurm, "scancel"),
    "HTCondor": (has_htcondor, ask_htcondor, "condor_rm"),
}
