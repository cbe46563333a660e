"""Snakemake as it is, but asking for its Slurm jobs every three seconds, not ever more rarely."""

import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

INTERVAL_S = 3
asked = Executor.check_active_jobs


async def check_active_jobs(self, active_jobs):
    async for job in asked(self, active_jobs):
        yield job
    self.next_seconds_between_status_checks = INTERVAL_S


Executor.check_active_jobs = check_active_jobs

if __name__ == "__main__":
    sys.exit(main())
