"""Send a run to a second place: a directory, or a Pelican federation.

Only what changed since the last time is sent, and each file is verified where it arrived. The index comes
last: it names the files of which the copy is whole.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.core.errors import ConfigError, DiskError, SourceError, TransferError
from crpipe.core.files import replacing, sha256, write_json
from crpipe.core.lease import lease
from crpipe.source.retries import Deadline, Transient, each, persist
from crpipe.source.sync.index import (
    INDEX,
    CopiedFile,
    Files,
    SyncJob,
    index_text,
    kept_snapshot,
    list_files,
    read_index,
    without_torn_links,
)
from crpipe.source.uris import FEDERATIONS, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crpipe.core.progress import Progress

    Send = Callable[[Path, str], Awaitable[None]]

LEASE = ".sync"  # folder of the lease, in the directory of the run
_MEMORY = ".sync.json"


def sync_run(job: SyncJob, progress: Progress) -> int:
    """Send what changed in the run's directory to ``sync.to``/<run>; return the number of files not sent.

    A file that cannot be sent is reported and left for the next time; training is never stopped. Raise
    ConfigError when ``sync.to`` is empty or cannot be written to, LeaseError while another sync runs.
    """
    check_place(job)
    if not job.folder.is_dir():
        progress.say(f"{job.folder}: nothing to send yet")
        return 0
    with lease(job.folder / LEASE, wait_s=0.0, say=progress.say):
        return send_changed(job, progress)


def check_place(job: SyncJob) -> None:
    """Raise ConfigError when no second place is named."""
    if not job.to:
        raise ConfigError("sync.to: empty; name a directory or pelican://host/path to sync to")
    scheme_of(job.to, "sync.to")


def send_changed(job: SyncJob, progress: Progress) -> int:
    """Send what changed, and then the index; return the number of files not sent. Needs the lease."""
    memory = job.folder / _MEMORY
    before, index_before = _remembered(memory, job.to)
    named = read_index(index_before, INDEX) if index_before else {}
    names = list_files(job, before, named)
    same = {name: file for name, file in before.items() if name in names and _is_same(job, name, file)}
    changed = [name for name in names if name not in same]
    sent, failed = asyncio.run(_send_all(job, {name: names[name] for name in changed}, progress))
    whole = without_torn_links(job, same | sent)
    kept = kept_snapshot(whole, before)
    index = index_text(whole | kept)
    if index != index_before and not _send_index(job, index, progress):
        failed.add(INDEX)
        index = index_before
    rows = {name: asdict(file) for name, file in (same | sent | kept).items()}
    write_json(memory, {"to": job.to, "files": rows, "index": index})
    progress.say(f"{job.to}: {len(sent)} files sent, {len(failed)} failed")
    return len(failed)


def _is_same(job: SyncJob, name: str, file: CopiedFile) -> bool:
    try:
        return _stamp(job.place(name)) == (file.size, file.mtime_ns)
    except FileNotFoundError:
        return False


def _stamp(path: Path) -> tuple[int, int]:
    """Give size in bytes and time of the last change in ns."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _remembered(memory: Path, to: str) -> tuple[Files, str]:
    """Read what was sent there before; a damaged memory only means that everything is sent again."""
    try:
        kept = json.loads(memory.read_text())
        if kept["to"] == to:
            index = str(kept["index"])
            if index:
                read_index(index, INDEX)
            return {name: CopiedFile(**row) for name, row in kept["files"].items()}, index
    except (OSError, ValueError, KeyError, TypeError, TransferError):
        pass
    return {}, ""


async def _send_all(job: SyncJob, names: dict[str, str], progress: Progress) -> tuple[Files, set[str]]:
    """Send files several at once; return those that arrived, and the names of those that could not be sent.

    A file that a job replaced meanwhile is neither.
    """
    sent: Files = {}
    failed: set[str] = set()
    deadline = Deadline(job.source.deadline_s, f"sync to {job.to}")

    async def one(name: str, send: Send) -> None:
        path = job.place(name)

        async def attempt() -> None:
            stamp = _stamp(path)
            content = await asyncio.to_thread(sha256, path)
            await send(path, f"{job.run}/{names[name]}")
            if _stamp(path) != stamp:
                raise Transient("it changed while it was sent")
            sent[name] = CopiedFile(names[name], stamp[0], content, stamp[1])

        try:
            await persist(attempt, attempts=job.source.attempts, deadline=deadline, patient=False)
        except FileNotFoundError:
            return
        except (Transient, SourceError, DiskError) as error:
            if path.exists():
                failed.add(name)
                progress.say(f"warning: {name} was not synced: {error}")

    await _with_sender(job, lambda send: each(names, lambda name: one(name, send), job.source.concurrency))
    return sent, failed


def _send_index(job: SyncJob, text: str, progress: Progress) -> bool:
    """Send the index; return whether it arrived."""
    deadline = Deadline(job.source.deadline_s, f"sync to {job.to}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, INDEX)
        path.write_text(text)

        async def work(send: Send) -> None:
            name = f"{job.run}/{INDEX}"
            attempts = job.source.attempts
            await persist(lambda: send(path, name), attempts=attempts, deadline=deadline, patient=False)

        try:
            asyncio.run(_with_sender(job, work))
        except (Transient, SourceError, DiskError) as error:
            progress.say(f"warning: {INDEX} was not synced: {error}")
            return False
    return True


async def _with_sender(job: SyncJob, work: Callable[[Send], Awaitable[None]]) -> None:
    """Do some work with what sends a file to the second place."""
    if scheme_of(job.to, "sync.to") not in FEDERATIONS:
        await work(_to_folder(host_and_path(job.to, "sync.to")[1]))
        return
    # Its own libraries are loaded only where a federation is used.
    from crpipe.source.pelican.upload import Upload  # noqa: PLC0415

    async with Upload(job.source, job.to) as upload:
        await work(upload.send)


def _to_folder(folder: str) -> Send:
    async def send(file: Path, name: str) -> None:
        await asyncio.to_thread(_copy, file, name, folder)

    return send


def _copy(file: Path, name: str, folder: str) -> None:
    target = Path(folder) / name
    try:
        with replacing(target) as part:
            shutil.copyfile(file, part)
            if checksums.of_file(part, checksums.OWN) != checksums.of_file(file, checksums.OWN):
                raise Transient("it changed while it was copied")
    except OSError as error:
        raise TransferError(f"{target}: {error.strerror}") from error
