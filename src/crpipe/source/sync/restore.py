"""`crpipe restore`: brings a run back from where it was synced to, each file verified by its hash."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import Entry
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, SourceError, TransferError
from crpipe.core.files import make_folder, publish, remove_tree, replacing, sha256, writing
from crpipe.core.lease import lease
from crpipe.source.copies import Copies, CopyRules, check_free_space
from crpipe.source.listing import described
from crpipe.source.retries import Deadline
from crpipe.source.sync.index import INDEX, RESULTS, read_index
from crpipe.source.sync.send import LEASE, check_place

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.core.text import Progress
    from crpipe.source.sync.index import CopiedFile, Files, SyncJob

_INCOMING = ".restore"
_SHOWN = 3
_REMEDY = "where the run is, type `crpipe sync --verify`: it sends again what is missing or damaged here"
# Replaced in the copy while the run goes on: where one does not fit the index, the run goes on without it.
_GROWING = ("tensorboard/*/*", "*.jsonl", "snapshot-*.pt")


def restore_run(job: SyncJob, progress: Progress) -> int:
    """Bring back every file that the index names; return how many. After a crash the next call goes on.

    Files that are here already must be those of the index. Raise ConfigError when they are others,
    TransferError when the copy is damaged, ListingError when there is none.
    """
    check_place(job)
    with lease(job.folder / LEASE, wait_s=0.0, say=progress.say):
        files = _fetch_index(job, progress)
        missing = {name: file for name, file in files.items() if not is_present(job.place(name))}
        _refuse_others(job, {name: file for name, file in files.items() if name not in missing})
        incoming = job.folder / _INCOMING / "files"
        _fetch(job, missing, incoming, progress)
        # What other jobs trust comes last, as always.
        for name in sorted(missing, key=lambda name: (name.startswith("ranges/"), name)):
            file = missing[name]
            _put(job, name, file, incoming / str(_grows(file)) / file.at, progress)
        remove_tree(job.folder / _INCOMING)
    kept = len(files) - len(missing)
    progress.say(f"{job.folder}: {len(missing)} files restored from {job.to}, {kept} were here already")
    return len(missing)


def _fetch_index(job: SyncJob, progress: Progress) -> Files:
    """Get the index of the copy."""
    folder, uri = job.folder / _INCOMING / "index", job.uri(INDEX)
    remove_tree(folder)
    deadline = Deadline(job.source.deadline_s, f"restoring from {job.to}", progress.say)
    entries = described(job.source, [uri], [INDEX], "sync.to", deadline)
    _copy(job, list(entries), folder, progress)
    return read_index((folder / INDEX).read_text(), uri)


def _refuse_others(job: SyncJob, files: Files) -> None:
    """Raise ConfigError when a file is here that differs from the copy's."""
    other = [name for name, file in files.items() if sha256(job.place(name)) != file.sha256]
    if other:
        more = f", … ({len(other)} in all)" if len(other) > _SHOWN else ""
        raise ConfigError(
            f"{', '.join(str(job.place(name)) for name in other[:_SHOWN])}{more}: here, and not as in "
            f"{job.to}/{job.run}; restore into an empty directory; no file was replaced"
        )


def _fetch(job: SyncJob, files: Files, folder: Path, progress: Progress) -> None:
    """Copy what is missing into ``folder``; growing files, as far as that is possible."""
    check_free_space(job.folder, sum(file.size for file in files.values()), "restored files")
    for grows in (False, True):
        chosen = [file for file in files.values() if _grows(file) is grows]
        entries = [Entry(file.at, job.uri(file.at), file.size, None) for file in chosen]
        try:
            _copy(job, entries, folder / str(grows), progress, aside=len(chosen) if grows else 0)
        except SourceError:
            if not grows:
                raise
            for entry in entries:  # one that changed since ends the copying of all
                with contextlib.suppress(SourceError):
                    _copy(job, [entry], folder / str(grows), progress, aside=1)


def _grows(file: CopiedFile) -> bool:
    return any(PurePosixPath(file.at).match(pattern) for pattern in _GROWING)


def _copy(job: SyncJob, entries: list[Entry], folder: Path, progress: Progress, aside: int = 0) -> None:
    """Copy files; up to ``aside`` of them may be bad."""
    with writing(folder):
        make_folder(folder)
    rules = CopyRules(f"run {job.run}", _REMEDY, "quarantine" if aside else None, aside)
    Copies(folder, entries, job.source, rules, progress).run()


def _put(job: SyncJob, name: str, file: CopiedFile, copy: Path, progress: Progress) -> None:
    """Move a verified copy to its place, with the time of the original, on which the workflow relies."""
    if not is_present(copy) or sha256(copy) != file.sha256:
        copy.unlink(missing_ok=True)  # else the next call takes it for the file, by its size
        if not _grows(file):
            raise TransferError(f"{job.uri(file.at)}: not the file that was sent (another sha256); {_REMEDY}")
        progress.say(f"warning: {name} is left out: {job.uri(file.at)} was replaced after the last sync")
        return
    target = job.place(name)
    if is_present(target):  # written here while the copies came
        _refuse_others(job, {name: file})
        return
    os.utime(copy, ns=(file.mtime_ns, file.mtime_ns))
    with writing(target):
        make_folder(target.parent)
        if not name.startswith(f"{RESULTS}/"):
            publish(copy, target)
            return
    with replacing(target) as part:  # the results may be on another disk
        shutil.copy2(copy, part)
