"""The one workflow process of this directory: its lease, what a killed one left behind, why one failed."""

import os
import shlex
import subprocess
import sys
import time as clock
from importlib.metadata import version
from pathlib import Path

from crpipe.workflow import slurm_plugin
from crpipe.workflow.command import only_looks
from crpipe.workflow.head import remove_locks, take_lease
from crpipe.workflow.orphans import cancel_orphans
from crpipe.workflow.outcome import what_failed

STARTED = clock.time()


def take_charge():
    """Take this directory's lease and clear up after a killed workflow; return what holds the lease."""
    executes = not (workflow.output_settings.dryrun or only_looks(sys.argv))
    lease = take_lease(Path(".snakemake/head"), executes=executes, say=logger.info)
    if lease is not None and remove_locks(Path(".snakemake/locks")):
        logger.warning(
            "A workflow in this directory was killed: its locks are removed, its jobs resume."
        )
    if executes:
        keep_to_squeue()
        cancel_orphans(os.environ.get("SLURM_JOB_ID", ""), logger.warning)
    elif lease is not None:
        lease.close()
    return lease


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
    return what_failed(CAMPAIGN, text, STARTED, words, training=trains())


if workflow.is_main_process:
    with refusing():
        HEAD = take_charge()
