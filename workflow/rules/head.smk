"""The one workflow process of this directory: its lease, what a killed one left behind, why one failed."""

import atexit
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from crpipe.report.status.journal_tail import ends_of
from crpipe.workflow import slurm_plugin
from crpipe.workflow.command import only_looks
from crpipe.workflow.head import (
    check_folder,
    drop_spent_tables,
    remove_locks,
    remove_marks,
    resume_deletions,
    take_lease,
)
from crpipe.workflow.orphans import cancel_orphans, jobs_left
from crpipe.workflow.outcome import what_failed

# Where the journals ended when this call began: what follows is about its own jobs.
ENDS = ends_of(PATHS.data_journal(), PATHS.train_journal())


def take_charge():
    """Take this directory's lease and clear up after a killed workflow; return what holds the lease."""
    executes = not (workflow.output_settings.dryrun or only_looks(sys.argv))
    own_job = os.environ.get("SLURM_JOB_ID", "")
    lease = take_lease(
        Path(".snakemake/head"),
        executes=executes,
        say=logger.info,
        jobs=lambda: jobs_left(own_job, logger.warning),
    )
    if lease is not None and remove_locks(Path(".snakemake/locks")):
        logger.warning(
            "A workflow in this directory was killed: its locks are removed, its jobs resume."
        )
    if executes:
        keep_to_squeue()
        cancel_orphans(own_job, logger.warning)
        drop_spent_tables(PATHS, RANGES)
        resume_deletions(PATHS, RANGES)
        atexit.register(lease.close)
    if lease is not None:
        remove_marks(Path(".snakemake/incomplete"))
        if not executes:
            lease.close()
    return lease


def check_submission():
    """Refuse a working directory that jobs of a cluster would not find."""
    if workflow.non_local_exec:
        with refusing():
            check_folder(Path.cwd())


def check_workload():
    """Compare the workload with reader, tables and metrics before any job, in a process that imports torch.

    Once a run has begun, only keys that may change under it can be wrong.
    """
    free = SETTINGS.train.keep_best or SETTINGS.train.loggers
    if trains() and (free or not PATHS.run_config().exists()):
        checked = subprocess.run(
            [*shlex.split(COMMAND), "config", "check"], stdout=subprocess.DEVNULL
        )
        if checked.returncode:
            sys.exit(checked.returncode)


def keep_to_squeue():
    """Keep the Slurm plugin, where it is in use, to the one source of answers that every Slurm has."""
    plugin = sys.modules.get("snakemake_executor_plugin_slurm")
    if plugin is not None:
        slurm_plugin.keep_to_squeue(plugin, version(slurm_plugin.DISTRIBUTION))


def farewell(messages):
    """Describe why this call failed, from Snakemake's own log ``messages``, and how to continue."""
    words = ["snakemake", *sys.argv[1:]]
    text = Path(messages).read_text()
    return what_failed(CAMPAIGN, text, ENDS, words, training=trains())


if workflow.is_main_process:
    with refusing():
        HEAD = take_charge()
