"""Orphans: Slurm jobs of this directory whose workflow was killed."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from crpipe.core.errors import QueueError
from crpipe.report.status.slurm_queue import ask_slurm, has_slurm

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0  # for one answer of squeue
ASK_AGAIN_S = 20.0
CHECK_S = 2.0


def cancel_orphans(own_job: str, say: Callable[[str], None]) -> None:
    """Cancel the jobs that a killed workflow left, and wait until they are gone.

    They take a snapshot, and their range resumes. None may be left: a job that ends after its successor would
    delete the successor's outputs. ``own_job``: the id of the job in which this workflow runs, or "".
    """
    orphans = jobs_left(own_job, say)
    if not orphans:
        return
    say(f"A workflow in this directory was killed: cancelling its Slurm jobs {' '.join(orphans)}.")
    scancel = shutil.which("scancel") or "scancel"
    while orphans:
        subprocess.run([scancel, *orphans], check=False)  # noqa: S603 - ids that Slurm itself gave
        time.sleep(CHECK_S)
        orphans = jobs_left(own_job, say)


def jobs_left(own_job: str, say: Callable[[str], None]) -> list[str]:
    """List the ids of this directory's live Slurm jobs, without ``own_job``; ask until Slurm answers."""
    if not has_slurm():
        return []
    while True:
        try:
            return [job.number for job in ask_slurm(PATIENCE_S) if job.number != own_job]
        except QueueError as error:
            say(f"{error}; asking again in {ASK_AGAIN_S:g} s which jobs are left here")
            time.sleep(ASK_AGAIN_S)
