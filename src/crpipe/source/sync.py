"""Send a run's TensorBoard files and checkpoints to a second place: a directory, or a Pelican federation.

Only what changed since the last time is sent, and each file is verified where it arrived.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.core.errors import ConfigError, DiskError, SourceError, TransferError
from crpipe.core.files import publish, write_json, writing
from crpipe.source.retries import Deadline, Transient, each, persist
from crpipe.source.uris import FEDERATIONS, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress

    Send = Callable[[Path, str], Awaitable[None]]

PATTERNS = ("tensorboard/**/*", "store/*/checkpoint-*.pt", "ranges/*.json", "journal.jsonl", "campaign.json")
Stamp = list[int]  # size in bytes, time of the last change in ns


def sync_run(config: Config, progress: Progress) -> int:
    """Send what changed in the run's directory to ``sync.to``/<run>; return the number of files not sent.

    A file that cannot be sent is told and left for the next time; nothing that trains is ever stopped. Raise
    ConfigError when ``sync.to`` is empty or cannot be a place.
    """
    if not config.sync.to:
        raise ConfigError("sync.to: empty; name a directory or pelican://host/path to sync to")
    root = config.paths().run_dir()
    memory = root / ".sync.json"
    sent = _remembered(memory, config.sync.to)
    stamps = {str(path.relative_to(root)): _stamp(path) for path in _files(root)}
    changed = [name for name, stamp in stamps.items() if sent.get(name) != stamp]
    failed = asyncio.run(_send_all(config, root, changed, progress))
    sent |= {name: stamps[name] for name in changed if name not in failed}
    write_json(memory, {"to": config.sync.to, "files": sent})
    progress.say(f"{config.sync.to}: {len(changed) - len(failed)} files sent, {len(failed)} failed")
    return len(failed)


def _files(root: Path) -> list[Path]:
    found = {path for pattern in PATTERNS for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not path.name.startswith("."))


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _remembered(memory: Path, to: str) -> dict[str, Stamp]:
    """What was sent to this place before; a damaged memory only means that everything is sent again."""
    try:
        kept = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}
    return dict(kept["files"]) if kept.get("to") == to else {}


async def _send_all(config: Config, root: Path, names: list[str], progress: Progress) -> set[str]:
    """Send files several at once; return the names of those that could not be sent."""
    failed: set[str] = set()
    deadline = Deadline(config.source.deadline_minutes * 60, f"sync to {config.sync.to}")

    async def one(name: str, send: Send) -> None:
        try:
            await persist(
                lambda: send(root / name, f"{config.run}/{name}"),
                attempts=config.source.attempts,
                deadline=deadline,
            )
        except (Transient, SourceError, DiskError) as error:
            failed.add(name)
            progress.say(f"warning: {name} was not synced: {error}")

    if scheme_of(config.sync.to) not in FEDERATIONS:
        folder = host_and_path(config.sync.to)[1]
        await each(names, lambda name: one(name, _to_folder(folder)), config.source.concurrency)
        return failed
    # Its own libraries are loaded only where a federation is used.
    from crpipe.source.pelican.upload import Upload  # noqa: PLC0415

    async with Upload(config.source, config.sync.to) as upload:
        await each(names, lambda name: one(name, upload.send), config.source.concurrency)
    return failed


def _to_folder(folder: str) -> Send:
    async def send(file: Path, name: str) -> None:
        await asyncio.to_thread(_copy, file, name, folder)

    return send


def _copy(file: Path, name: str, folder: str) -> None:
    target = Path(folder) / name
    part = target.with_name(f".{target.name}.part")
    try:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, part)
            if checksums.of_file(part, checksums.OWN) != checksums.of_file(file, checksums.OWN):
                raise Transient("it changed while it was copied")
            publish(part, target)
    except OSError as error:
        raise TransferError(f"{target}: {error.strerror}") from error
