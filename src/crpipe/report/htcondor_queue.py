"""The jobs of this directory in HTCondor's queue, where there is an HTCondor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from crpipe.core.errors import QueueError
from crpipe.report.slurm_queue import QueuedJob

LOG = Path(".snakemake/htcondor/snakemake-rules.log")  # of all jobs that Snakemake's plugin submits from here
# RULE-NUMBER, by Snakemake's plugin; jobs of other directories have the same names.
_BATCH = 'regexp("^[a-z_]+-[0-9]+$", JobBatchName)'
_ASKED = ("ClusterId", "JobStatus", "JobBatchName", "RemoteHost", "HoldReason", "Iwd", "UserLog")
_STATES = {1: "idle", 2: "running", 3: "removed", 5: "held", 6: "transferring", 7: "suspended"}
_PATIENCE_S = 3.0


def htcondor_jobs_here() -> tuple[QueuedJob, ...]:
    """Ask HTCondor for the jobs submitted from the working directory; none if it does not answer in time."""
    try:
        return ask_htcondor(_PATIENCE_S) if has_htcondor() else ()
    except QueueError:
        return ()


def has_htcondor() -> bool:
    """Return whether jobs of this directory can be in an HTCondor's queue."""
    return LOG.exists() and shutil.which("condor_q") is not None


def ask_htcondor(patience_s: float) -> tuple[QueuedJob, ...]:
    """Ask condor_q for the jobs submitted from the working directory; raise QueueError without an answer."""
    command = [shutil.which("condor_q") or "condor_q", "-json", "-attributes", ",".join(_ASKED)]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [*command, "-constraint", _BATCH], capture_output=True, text=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise QueueError(f"condor_q does not answer within {patience_s:g} s") from error
    if done.returncode:
        raise QueueError(f"condor_q failed: {' '.join(done.stderr.split())}")
    return read_htcondor_queue(done.stdout, os.path.realpath("."))


def read_htcondor_queue(answer: str, folder: str) -> tuple[QueuedJob, ...]:
    """Read condor_q's answer; keep the jobs that a workflow submitted from ``folder``, without ended ones."""
    jobs = []
    for row in json.loads(answer.strip() or "[]"):
        log = os.path.join(row.get("Iwd", ""), row.get("UserLog", ""))  # noqa: PTH118 - an absolute one wins
        if row["JobStatus"] in _STATES and os.path.realpath(log) == os.path.realpath(f"{folder}/{LOG}"):
            where = row.get("HoldReason") or row.get("RemoteHost", "")
            rule = row["JobBatchName"].rpartition("-")[0]
            jobs.append(QueuedJob(str(row["ClusterId"]), _STATES[row["JobStatus"]], where, rule))
    return tuple(jobs)
