"""`crpipe sync --from`: brings a run back from where it was synced to, each file verified by its hash."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import Entry
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, SourceError, TransferError
from crpipe.core.files import atomic_write, disk_errors, make_folder, publish, remove_tree, sha256
from crpipe.core.lease import lease
from crpipe.core.text import counted
from crpipe.source.copies import Copies, CopyRules, check_free_space
from crpipe.source.range_files import describe_files
from crpipe.source.retries import Deadline
from crpipe.source.sync import INDEX, LEASE, RESULTS, CopiedFile, CopyIndex, Files, check_place, file_here
from crpipe.source.uris import SourceOptions

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress

_INCOMING = ".restore"
_SHOWN = 3
_REMEDY = "where the run is, type `crpipe sync --verify`: it sends again what is missing or damaged here"
# Replaced in the copy while the run goes on: where one does not fit the index, the run goes on without it.
_GROWING = ("tensorboard/*/*", "*.jsonl", "snapshot-*.pt")


def restore_run(campaign: Campaign, progress: Progress) -> int:
    """Restore every file that the index names; return how many. After a crash the next call resumes.

    Files that are here already must be those of the index. Raise ConfigError when they are others,
    TransferError when the copy is damaged, ListingError when there is none.
    """
    check_place(campaign.config)
    folder = campaign.paths.run_dir()
    with lease(folder / LEASE, wait_s=0.0, say=progress.message):
        files = _fetch_index(campaign, progress)
        missing = {
            name: file for name, file in files.items() if not is_present(file_here(campaign.paths, name))
        }
        _refuse_others(campaign, {name: file for name, file in files.items() if name not in missing})
        incoming = folder / _INCOMING / "files"
        _fetch(campaign, missing, incoming, progress)
        # What other jobs trust comes last, as always.
        for name in sorted(missing, key=lambda name: (name.startswith("ranges/"), name)):
            file = missing[name]
            _put(campaign, name, file, incoming / str(_grows(file)) / file.at, progress)
        remove_tree(folder / _INCOMING)
    kept = len(files) - len(missing)
    progress.message(
        f"{folder}: {counted(len(missing), 'file')} restored from {campaign.config.sync.to}, {kept} "
        "were here already"
    )
    return len(missing)


def _uri(campaign: Campaign, name: str) -> str:
    """Name a file of the copy."""
    return f"{campaign.config.sync.to.rstrip('/')}/{campaign.config.run}/{name}"


def _fetch_index(campaign: Campaign, progress: Progress) -> Files:
    """Get the index of the copy."""
    folder, uri = campaign.paths.run_dir() / _INCOMING / "index", _uri(campaign, INDEX)
    options = SourceOptions.of(campaign.config)
    remove_tree(folder)
    deadline = Deadline(options.deadline_s, f"restoring from {campaign.config.sync.to}", progress.message)
    entries = describe_files(options, [uri], [INDEX], "sync.to", deadline)
    _copy(campaign, list(entries), folder, progress)
    return CopyIndex.parse((folder / INDEX).read_bytes(), uri).files


def _refuse_others(campaign: Campaign, files: Files) -> None:
    """Raise ConfigError when a file is here that differs from the copy's."""
    here = {name: file_here(campaign.paths, name) for name in files}
    other = [here[name] for name, file in files.items() if sha256(here[name]) != file.sha256]
    if other:
        more = f", … ({len(other)} in all)" if len(other) > _SHOWN else ""
        raise ConfigError(
            f"{', '.join(map(str, other[:_SHOWN]))}{more}: here, and not as in "
            f"{campaign.config.sync.to}/{campaign.config.run}; restore into an empty directory; no file was "
            "replaced"
        )


def _fetch(campaign: Campaign, files: Files, folder: Path, progress: Progress) -> None:
    """Copy what is missing into ``folder``; growing files, as far as that is possible."""
    check_free_space(campaign.paths.run_dir(), sum(file.size for file in files.values()), "restored files")
    for grows in (False, True):
        some = [file for file in files.values() if _grows(file) is grows]
        entries = [Entry(file.at, _uri(campaign, file.at), file.size, None) for file in some]
        try:
            _copy(campaign, entries, folder / str(grows), progress, aside=len(some) if grows else 0)
        except SourceError:
            if not grows:
                raise
            for entry in entries:  # one that changed since ends the copying of all
                with contextlib.suppress(SourceError):
                    _copy(campaign, [entry], folder / str(grows), progress, aside=1)


def _grows(file: CopiedFile) -> bool:
    return any(PurePosixPath(file.at).match(pattern) for pattern in _GROWING)


def _copy(campaign: Campaign, entries: list[Entry], folder: Path, progress: Progress, aside: int = 0) -> None:
    """Copy files; up to ``aside`` of them may be bad."""
    with disk_errors(folder):
        make_folder(folder)
    rules = CopyRules(f"run {campaign.config.run}", _REMEDY, "quarantine" if aside else None, aside)
    Copies(folder, entries, SourceOptions.of(campaign.config), rules, progress).run()


def _put(campaign: Campaign, name: str, file: CopiedFile, copy: Path, progress: Progress) -> None:
    """Move a verified copy to its place, with the time of the original, on which the workflow relies."""
    if not is_present(copy) or sha256(copy) != file.sha256:
        copy.unlink(missing_ok=True)  # else the next call takes it for the file, by its size
        if not _grows(file):
            raise TransferError(
                f"{_uri(campaign, file.at)}: not the file that was sent (another sha256); {_REMEDY}"
            )
        progress.message(
            f"warning: {name} is left out: {_uri(campaign, file.at)} was replaced after the last sync"
        )
        return
    target = file_here(campaign.paths, name)
    if is_present(target):  # written here while the copies came
        _refuse_others(campaign, {name: file})
        return
    os.utime(copy, ns=(file.mtime_ns, file.mtime_ns))
    with disk_errors(target):
        make_folder(target.parent)
        if not name.startswith(f"{RESULTS}/"):
            publish(copy, target)
            return
    with atomic_write(target) as part:  # the results may be on another disk
        shutil.copy2(copy, part)
