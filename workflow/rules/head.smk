"""The one workflow process of this directory: its lease, what a killed one left behind, why one failed or stopped."""

import atexit
import contextlib
import logging
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.enums import Quietness
from snakemake.settings.types import SharedFSUsage
from snakemake.shell import shell as job_shell

from crpipe.core.causes import machine_error
from crpipe.core.errors import CrpipeError, MachineError, code_of
from crpipe.core.files import disk_errors, make_folder, write_text
from crpipe.core.paths import HEAD_FOLDER
from crpipe.report.failures import kinds_of
from crpipe.core.journal import ends_of
from crpipe.workflow import htcondor, slurm
from crpipe.workflow.rules import only_looks
from crpipe.workflow.monitor import FOR_A_PERSON, jobs_in, jobs_table, logs_line
from crpipe.workflow.head import (
    OWN_SESSION,
    check_folder,
    drop_skipped_copies,
    drop_spent_tables,
    end_early,
    is_page_due,
    keep_listings,
    refused_write,
    remove_locks,
    remove_marks,
    resume_deletions,
    run_before_jobs,
    stop_jobs,
    take_lease,
)
from crpipe.workflow.head import cancel_orphans, jobs_left
from crpipe.workflow.head import what_failed, what_stopped
from crpipe.workflow.skipped import TRIES, skip_bad_ranges

# Where the journals ended when this call began: what follows is about its own jobs.
ENDS = ends_of(PATHS.data_journal(), PATHS.train_journal())
# Only a call that runs jobs is stopped with care.
EXECUTES = not (workflow.output_settings.dryrun or only_looks(sys.argv))
WORDS = RUN.words()
FOLDERS = (Path(".snakemake"), PATHS.results, PATHS.run_dir())


def log_for_person(text):
    """Log a line that a person should see while nothing else happens."""
    logger.info(text, extra=FOR_A_PERSON)


# --- in and out ------------------------------------------------------------------------------------------


class JobsOfQuietDryRun(logging.Handler):
    """Prints the jobs of a quiet dry run, of which Snakemake shows nothing."""

    def emit(self, record):
        """Print the numbers of the jobs, and nothing else."""
        if str(getattr(record, "event", "")) == "run_info":
            print("\n".join(jobs_table(jobs_in(record.stats))))
            logger.removeHandler(self)  # Snakemake may log them twice


def connect():
    """Connect the screen to the campaign; without a screen, show the jobs of a quiet dry run."""
    quiet = workflow.output_settings.quiet or set()
    if RUN.monitor is not None:
        RUN.monitor.campaign = CAMPAIGN
    elif workflow.output_settings.dryrun and Quietness.PROGRESS in quiet:
        logger.addHandler(JobsOfQuietDryRun())


def local_jobs():
    """Name the jobs that run as processes of this one, by Snakemake's numbers."""
    return list(getattr(job_shell, "_processes", ()))


def begin_jobs():
    """From now on a signal stops the local jobs: Snakemake's scheduler has just set its own handler."""
    if not workflow.is_main_process:
        return
    stop_jobs(STOP, local_jobs, job_shell.terminate)
    getattr(job_shell, "_process_args", {}).update(OWN_SESSION)
    outlive_full_disks()
    if SETTINGS.ranges.on_failure == "skip":
        for each in workflow.rules:
            if each.name in ("list_range", "stage", "convert", "split"):
                each.restart_times = max(TRIES - 1, each.restart_times)
    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(
                lambda record: not STOP.number
            )  # what is stopped has not failed
    RUN.began = True
    if RUN.monitor is not None:
        log_for_person(logs_line(CAMPAIGN, logger.handlers))


def keep_command():
    """Keep the command of a workflow that nothing refused: `status` names it; a full disk stops no job."""
    if workflow.is_main_process:
        with contextlib.suppress(OSError, MachineError):
            make_folder(PATHS.command().parent)
            write_text(PATHS.command(), f"{shlex.join(WORDS)}\n")


def begin_or_end(dag):
    """Refuse a disk that filled up before any job; where none is left, write the page that a killed call owes."""
    with refusing():
        if trouble := refused_write(FOLDERS):
            raise trouble
    if not len(dag) and writes_page() and is_page_due(PATHS):
        shell("{COMMAND} report || true")


def writes_page():
    """Return whether this call ends with the page; `make demo` writes it itself."""
    return "all" in asked_for() and "MAKELEVEL" not in os.environ


def outlive_full_disks():
    """Trust the jobs, and not what Snakemake notes of them: nothing reads these notes later.

    What else its own work cannot write ends the workflow in words.
    """
    notes, scheduler = workflow.persistence, workflow.scheduler
    write, schedule = getattr(notes, "_io_write", None), scheduler.schedule

    def note(*words, **options):
        with contextlib.suppress(OSError):
            write(*words, **options)

    def scheduled():
        try:
            return schedule()
        except (OSError, WorkflowError) as error:
            TROUBLE.append(machine_error(error))
            if TROUBLE[-1] is None:
                raise
            return False

    scheduler.schedule = scheduled
    if (
        write is not None
    ):  # other versions of Snakemake, and its database, have other names for it
        notes._io_write = note


def forget_spent():
    """Delete the packs in a storage that `crpipe unpack` had no use for: their work is done again."""
    logs = {PATHS.run_dir() / "logs/train": PATHS.pack}
    logs[PATHS.results / "logs/split"] = PATHS.range_pack
    for folder, pack_of in logs.items():
        for mark in sorted(folder.glob(f"*.log{SPENT}")):
            if STORAGE:
                pack = pack_of(mark.name.removesuffix(f".log{SPENT}"), out=True)
                places = workflow.storage_registry.default_storage_provider
                try:
                    workflow.async_run(
                        places.object(f"{STORAGE}/{pack}").managed_remove()
                    )
                except WorkflowError as error:  # unpacked again, it says once more why
                    logger.warning(f"{STORAGE}/{pack}: cannot be deleted ({error})")
            mark.unlink()


def give_back():
    """Leave nothing behind before the first job: no lock, and a lease that is given back."""
    if HEAD is not None:
        remove_locks(Path(".snakemake/locks"))
        HEAD.close()


HEAD = None
TROUBLE = (
    []
)  # errors of the machine that ended the workflow itself, and not one of its jobs


# --- the lease -------------------------------------------------------------------------------------------


def take_lease_and_clean_up():
    """Take this directory's lease and clear up after a killed workflow; return what holds the lease."""
    executes = EXECUTES
    own_job = os.environ.get("SLURM_JOB_ID", "")
    lease = take_lease(
        Path(HEAD_FOLDER),
        executes=executes,
        say=log_for_person,
        jobs=lambda: jobs_left(own_job, logger.warning),
    )
    if lease is not None and remove_locks(Path(".snakemake/locks")):
        logger.warning(
            "A workflow in this directory was killed: its locks are removed, its jobs resume."
        )
    if executes:
        for folder in (PATHS.results, PATHS.runs):
            with disk_errors(folder):
                make_folder(folder)
        adapt_plugins()
        cancel_orphans(own_job, logger.warning)
        keep_listings(PATHS, RANGES)
        drop_spent_tables(PATHS, RANGES)
        drop_skipped_copies(PATHS, SETTINGS.given_up())
        resume_deletions(PATHS, RANGES)
        forget_spent()
        atexit.register(lease.close)
    if lease is not None:
        remove_marks(Path(".snakemake/incomplete"))
        if not executes:
            lease.close()
    return lease


def check_submission():
    """Refuse a working directory that jobs of a cluster would not find, and bindings that its pool refuses."""
    if workflow.non_local_exec:
        with refusing():
            if not SETTINGS.packs:
                shared = workflow.storage_settings.shared_fs_usage
                check_folder(Path.cwd(), is_shared=SharedFSUsage.INPUT_OUTPUT in shared)
            plugin = sys.modules[workflow.executor_plugin.executor.__module__]
            if plugin.__name__ == htcondor.PLUGIN:
                htcondor.check_plugin(plugin, version(htcondor.DISTRIBUTION))
                htcondor.check_bindings(plugin.htcondor)


def work_ahead():
    """Run the commands of a small campaign in one process, before any job; a signal ends both.

    What failed there is tried again by its job, whose attempts alone count.
    """
    global ENDS
    log_for_person(
        "Few raw files: one process works on them for up to a minute, jobs do the rest; "
        f"logs: {PATHS.results}/logs, {PATHS.run_dir()}/logs"
    )
    RUN.ahead = True
    kept = []

    def keep_once_it_works():
        with contextlib.suppress(MachineError):
            if (
                not kept
                and ends_of(PATHS.data_journal(), PATHS.train_journal()) != ENDS
            ):
                kept.append(keep_command())

    words = [*shlex.split(COMMAND), "ahead", *sorted(asked_for())]
    code = run_before_jobs(words, STOP, keep_once_it_works)
    if STOP.number:
        give_back()
        if not RUN.watched:
            RUN.end(what_stopped(WORDS))
        os._exit(STOP.exit_code)
    if code > 1:  # a configuration that no job could work with; it has been said
        sys.exit(code)
    ENDS = ends_of(PATHS.data_journal(), PATHS.train_journal())
    end_early(STOP, give_back)


def check_workload():
    """Compare the workload with reader, tables and metrics before any job, in a process that imports torch.

    Once a run has begun, only keys that may change under it can be wrong.
    """
    free = SETTINGS.train.monitor or SETTINGS.train.loggers
    if trains() and (free or not PATHS.run_config().exists()):
        checked = subprocess.run(
            [*shlex.split(COMMAND), "config", "check"], stdout=subprocess.DEVNULL
        )
        if checked.returncode:
            sys.exit(checked.returncode)


def runs_bare_commands():
    """Return whether a job is nothing but its command: no other software to activate, no files to fetch."""
    return (
        not workflow.deployment_settings.deployment_method
        and {SharedFSUsage.INPUT_OUTPUT, SharedFSUsage.SOFTWARE_DEPLOYMENT}
        <= workflow.storage_settings.shared_fs_usage
        and workflow.storage_settings.default_storage_provider is None
        and not workflow.output_settings.benchmark_extended
    )


def adapt_plugins():
    """Let the plugins of clusters submit bare commands; keep the Slurm plugin to what every Slurm answers."""
    plugin = sys.modules.get(htcondor.PLUGIN)
    if plugin is not None:
        htcondor.adapt_plugin(
            plugin, version(htcondor.DISTRIBUTION), runs_bare_commands
        )
    plugin = sys.modules.get("snakemake_executor_plugin_slurm")
    if plugin is not None:
        slurm.keep_to_squeue(plugin, version(slurm.DISTRIBUTION))
        steps = sys.modules["snakemake_executor_plugin_slurm_jobstep"]
        slurm.run_without_snakemake(plugin, steps, runs_bare_commands)


def end(messages):
    """Report why this call did not finish, and inform a person of a failure; end with the code of a signal.

    messages: Snakemake's own log.
    """
    if STOP.number:
        if not RUN.watched:
            RUN.end(what_stopped(WORDS))
        raise SystemExit(STOP.exit_code)
    text = Path(messages).read_text(errors="replace")
    trouble = next(iter(TROUBLE), None) or refused_write(FOLDERS)
    RUN.failures, more = kinds_of(PATHS, text, ENDS), []
    try:
        if trouble is None:
            skipped, more = skip_bad_ranges(CAMPAIGN, RUN.failures)
            RUN.skip(skipped)
    except CrpipeError as error:
        more = [f"ranges.on_failure: {error}"]
    if trouble is not None:
        kind = type(trouble).__name__
        RUN.failures = [
            {"verb": "workflow", "name": "", "kind": kind, "cause": str(trouble)}
        ]
    RUN.end(
        what_failed(
            CAMPAIGN, text, ENDS, RUN, training=trains(), machine=trouble, more=more
        )
    )
    if SETTINGS.notify.failure and not RUN.watched:
        shell("{COMMAND} notify failure || true")
    if {code_of(each["kind"]) for each in RUN.failures} == {MachineError.exit_code}:
        raise SystemExit(MachineError.exit_code)


if workflow.is_main_process:
    connect()
    if EXECUTES:
        end_early(STOP, give_back)
    with refusing():
        HEAD = take_lease_and_clean_up()
        for each in CAMPAIGN.given_up:
            log_for_person(f"skipped: {each.describe()}")
