"""`crpipe sync`: send a run to a second place, and prove that the place still holds what was sent before.

Out, in ``sync.to``/<run>: the files by their names, a mark of the first sync, and index.json. The index comes
last; it says which files belong to the run now, with the size, sha256 and time of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import platform
import secrets
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from crpipe.core.causes import is_folder, is_present
from crpipe.core.errors import (
    AccessError,
    ConfigError,
    CrpipeError,
    DiskError,
    SourceError,
    TransferError,
)
from crpipe.core.files import sha256, write_json
from crpipe.core.lease import lease
from crpipe.core.paths import CODE, DELETED_CHECKPOINTS, FORKS, Paths
from crpipe.core.records import Record
from crpipe.core.text import counted
from crpipe.source.retries import Deadline, TemporaryFailure, retry, run_concurrently
from crpipe.source.sources import SecondPlace, open_second_place
from crpipe.source.uris import FEDERATIONS, WRITABLE, SourceOptions, scheme_of

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.core.text import Progress

Answer = TypeVar("Answer")

INDEX = "index.json"
RESULTS = "results"  # in the copy: the few small files of the results that belong to the run
LEASE = ".sync"  # folder of the lease, in the directory of the run
_MEMORY = ".sync.json"  # in the directory of the run: where it was sent, and the mark of that place
_TRIED = "crpipe-write-test.txt"
_SNAPSHOTS = ("snapshot-1.pt", "snapshot-2.pt")  # in turn: the one that the index names is never replaced
# Receipts first: one that is listed has its checkpoint on the disk when that is looked for.
_OF_RUN = (
    *("ranges/*.json", "campaign.json", CODE, "init_from.json", DELETED_CHECKPOINTS, FORKS),
    *("store/*/checkpoint-*.pt", "store/*/best-*.pt", "store/*/*.jsonl"),
    *("tensorboard/**/*", "evaluation/**/*", "journal.jsonl"),
)
_OF_RESULTS = ("campaign.json", CODE, "layout.json", "positions.*", "manifests/*.parquet")
_STOPS = (signal.SIGTERM, signal.SIGINT)  # a shell script starts its background jobs without the second
_FAILURES = (TemporaryFailure, SourceError, DiskError)


@dataclass(frozen=True, kw_only=True)
class CopiedFile(Record):
    """One file of the copy: its name there, size in bytes, sha256, and time of its last change in ns."""

    at: str
    size: int
    sha256: str
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class CopyIndex(Record):
    """index.json: the files of the copy by their names below the run, or below ``results/``."""

    files: Mapping[str, CopiedFile]

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> CopyIndex:
        """Read an index; raise TransferError when it is damaged, or names a place outside of the campaign."""
        try:
            index = cls.from_json(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise TransferError(
                f"{where}: damaged ({error}); where the run is, type `crpipe sync --verify`, then restore it"
            ) from error
        if not all(_is_inside(name) and _is_inside(file.at) for name, file in index.files.items()):
            raise TransferError(f"{where}: not an index that crpipe wrote; nothing was restored")
        return index

    def text(self) -> str:
        """Return the content of the file; equal indexes have equal bytes."""
        return json.dumps(self.as_json(), indent=1, sort_keys=True) + "\n"


Files = Mapping[str, CopiedFile]


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and all(part[0] not in "./" and "\\" not in part for part in parts)


def file_here(paths: Paths, name: str) -> Path:
    """Return where a file of the copy is here: in the run's directory, or in the results."""
    top, _, rest = name.partition("/")
    return paths.results / rest if top == RESULTS else paths.run_dir() / name


def check_place(config: Config) -> None:
    """Raise ConfigError when no second place is named."""
    if not config.sync.to:
        raise ConfigError(
            "sync.to: empty; name a directory, pelican://host/path or s3://bucket/path to sync to"
        )
    if scheme_of(config.sync.to, "sync.to") not in {"file", *FEDERATIONS, *WRITABLE}:
        raise ConfigError(
            f"sync.to: {config.sync.to}: a copy goes to a directory, pelican://host/path or s3://bucket/path"
        )


def try_place(config: Config) -> str:
    """Send a small file to ``sync.to`` and read it back; return its address there. Raise as ``sync_run``."""
    check_place(config)
    to, options = config.sync.to.rstrip("/"), SourceOptions.of(config)
    deadline = Deadline(options.deadline_s, f"writing to {to}")
    content = f"{platform.node()}, {time.time()}: whether crpipe may write here; delete this file\n".encode()
    pieces: list[bytes] = []

    async def attempt(folder: str) -> None:
        file = Path(folder, _TRIED)
        await asyncio.to_thread(file.write_bytes, content)
        async with open_second_place(config) as destination:
            pieces.clear()
            await destination.send(file, _TRIED)
            await destination.read(_TRIED, pieces.append)
        if b"".join(pieces) != content:
            raise TemporaryFailure(f"{to}/{_TRIED}: other bytes are read than were written")

    try:
        with tempfile.TemporaryDirectory() as folder:
            work = retry(lambda: attempt(folder), attempts=options.attempts, deadline=deadline, patient=False)
            asyncio.run(work)
    except TemporaryFailure as error:
        raise TransferError(f"{to}: {error}; run the same command again") from error
    return f"{to}/{_TRIED}"


@dataclass(frozen=True, slots=True)
class SyncRules:
    """How to sync. verify: read every file of the copy and compare its hash; new: begin another copy."""

    verify: bool = False
    new: bool = False


def sync_run(campaign: Campaign, progress: Progress, rules: SyncRules | None = None) -> int:
    """Send what changed or is not there, and then the index; return the number of files sent.

    A file that cannot be sent is reported, and the others are sent; in the end raise DiskError, AccessError
    or TransferError. Raise ConfigError when ``sync.to`` is empty, LeaseError while another sync runs,
    DiskError before anything is sent where ``sync.to`` is not the place of the last sync.
    """
    check_place(campaign.config)
    folder = campaign.paths.run_dir()
    if not is_folder(folder):
        progress.message(f"{folder}: nothing to send yet")
        return 0
    with lease(folder / LEASE, wait_s=0.0, say=progress.message):
        return asyncio.run(_send_changed(campaign, progress, rules or SyncRules()))


def sync_every(
    campaign: Campaign, minutes: float, finished: Callable[[], bool], progress: Progress, rules: SyncRules
) -> bool:
    """Send what changed every ``minutes``; return whether the finished run was sent, False when stopped.

    What fails is reported and sent the next time. Raise ConfigError when ``sync.to`` cannot be one,
    LeaseError while another sync of this run works.
    """
    check_place(campaign.config)
    folder = campaign.paths.run_dir()
    before = {number: signal.signal(number, signal.default_int_handler) for number in _STOPS}
    try:
        while not folder.is_dir():
            time.sleep(60 * minutes)
        with lease(folder / LEASE, wait_s=0.0, say=progress.message):
            _sync_until(finished, campaign, minutes, progress, rules)
    except KeyboardInterrupt:
        progress.message("stopped as asked; the same command goes on")
        return False
    else:
        return True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sync_until(
    finished: Callable[[], bool], campaign: Campaign, minutes: float, progress: Progress, rules: SyncRules
) -> None:
    while True:
        is_last = finished()  # before the sync: what is finished now is sent now
        try:
            asyncio.run(_send_changed(campaign, progress, rules))
        except ConfigError:
            raise
        except CrpipeError as error:
            progress.message(f"warning: {error}; tried again in {minutes:g} minutes")
        else:
            rules = replace(rules, new=False)
            if is_last:
                progress.message(f"{campaign.paths.run}: finished, and sent")
                return
        time.sleep(60 * minutes)


async def _send_changed(campaign: Campaign, progress: Progress, rules: SyncRules) -> int:
    """Send what changed; the caller holds the lease."""
    paths = campaign.paths
    async with open_second_place(campaign.config) as destination:
        sync = _Sync(campaign, destination, progress)
        mark, is_known = await sync.recognise(new=rules.new)
        index = await sync.read_index(is_known=is_known)
        before = index.files if index else {}
        held = await sync.prove(before, verify=rules.verify) if is_known else {}
        names = _list_files(paths, before)
        same = {name: file for name, file in held.items() if name in names and _is_same(paths, name, file)}
        sent = await sync.send({name: at for name, at in names.items() if name not in same})
        await sync.check_mark(mark)  # a disk that was unmounted meanwhile leaves its directory
        files = _without_torn_links(paths, same | sent)
        await sync.send_index(CopyIndex(files=files | _needed_snapshot(files, held)), index)
    progress.message(
        f"{campaign.config.sync.to}: {counted(len(sent), 'file')} sent, {len(sync.failed)} failed"
    )
    sync.raise_failures()
    return len(sent)


def _list_files(paths: Paths, index: Files) -> dict[str, str]:
    """List what is sent: names below the run (or ``results/``), and the names in the copy.

    Of the snapshots only the newest one of an unfinished link is sent; ``index``: what the copy holds.
    """
    names: dict[str, str] = {}
    run_dir = paths.run_dir()
    for top, patterns, prefix in ((run_dir, _OF_RUN, ""), (paths.results, _OF_RESULTS, f"{RESULTS}/")):
        for path in [path for pattern in patterns for path in sorted(top.glob(pattern))]:
            parts = path.relative_to(top).parts
            if path.is_file() and not any(part.startswith(".") for part in parts):
                name = prefix + "/".join(parts)
                names[name] = name
    snapshots = [
        path
        for path in run_dir.glob("store/*/snapshot-*.pt")
        if not is_present(paths.receipt(path.parent.name))
    ]
    for path in sorted(snapshots, key=lambda path: path.stem.split("-")[-2])[-1:]:
        name = str(path.relative_to(run_dir))
        used = {file.at for file in index.values()}
        names[name] = index[name].at if name in index else next(at for at in _SNAPSHOTS if at not in used)
    return names


def _is_same(paths: Paths, name: str, file: CopiedFile) -> bool:
    try:
        return _stamp(file_here(paths, name)) == (file.size, file.mtime_ns)
    except FileNotFoundError:
        return False


def _stamp(path: Path) -> tuple[int, int]:
    """Return size in bytes and time of the last change in ns."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _without_torn_links(paths: Paths, files: Files) -> dict[str, CopiedFile]:
    """Leave out each receipt whose checkpoint exists here and is not in the copy yet, and damaged ones."""
    return {name: file for name, file in files.items() if _is_backed(paths, files, name)}


def _is_backed(paths: Paths, files: Files, name: str) -> bool:
    if not PurePosixPath(name).match("ranges/*.json"):
        return True
    try:
        row = json.loads(file_here(paths, name).read_text())
        checkpoint = f"store/{row['range']}/{row['checkpoint']}"
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return checkpoint in files or not is_present(file_here(paths, checkpoint))


def _needed_snapshot(files: Files, held: Files) -> dict[str, CopiedFile]:
    """Return the snapshot of ``held`` that is needed as long as ``files`` has no newer one or receipt."""
    if any(file.at.startswith("snapshot-") for file in files.values()):
        return {}
    return {
        name: file
        for name, file in held.items()
        if file.at.startswith("snapshot-") and f"ranges/{PurePosixPath(name).parent.name}.json" not in files
    }


class _Sync:
    """One sync. failed: the error of each file that was not sent, or is not proven."""

    def __init__(self, campaign: Campaign, destination: SecondPlace, progress: Progress) -> None:
        self._paths = campaign.paths
        self._to = campaign.config.sync.to
        self._options = SourceOptions.of(campaign.config)
        self._destination = destination
        self._say = progress.message
        self._deadline = Deadline(self._options.deadline_s, f"sync to {self._to}")
        self.failed: dict[str, Exception] = {}

    async def recognise(self, *, new: bool) -> tuple[str, bool]:
        """Return the mark of this place, and whether it got files before; mark a place that is new.

        Raise DiskError for another place than that of the last sync.
        """
        memory = self._paths.run_dir() / _MEMORY
        to, mark = ("", "") if new else _remembered(memory)
        is_known = to == self._to
        if is_known and mark:
            await self.check_mark(mark)
            return mark, True
        mark = f"copy-{secrets.token_hex(8)}.json"
        with self._ending():
            await self._send_text(mark, json.dumps({"host": platform.node(), "run": self._paths.run}) + "\n")
        write_json(memory, {"to": self._to, "mark": mark})
        return mark, is_known

    async def check_mark(self, mark: str) -> None:
        """Raise DiskError when the place does not hold the mark of its first sync."""
        with self._ending():
            size = await self._retry(lambda: self._destination.size(self._name(mark)))
        if size is None:
            raise DiskError(
                f"{self._to}: not the place of the last sync: {self._name(mark)} is missing. Nothing "
                "more is sent. If a disk is not mounted, mount it and run the same command again; if that "
                "copy is gone for good, `crpipe sync --new` sends everything again"
            )

    async def read_index(self, *, is_known: bool) -> CopyIndex | None:
        """Read what the copy holds; None where nothing says it, so that everything is sent again."""
        pieces: list[bytes] = []

        async def attempt() -> bool:
            pieces.clear()
            return await self._destination.read(self._name(INDEX), pieces.append)

        with self._ending():
            is_there = await self._retry(attempt)
        if is_there:
            with contextlib.suppress(TransferError):
                return CopyIndex.parse(b"".join(pieces), INDEX)
        if is_known:
            self._warn(INDEX, "damaged" if is_there else "missing")
        return None

    async def prove(self, files: Files, *, verify: bool) -> Files:
        """Return the files that the place holds: by their size, with ``verify`` by their hash."""
        held: dict[str, CopiedFile] = {}

        async def one(name: str) -> None:
            file = files[name]
            try:
                size = await self._retry(lambda: self._destination.size(self._name(file.at)))
                is_right = size == file.size
                if is_right and verify:
                    is_right = await self._retry(lambda: self._sha256(file.at)) == file.sha256
            except _FAILURES as error:
                self._fail(name, error)
                is_right = True  # not known: it stays what it was
            if is_right:
                held[name] = file
            else:
                self._warn(file.at, "missing" if size is None else "damaged")

        await run_concurrently(files, one, self._options.concurrency)
        if verify and files:
            self._say(f"{self._to}: {len(held)} of {counted(len(files), 'file')} have their sha256")
        return held

    async def send(self, names: Mapping[str, str]) -> dict[str, CopiedFile]:
        """Send files several at once. One that a job replaced meanwhile is neither sent nor failed."""
        sent: dict[str, CopiedFile] = {}

        async def one(name: str) -> None:
            path, at = file_here(self._paths, name), names[name]

            async def attempt() -> None:
                size, mtime_ns = stamp = _stamp(path)
                content = await asyncio.to_thread(sha256, path)
                await self._destination.send(path, self._name(at))
                if _stamp(path) != stamp:
                    raise TemporaryFailure("it changed while it was sent")
                sent[name] = CopiedFile(at=at, size=size, sha256=content, mtime_ns=mtime_ns)

            try:
                await self._retry(attempt)
            except FileNotFoundError:
                return
            except _FAILURES as error:
                if is_present(path):
                    self._fail(name, error)

        await run_concurrently(names, one, self._options.concurrency)
        return sent

    async def send_index(self, index: CopyIndex, before: CopyIndex | None) -> None:
        """Send the index, unless it is the one that is there."""
        if index == before:
            return
        try:
            await self._send_text(INDEX, index.text())
        except _FAILURES as error:
            self._fail(INDEX, error)

    def raise_failures(self) -> None:
        """Raise an error of the kind of the most lasting failure."""
        if not self.failed:
            return
        name, error = next(iter(self.failed.items()))
        kinds = (AccessError, DiskError)
        errors = self.failed.values()
        kind = next((kind for kind in kinds if any(isinstance(one, kind) for one in errors)), TransferError)
        raise kind(
            f"{self._to}: {counted(len(self.failed), 'file')} not sent, the first of them {name} ({error}); "
            "the same command sends what is missing"
        )

    def _warn(self, at: str, what: str) -> None:
        self._say(f"warning: {self._name(at)}: {what} in {self._to}; it is sent again")

    def _fail(self, name: str, error: Exception) -> None:
        self.failed[name] = error
        self._say(f"warning: {name} was not synced: {error}")

    async def _sha256(self, at: str) -> str:
        digest = hashlib.sha256()
        is_there = await self._destination.read(self._name(at), digest.update)
        return digest.hexdigest() if is_there else ""

    async def _send_text(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            await asyncio.to_thread(path.write_text, text)
            await self._retry(lambda: self._destination.send(path, self._name(name)))

    def _name(self, name: str) -> str:
        return f"{self._paths.run}/{name}"

    async def _retry(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        attempts = self._options.attempts
        return await retry(attempt, attempts=attempts, deadline=self._deadline, patient=False)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Turn what another try may repair into an error of the tree."""
        try:
            yield
        except TemporaryFailure as error:
            raise TransferError(f"{self._to}: {error}; run the same command again") from error


def _remembered(memory: Path) -> tuple[str, str]:
    """Read where the run was sent, and the mark of that place; where damaged, everything is sent again."""
    try:
        row = json.loads(memory.read_text())
        return str(row["to"]), str(row.get("mark", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", ""
