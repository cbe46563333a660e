"""Functions of the workflow: what is configured, who waits for whom, who is in charge, what failed."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import yaml
from snakemake.io import IOFile

from crpipe.cli.jobs import open_campaign
from crpipe.config import record
from crpipe.config.loading import flatten, load_config, read_tree
from crpipe.core.errors import CrpipeError, LeaseError
from crpipe.core.lease import lease
from crpipe.report.status.failures import explain

CAMPAIGN = Path("config/config.yaml")
SLURM_LOGS = Path("logs/slurm")
OF_TRAINING = {
    "all",
    "train",
    "train_all",
    "train_outliers",
    "evaluate",
    "evaluation",
    "figures",
    "gallery",
    "progress",
}
LOOKING = {
    "--lint",
    "--report",
    "--summary",
    "-S",
    "--detailed-summary",
    "-D",
    "--list-rules",
    "--list",
    "-l",
}
LOOKING |= {
    "--list-target-rules",
    "--lt",
    "--dag",
    "--rulegraph",
    "--filegraph",
    "--d3dag",
    "--unlock",
}
LOOKING |= {
    "--list-changes",
    "--lc",
    "--list-input-changes",
    "--list-untracked",
    "--lu",
    "--print-compilation",
}


# --- configuration ---------------------------------------------------------------------------------------


def config_files():
    """List the configuration files, weakest first: the campaign's, then those of --configfile."""
    files = dict.fromkeys(
        [CAMPAIGN.absolute(), *(Path(name).absolute() for name in workflow.configfiles)]
    )
    here = Path.cwd()
    return [
        path.relative_to(here) if path.is_relative_to(here) else path
        for path in files
        if path.exists()
    ]


def overrides(files):
    """Turn what --config changed into overrides that crpipe understands."""
    given = dict(flatten(read_tree(files)[0]))
    changed = {
        name: value
        for name, value in flatten(config)
        if name not in given or given[name] != value
    }
    return [f"{name}={one_line(value)}" for name, value in changed.items()]


def one_line(value):
    """Write a value as YAML on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000)
        .removesuffix("\n")
        .removesuffix("\n...")
    )


@contextlib.contextmanager
def refusing():
    """End with an error's own message and exit code: a wrong key needs no traceback."""
    try:
        yield
    except CrpipeError as error:
        print(f"crpipe: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def checked_settings():
    """Validate the configuration, and compare it with what this campaign was begun under, before any job."""
    with refusing():
        files = config_files()
        settings = load_config(files, overrides(files))
        campaign = open_campaign(settings)
        record.check_data(campaign.paths, campaign.data_keys)
        record.check_train(campaign.paths, settings.train_keys())
    return settings


def command():
    """Spell the call of crpipe that every job shares, so that it can be pasted into a shell."""
    files = config_files()
    options = [part for path in files for part in ("--config", str(path))]
    options += [part for text in overrides(files) for part in ("--set", text)]
    return shlex.join(["crpipe", *options])


def trainer():
    """Spell the call of crpipe for training: one process for each GPU, under torchrun if there are several."""
    nodes, processes = SETTINGS.train.nodes, max(SETTINGS.train.gpus, 1)
    if nodes * processes == 1:
        return COMMAND
    call = f"-m {COMMAND}"
    if nodes == 1:
        return f"torchrun --standalone --nproc-per-node={processes} {call}"
    # The shell runs on the first node of the job: that is where the ranks meet.
    return (
        f"srun --nodes={nodes} --ntasks={nodes} torchrun --nnodes={nodes} --nproc-per-node={processes}"
        f" --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID"
        f" --rdzv-endpoint=$(hostname):$((20000 + SLURM_JOB_ID % 10000)) {call}"
    )


def prepare_environment():
    """Let jobs find crpipe beside this Python, and follow the workflow's process when it dies."""
    places = dict.fromkeys([str(Path(sys.executable).parent), *os.get_exec_path()])
    os.environ.update(PATH=os.pathsep.join(places), CRPIPE_WORKFLOW="1")


# --- who is in charge ------------------------------------------------------------------------------------


class Head:
    """The one workflow process of this directory; the kernel takes its claim back however it dies."""

    def __init__(self):
        self.started = time.time()
        self._claim = contextlib.ExitStack()

    def take_charge(self):
        """Claim the directory, and clear up after a head that was killed."""
        executes = not (
            workflow.output_settings.dryrun or LOOKING.intersection(sys.argv)
        )
        try:
            with refusing() if executes else contextlib.nullcontext():
                self._claim.enter_context(
                    lease(
                        Path(".snakemake/head"), wait_s=10 * executes, say=logger.info
                    )
                )
        except LeaseError:
            return
        remove_stale_locks()
        if executes:
            keep_to_squeue()
            cancel_orphans()
        else:
            self._claim.close()


def remove_stale_locks():
    """Remove Snakemake's locks: whoever left them is dead, or it would hold the head's lease."""
    stale = list(Path(".snakemake/locks").glob("*"))
    for path in stale:
        path.unlink()
    if stale:
        logger.warning(
            "A workflow in this directory was killed: its locks are removed, its jobs resume."
        )


def keep_to_squeue():
    """Let a Slurm that does not answer for a while be asked again, instead of its accounting.

    The executor goes over to sacct when it cannot learn MinJobAge, and where there is no accounting it then asks
    in vain for ever. The last answer, or Slurm's default, holds until the next one.
    """
    executor = sys.modules.get("snakemake_executor_plugin_slurm")
    if executor is not None:
        executor.get_min_job_age = partial(last_known, executor.get_min_job_age, [300])


def last_known(ask, answers):
    """Ask, and repeat the last answer where there is none now."""
    answer = ask()
    if answer is not None:
        answers[:] = [answer]
    return answers[-1]


def cancel_orphans():
    """Cancel Slurm jobs that a killed head left in this directory; they snapshot, and their range resumes.

    A job that ends after its successor would take the successor's outputs with it: none may be left.
    """
    orphans = slurm_jobs()
    if not orphans:
        return
    logger.warning(
        f"A workflow in this directory was killed: cancelling its Slurm jobs {' '.join(orphans)}."
    )
    while orphans:
        subprocess.run(["scancel", *orphans], check=False)
        time.sleep(2)
        orphans = slurm_jobs()


def slurm_jobs():
    """List the ids of this user's live Slurm jobs that belong to this directory, but for the head's own."""
    if shutil.which("squeue") is None or not SLURM_LOGS.exists():
        return []
    asked = ["squeue", "-h", "--me", "-o", "%i|%j|%Z"]
    while (told := subprocess.run(asked, capture_output=True, text=True)).returncode:
        logger.warning(
            f"Slurm does not tell which jobs are left here, asking again: {told.stderr.strip()}"
        )
        time.sleep(20)
    rows = [line.split("|", 2) for line in told.stdout.splitlines()]
    here = os.path.realpath(".")
    return [
        job
        for job, name, folder in rows
        if name.startswith("crpipe_")
        and os.path.realpath(folder) == here
        and job != os.environ.get("SLURM_JOB_ID")
    ]


# --- who waits for whom ----------------------------------------------------------------------------------


def trains():
    """Tell whether training is among the targets of this call."""
    asked = workflow.dag_settings.until or workflow.dag_settings.targets or {"all"}
    return any(
        name in OF_TRAINING or Path(name).is_relative_to(PATHS.runs) for name in asked
    )


def asked_for(target):
    """Tell whether ``target`` is what this call was asked for."""
    return target in (workflow.dag_settings.targets or {"all"})


def before(name, steps):
    """Name the range that stands ``steps`` before ``name``, if there is one."""
    index = RANGES.index(name) - steps
    return RANGES[index] if index >= 0 else None


def reference_ranges():
    """List the ranges that the quantile threshold is taken from."""
    return list(SETTINGS.split.reference_ranges) or RANGES[:1]


def staging_turn(wildcards):
    """Hold a range back until the range look_ahead before it is trained on, or split if nothing trains.

    The edge differs between targets and look-aheads. It stands only while the range still has to be staged,
    and Snakemake's memory of it is dropped, or else a change of either would copy every range again.
    """
    name, earlier = wildcards.range, before(wildcards.range, SETTINGS.source.look_ahead)
    if not workflow.is_main_process:
        return []
    workflow.persistence.cleanup_metadata(IOFile(str(PATHS.staged(name))))
    if earlier is None:
        return []
    # The threshold needs its reference ranges before anything is split: they cannot wait for a split one.
    begun = PATHS.staged(name).exists() or PATHS.ledger(name).exists()
    if begun or (SETTINGS.split.quantile is not None and name in reference_ranges()):
        return []
    return str(PATHS.receipt(earlier) if trains() else PATHS.ledger(earlier))


def chosen_threshold(wildcards):
    """Name the file with the quantile threshold, if one is asked for."""
    return [] if SETTINGS.split.quantile is None else str(PATHS.threshold())


def parent_receipt(wildcards):
    """Name the receipt of the range before, on whose checkpoint this one goes on."""
    parent = before(wildcards.range, 1)
    return [] if parent is None else str(PATHS.receipt(parent))


# --- resources -------------------------------------------------------------------------------------------


def memory_mb(verb):
    """Ask for a verb's configured memory, and for as much more with every retry."""

    def asked(wildcards, attempt):
        return attempt * getattr(SETTINGS.resources, verb).mem_mb

    return asked


def growing_minutes(verb):
    """Ask for a verb's configured run time, and for as much more with every retry: it starts over."""

    def asked(wildcards, attempt):
        return attempt * getattr(SETTINGS.resources, verb).runtime_minutes

    return asked


def gpus(count):
    """Spell a request for GPUs on each node, of the type that the profile names; "" for none."""
    of_profile = workflow.resource_settings.default_resources or {}
    kind = of_profile["gpu_type"].raw if "gpu_type" in of_profile else ""
    return ":".join(["gpu", *([kind] if kind else []), str(count)]) if count else ""


def several_nodes():
    """Spell what a training job on several nodes asks for beside the rest: one torchrun on each."""
    nodes = SETTINGS.train.nodes
    return (
        {"mpi": "srun", "nodes": nodes, "tasks": nodes, "tasks_per_gpu": 0}
        if nodes > 1
        else {}
    )


def deadline(wildcards, resources):
    """Let a job of a cluster snapshot and stop by itself before its run time is over."""
    if not workflow.remote_exec:
        return ""
    return f"--max-minutes {max(0.9 * resources.runtime, resources.runtime - 5):g}"


# --- what failed -----------------------------------------------------------------------------------------


def what_failed(messages, since):
    """Say in a few lines which jobs failed and why, what waits for them, and how to go on.

    ``messages`` is the path of Snakemake's own log of this call.
    """
    lines = explain(PATHS, Path(messages).read_text(), since)
    waiting = [name for name in RANGES if not PATHS.receipt(name).exists()]
    if trains() and waiting:
        lines.append(
            f"Training waits at range {waiting[0]} ({len(waiting)} of {len(RANGES)} still to do)."
        )
    lines.append("Mend the cause; the same command goes on where this one stopped:")
    lines.append(f"  {shlex.join(['snakemake', *sys.argv[1:]])}")
    return "\n  ".join(["\ncrpipe: the workflow did not finish.", *lines])
