"""Send a run's TensorBoard files and checkpoints to a second place: a directory, or a Pelican federation.

Only what changed since the last time is sent, and each file is verified where it arrived.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.core.errors import ConfigError, DiskError, SourceError, TransferError
from crpipe.core.files import replacing, write_json
from crpipe.source.retries import Deadline, Transient, each, persist
from crpipe.source.uris import FEDERATIONS, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crpipe.core.progress import Progress
    from crpipe.source.options import SourceOptions

    Send = Callable[[Path, str], Awaitable[None]]

PATTERNS = ("tensorboard/**/*", "store/*/checkpoint-*.pt", "ranges/*.json", "journal.jsonl", "campaign.json")
Stamp = list[int]  # size in bytes, time of the last change in ns


@dataclass(frozen=True, slots=True)
class SyncJob:
    """What to send: the directory ``folder`` of the run called ``run``; ``to`` is `sync.to`."""

    folder: Path
    run: str
    to: str
    source: SourceOptions


def sync_run(job: SyncJob, progress: Progress) -> int:
    """Send what changed in the run's directory to ``sync.to``/<run>; return the number of files not sent.

    A file that cannot be sent is reported and left for the next time; training is never stopped. Raise
    ConfigError when ``sync.to`` is empty or cannot be written to.
    """
    if not job.to:
        raise ConfigError("sync.to: empty; name a directory or pelican://host/path to sync to")
    root = job.folder
    memory = root / ".sync.json"
    sent = _remembered(memory, job.to)
    stamps = {str(path.relative_to(root)): _stamp(path) for path in _files(root)}
    changed = [name for name, stamp in stamps.items() if sent.get(name) != stamp]
    failed = asyncio.run(_send_all(job, changed, progress))
    sent |= {name: stamps[name] for name in changed if name not in failed}
    write_json(memory, {"to": job.to, "files": sent})
    progress.say(f"{job.to}: {len(changed) - len(failed)} files sent, {len(failed)} failed")
    return len(failed)


def _files(root: Path) -> list[Path]:
    found = {path for pattern in PATTERNS for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not path.name.startswith("."))


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _remembered(memory: Path, to: str) -> dict[str, Stamp]:
    """Read what was sent there before; a damaged memory only means that everything is sent again."""
    try:
        kept = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    return dict(kept["files"]) if kept.get("to") == to else {}


async def _send_all(job: SyncJob, names: list[str], progress: Progress) -> set[str]:
    """Send files several at once; return the names of those that could not be sent."""
    failed: set[str] = set()
    deadline = Deadline(job.source.deadline_s, f"sync to {job.to}")

    async def one(name: str, send: Send) -> None:
        try:
            await persist(
                lambda: send(job.folder / name, f"{job.run}/{name}"),
                attempts=job.source.attempts,
                deadline=deadline,
                patient=False,
            )
        except (Transient, SourceError, DiskError) as error:
            failed.add(name)
            progress.say(f"warning: {name} was not synced: {error}")

    if scheme_of(job.to, "sync.to") not in FEDERATIONS:
        folder = host_and_path(job.to, "sync.to")[1]
        await each(names, lambda name: one(name, _to_folder(folder)), job.source.concurrency)
        return failed
    # Its own libraries are loaded only where a federation is used.
    from crpipe.source.pelican.upload import Upload  # noqa: PLC0415

    async with Upload(job.source, job.to) as upload:
        await each(names, lambda name: one(name, upload.send), job.source.concurrency)
    return failed


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
