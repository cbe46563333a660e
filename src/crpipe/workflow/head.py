"""The head: the one workflow process of a directory, and what it clears up after one that was killed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, DiskError, LeaseError, MachineError
from crpipe.core.files import replacing, writing
from crpipe.core.lease import is_claimed, is_held, lease
from crpipe.core.mounts import mount_of
from crpipe.core.raw_files import lease_folder
from crpipe.events.split_record import KEY, LISTING, SplitRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from crpipe.core.lease import Row
    from crpipe.core.paths import Paths

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

    def seize(row: Row) -> None:
        refuse_unasked(path, row, list(jobs()))

    try:
        held = lease(folder, wait_s=WAIT_S if executes else 0.0, say=say, seize=seize)
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
    if not jobs or (mount is not None and not mount.may_lock_locally()):
        return
    place = mount.describe() if mount else "a file system of unknown type"
    raise LeaseError(
        f"{path}: process {row.get('pid')} on {row.get('host')} runs the workflow of this directory, or was "
        f"killed there; its jobs {' '.join(jobs)} would be cancelled. The locks of {place} may hold within "
        f"one host only. See on {row.get('host')} whether it lives (ps -p {row.get('pid')}), and stop it; "
        f"then: rm {path}, and run the same command again"
    )


def check_folder(folder: Path) -> None:
    """Raise ConfigError for a working directory whose name does not reach the jobs of a cluster as it is."""
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
            with replacing(target) as part:
                shutil.copyfile(source, part)


def drop_spent_tables(paths: Paths, names: Iterable[str]) -> None:
    """Remove the staged tables of split ranges whose raw copies are gone; only the holder of the lease may.

    Snakemake removes them when a split ends, unless it dies in that moment. Such a table promises raw copies:
    a range whose shards are deleted later would not be staged again.
    """
    for name in names:
        staged = paths.staged(name)
        if not is_present(staged) or is_present(paths.raw(name)) or _is_worked_on(paths, name):
            continue
        # A split whose outputs Snakemake deleted restores them from its record, for which it needs the table.
        if _is_split(paths, name) or not is_present(paths.split_record(name)):
            staged.unlink()


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
                writing(folder),
                tempfile.TemporaryFile(dir=folder) as file,
            ):
                file.write(bytes(_TRIED))
                file.flush()
        except MachineError as error:
            return error
    return None
