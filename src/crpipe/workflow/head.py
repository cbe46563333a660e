"""The head: the one workflow process of a directory, how it stops, what it clears up, how it ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import lease_folder
from crpipe.campaign.split_record import KEY, LISTING, SplitRecord
from crpipe.core.causes import is_present, look_at
from crpipe.core.errors import ConfigError, DiskError, LeaseError, MachineError, QueueError
from crpipe.core.files import copy_file, disk_errors, remove_tree
from crpipe.core.lease import Row, is_claimed, is_held, lease, mount_of
from crpipe.core.paths import OUTLIERS, Paths
from crpipe.core.signals import HEAD_SIGNALS, StopRequest
from crpipe.core.text import printable
from crpipe.report.failures import explain
from crpipe.report.queues import QUEUES
from crpipe.workflow.monitor import RUN, WorkflowRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign

WAIT_S = 10.0
_TRIED = 1 << 16  # bytes
# Snakemake's Slurm plugin puts the command of a job between double quotes, and Slurm reads patterns in names.
_NOT_FOR_SLURM = frozenset('$`\\"%')


def take_lease(
    folder: Path, *, executes: bool, say: Callable[[str], None], jobs: Callable[[], Iterable[str]] = tuple
) -> contextlib.ExitStack | None:
    """Take the lease of ``folder``; closing the result, or the end of the process, gives it back.

    A call that runs no jobs gets None where another head works, or where no lease can be had; one that
    ``executes`` raises LeaseError, or DiskError.
    jobs: lists the jobs that were left here; after a head on another host they are not touched unasked.
    """
    path = folder / "lease"
    if not executes and is_claimed(path):
        return None
    claim = contextlib.ExitStack()

    def on_takeover(row: Row) -> None:
        refuse_unasked(path, row, list(jobs()))

    try:
        held = lease(folder, wait_s=WAIT_S if executes else 0.0, say=say, on_takeover=on_takeover)
        claim.enter_context(held)
    except (LeaseError, DiskError):
        if executes:
            raise
        return None
    return claim


def refuse_unasked(path: Path, row: Row, jobs: list[str]) -> None:
    """Raise LeaseError when jobs of a head on another host would be cancelled, and that head may live.

    It does not count any more in its lease, but where locks hold within one host only, that is all there is
    to see of it: it may be suspended, or cut off from this file system for a while.
    """
    mount = mount_of(path)
    if not jobs or (mount is not None and not mount.locks_are_per_host()):
        return
    file_system = mount.describe() if mount else "a file system of unknown type"
    raise LeaseError(
        f"{path}: process {row.get('pid')} on {row.get('host')} runs the workflow of this directory, or was "
        f"killed there; its jobs {' '.join(jobs)} would be cancelled. The locks of {file_system} may hold "
        f"within one host only. See on {row.get('host')} whether it lives (ps -p {row.get('pid')}), and stop "
        f"it; then: rm {path}, and run the same command again"
    )


def check_folder(folder: Path, *, is_shared: bool = True) -> None:
    """Raise ConfigError for a working directory that jobs do not see, or whose name does not reach them."""
    if not is_shared:
        raise ConfigError(
            "packs: false, and --shared-fs-usage says that jobs see no file of this machine: set packs: true "
            "(docs/anywhere.md)"
        )
    for character in str(folder):
        if character in _NOT_FOR_SLURM or not character.isprintable():
            raise ConfigError(
                f"{str(folder)!r}: the character {character!r} in the path of the working directory would be "
                "replaced or executed when jobs are submitted; move the campaign to a directory without it"
            )


def remove_locks(folder: Path) -> int:
    """Remove Snakemake's locks in ``folder`` and count them.

    Only the holder of the lease may: whoever left them is dead, or it would hold the lease.
    """
    stale = list(folder.glob("*"))
    for path in stale:
        path.unlink()
    return len(stale)


def remove_marks(folder: Path) -> None:
    """Remove Snakemake's marks of incomplete outputs in ``folder``; only the holder of the lease may.

    Every output appears whole or not at all, so one that exists is complete; a mark that a killed workflow
    left would stay for ever, and `snakemake --report` would refuse the finished campaign.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()


def resume_deletions(paths: Paths, names: Iterable[str]) -> None:
    """Remove the ledger of each range with all outputs and raw copies; only the holder of the lease may.

    A split that was killed while it deleted its raw copies would leave them for ever, because its outputs
    exist. Without the ledger the workflow runs that split again: it restores its outputs from its record, and
    deletes the copies.
    """
    for name in names:
        if _is_worked_on(paths, name):
            continue
        if is_present(paths.raw(name)) and is_present(paths.split_record(name)) and _is_split(paths, name):
            paths.ledger(name).unlink()


def keep_listings(paths: Paths, names: Iterable[str]) -> None:
    """Keep the listing of each finished range in its record; give a range back the one that it has lost.

    A listing that is started again is deleted first, and nothing asks for that of a finished range: it would
    be gone where that job died. An earlier crpipe kept none.
    """
    for name in names:
        record = SplitRecord.of(paths, name)
        kept, listing = record.folder / LISTING, record.listing
        if is_present(record.folder / KEY) and is_present(kept) != is_present(listing):
            source, target = (listing, kept) if is_present(listing) else (kept, listing)
            copy_file(source, target)


def drop_spent_tables(paths: Paths, names: Iterable[str]) -> None:
    """Remove the tables of raw copies that are gone, of split ranges; only the holder of the lease may.

    Snakemake removes them when a split ends, unless it dies in that moment. Such a table promises raw copies:
    a range whose shards are deleted later would not be staged again.
    """
    for name in names:
        tables = [table for table in (paths.staged(name), paths.converted(name)) if is_present(table)]
        if not tables or is_present(paths.raw(name)) or _is_worked_on(paths, name):
            continue
        # A split whose outputs Snakemake deleted restores them from its record, for which it needs the table.
        if _is_split(paths, name) or not is_present(paths.split_record(name)):
            for table in tables:
                table.unlink()


def drop_skipped_copies(paths: Paths, names: Iterable[str]) -> None:
    """Delete the raw copies of skipped ranges, which nobody will read; only the holder of the lease may."""
    for name in names:
        if not _is_worked_on(paths, name):
            for table in (paths.staged(name), paths.converted(name)):
                table.unlink(missing_ok=True)
            remove_tree(paths.raw(name))


def _is_worked_on(paths: Paths, name: str) -> bool:
    """Return whether a job stages or splits a range: one of another directory's workflow."""
    return any(is_held(folder / "lease") for folder in (lease_folder(paths.raw(name)), paths.shards(name)))


def _is_split(paths: Paths, name: str) -> bool:
    return all(is_present(path) for path in paths.split_outputs(name))


def refused_write(folders: Iterable[Path]) -> MachineError | None:
    """Try to write into each folder that is there; give the error of the first that cannot be written.

    A job that failed on a full disk may have been unable to say so: its log and its journal are on that disk.
    """
    for folder in folders:
        try:
            with (
                contextlib.suppress(FileNotFoundError),
                disk_errors(folder),
                tempfile.TemporaryFile(dir=folder) as file,
            ):
                file.write(bytes(_TRIED))
                file.flush()
        except MachineError as error:
            return error
    return None


def is_page_due(paths: Paths) -> bool:
    """Return whether the page of the run is missing, or older than its last job: no call wrote it since."""
    journals = (paths.data_journal(), paths.train_journal())
    page, *jobs = map(look_at, (paths.report(), *journals))
    return page is None or any(job is not None and job.st_mtime > page.st_mtime for job in jobs)


# Orphans: jobs of this directory in a cluster's queue, whose workflow was killed.


PATIENCE_S = 60.0  # for one answer of squeue
ASK_AGAIN_S = 20.0
CHECK_S = 2.0


def cancel_orphans(own_job: str, say: Callable[[str], None]) -> None:
    """Cancel the jobs that a killed workflow left, and wait until they are gone.

    They take a snapshot, and their range resumes. None may be left: a job that ends after its successor would
    delete the successor's outputs. ``own_job``: the id of the job in which this workflow runs, or "".
    """
    for queue, (_, _, program) in QUEUES.items():
        orphans = _left_in(queue, own_job, say)
        if orphans:
            say(f"A workflow in this directory was killed: cancelling its {queue} jobs {' '.join(orphans)}.")
        while orphans:
            # S603: ids that the queue itself gave
            subprocess.run([shutil.which(program) or program, *orphans], stdout=2, check=False)  # noqa: S603
            time.sleep(CHECK_S)
            orphans = _left_in(queue, own_job, say)


def jobs_left(own_job: str, say: Callable[[str], None]) -> list[str]:
    """List the ids of this directory's live jobs in a cluster's queue, without the Slurm job ``own_job``."""
    return [number for queue in QUEUES for number in _left_in(queue, own_job, say)]


def _left_in(queue: str, own_job: str, say: Callable[[str], None]) -> list[str]:
    """List the ids of the live jobs in one queue; ask until it answers."""
    has_queue, ask, _ = QUEUES[queue]
    if not has_queue():
        return []
    while True:
        try:
            return [job.number for job in ask(PATIENCE_S) if (queue, job.number) != ("Slurm", own_job)]
        except QueueError as error:
            say(f"{error}; asking again in {ASK_AGAIN_S:g} s which jobs are left here")
            time.sleep(ASK_AGAIN_S)


# Ctrl-C and SIGTERM of the workflow's process: its local jobs are asked to stop, each once, and it ends.


_LOOK_S = 0.3
STOPPING = "stopping: jobs on this machine write a snapshot, those of a cluster are cancelled"
_AGAIN = "already stopping; waiting for the jobs to write their snapshots"
# Each job is started in a session of its own: Ctrl-C in a terminal, or a terminal that is closed, reaches the
# head alone, and a job gets each signal once.
OWN_SESSION = {"start_new_session": True}


def head_stop() -> StopRequest:
    """Return what takes the signals of the workflow's process."""
    return StopRequest(again=lambda: _print(_AGAIN))


def end_early(stop: StopRequest, clean_up: Callable[[], None] = lambda: None) -> None:
    """End this process at once at the first signal, as long as no job can have been started.

    An exception could come in the middle of a library that swallows it, or prints it as a fault.
    """

    def end() -> None:
        clean_up()
        if not RUN.watched:
            _write(what_stopped(RUN.words()))
        os._exit(stop.exit_code)

    stop.listen(HEAD_SIGNALS, end)


def stop_jobs(stop: StopRequest, jobs: Callable[[], Iterable[int]], terminate: Callable[[int], None]) -> None:
    """Ask each local job to stop at the first signal, and interrupt the workflow.

    jobs: names the local jobs that run now. terminate: sends SIGTERM to one of them.
    Snakemake's scheduler sets SIGTERM to something else: this is called after it.
    """

    def ask() -> None:
        """Ask each job once; also those that were about to begin when the signal came."""
        asked: set[int] = set()
        while True:
            for job in set(jobs()) - asked:
                asked.add(job)
                terminate(job)
            threading.Event().wait(_LOOK_S)

    def begin() -> None:
        _print(STOPPING)
        threading.Thread(target=ask, name="stop", daemon=True).start()
        raise KeyboardInterrupt

    stop.listen(HEAD_SIGNALS, begin)


def run_before_jobs(words: Sequence[str], stop: StopRequest, look: Callable[[], None]) -> int:
    """Run a command in a process of its own until it ends; a signal asks it to stop, as it does jobs.

    Return its exit code. look: called again and again while it works, and at its end.
    """
    with subprocess.Popen(words, start_new_session=True) as child:  # noqa: S603 - this crpipe, as its jobs call it
        stop.listen(HEAD_SIGNALS, lambda: _print(STOPPING))
        while child.poll() is None:
            if stop.number:
                child.terminate()  # again: what runs then may have ended just before
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(CHECK_S if stop.number else _LOOK_S)
            look()
    return child.returncode


def _print(text: str) -> None:
    _write(f"\ncrpipe: {text}")


def _write(text: str) -> None:
    """Print within a handler of signals, where the buffers of Python may be in use."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, f"{text}\n".encode())


# What is printed when a workflow fails: which jobs and why, what waits for them, and how to continue.


def what_failed(
    campaign: Campaign,
    messages: str,
    ends: Mapping[Path, int],
    run: WorkflowRun,
    *,
    training: bool,
    machine: MachineError | None = None,
    more: Sequence[str] = (),
) -> str:
    """Describe in a few lines why the workflow did not finish.

    messages: Snakemake's own log of this call; ends: where the journals ended when it began. machine: what
    the workflow's own process cannot write any more; then it is the cause, and logs and journals may lack the
    rest. more: lines about ranges that are not skipped.
    """
    lines = explain(campaign.paths, messages, ends) if machine is None else [str(machine)]
    left = [link for link in campaign.chain.links if not {*link.ranges} <= {*run.skipped}]
    names = [link.name for link in left if link.name != OUTLIERS]
    waiting = [name for name in names if not is_present(campaign.paths.receipt(name))]
    if training and waiting:
        noun = "range" if campaign.chain.one_to_one else "link"
        lines.append(f"Training waits for {noun} {waiting[0]} ({len(waiting)} of {len(names)} still to do).")
    for name in run.skipped:
        record = campaign.paths.skipped(name)
        lines.append(f"{name} is skipped from now on (ranges.on_failure), as long as {record} is there.")
    lines += more
    fix = "" if run.skipped and not run.failures else "Fix the cause; "
    lines.append(f"{fix}{'t' if fix else 'T'}he same command continues where this one stopped:")
    lines.append(f"  {shlex.join(run.words())}")
    return printable("\n  ".join(["\ncrpipe: the workflow did not finish.", *lines]))


def what_stopped(words: Sequence[str]) -> str:
    """Report that the workflow ended because someone asked for it, and the command that continues."""
    return printable(f"\nStopped as asked; continue with: {shlex.join(words)}")
