"""Send a run to a second place, and prove at each sync that the place still holds what was sent before.

Only what changed or is missing there is sent, and each file is verified where it arrives. The index comes
last: it names the files of which the copy is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import platform
import secrets
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crpipe.core.causes import is_folder, is_present
from crpipe.core.errors import AccessError, ConfigError, DiskError, SourceError, TransferError
from crpipe.core.files import sha256, write_json
from crpipe.core.lease import lease
from crpipe.source.retries import Deadline, TemporaryFailure, retry, run_concurrently
from crpipe.source.sync.index import (
    INDEX,
    CopiedFile,
    Files,
    file_here,
    index_text,
    kept_snapshot,
    list_files,
    read_index,
    without_torn_links,
)
from crpipe.source.sync.places import open_place
from crpipe.source.uris import SourceOptions, scheme_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.core.paths import Paths
    from crpipe.core.text import Progress
    from crpipe.source.sync.places import Place

Answer = TypeVar("Answer")

LEASE = ".sync"  # folder of the lease, in the directory of the run
_MEMORY = ".sync.json"
_FAILURES = (TemporaryFailure, SourceError, DiskError)


@dataclass(frozen=True, slots=True)
class SyncRules:
    """How to sync. verify: read every file of the copy and compare its hash; new: begin another copy."""

    verify: bool = False
    new: bool = False


@dataclass(frozen=True, slots=True)
class _Memory:
    """What was sent to ``sync.to``: its mark, the files, and the text of the index that arrived."""

    mark: str = ""
    files: Files = field(default_factory=dict)
    index: str = ""

    def write(self, campaign: Campaign) -> None:
        rows = {name: asdict(file) for name, file in self.files.items()}
        to = campaign.config.sync.to
        tree = {"to": to, "mark": self.mark, "files": rows, "index": self.index}
        write_json(campaign.paths.run_dir() / _MEMORY, tree)


def sync_run(campaign: Campaign, progress: Progress, rules: SyncRules | None = None) -> int:
    """Send what changed in the run's directory to ``sync.to``/<run>; return the number of files sent.

    Raise ConfigError when ``sync.to`` is empty, LeaseError while another sync runs, and what `send_changed`
    raises; training is never stopped.
    """
    check_place(campaign.config)
    folder = campaign.paths.run_dir()
    if not is_folder(folder):
        progress.message(f"{folder}: nothing to send yet")
        return 0
    with lease(folder / LEASE, wait_s=0.0, say=progress.message):
        return send_changed(campaign, progress, rules or SyncRules())


def check_place(config: Config) -> None:
    """Raise ConfigError when no second place is named."""
    if not config.sync.to:
        raise ConfigError("sync.to: empty; name a directory or pelican://host/path to sync to")
    scheme_of(config.sync.to, "sync.to")


def send_changed(campaign: Campaign, progress: Progress, rules: SyncRules) -> int:
    """Send what changed or is not there, and then the index; return the number of files sent.

    Needs the lease. A file that cannot be sent is reported, and the others are sent; in the end raise
    DiskError, AccessError or TransferError. Raise DiskError before anything is sent where ``sync.to`` is
    not the place of the last sync.
    """
    return asyncio.run(_send_changed(campaign, progress, rules))


async def _send_changed(campaign: Campaign, progress: Progress, rules: SyncRules) -> int:
    paths = campaign.paths
    async with open_place(campaign.config) as place:
        sync = _Sync(campaign, place, progress)
        seen = await sync.recognise(rules)
        named = read_index(seen.index, INDEX) if seen.index else {}
        held = await sync.prove(seen.files, verify=rules.verify)
        names = list_files(paths, seen.files, named)
        same = {name: file for name, file in held.items() if name in names and _is_same(paths, name, file)}
        await sync.send({name: names[name] for name in names if name not in same})
        await sync.check_mark(seen.mark)  # a disk that was unmounted meanwhile leaves its directory
        whole = without_torn_links(paths, same | sync.sent)
        kept = kept_snapshot(whole, held)
        index = await sync.bring_index(index_text(whole | kept), seen.index, verify=rules.verify)
    replace(seen, files=same | sync.sent | kept, index=index).write(campaign)
    progress.message(f"{campaign.config.sync.to}: {len(sync.sent)} files sent, {len(sync.failed)} failed")
    sync.raise_failures()
    return len(sync.sent)


def _is_same(paths: Paths, name: str, file: CopiedFile) -> bool:
    try:
        return _stamp(file_here(paths, name)) == (file.size, file.mtime_ns)
    except FileNotFoundError:
        return False


def _stamp(path: Path) -> tuple[int, int]:
    """Return size in bytes and time of the last change in ns."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _remembered(memory: Path, to: str) -> _Memory:
    """Read what was sent there before; a damaged memory only means that everything is sent again."""
    try:
        kept = json.loads(memory.read_text())
        if kept["to"] == to:
            index = str(kept["index"])
            if index:
                read_index(index, INDEX)
            files = {name: CopiedFile(**row) for name, row in kept["files"].items()}
            return _Memory(str(kept.get("mark", "")), files, index)
    except (OSError, ValueError, KeyError, TypeError, TransferError):
        pass
    return _Memory()


class _Sync:
    """One sync. sent: files that arrived; failed: the error of each that did not, or is not proven."""

    def __init__(self, campaign: Campaign, place: Place, progress: Progress) -> None:
        self._campaign = campaign
        self._paths = campaign.paths
        self._to = campaign.config.sync.to
        self._options = SourceOptions.of(campaign.config)
        self._place = place
        self._say = progress.message
        self._deadline = Deadline(self._options.deadline_s, f"sync to {self._to}")
        self.sent: Files = {}
        self.failed: dict[str, Exception] = {}

    async def recognise(self, rules: SyncRules) -> _Memory:
        """Return what this place got before; mark a place that is new. Raise DiskError for another one."""
        memory = self._paths.run_dir() / _MEMORY
        seen = _Memory() if rules.new else _remembered(memory, self._to)
        if seen.mark:
            await self.check_mark(seen.mark)
            return seen
        seen = replace(seen, mark=f"copy-{secrets.token_hex(8)}.json")
        with self._ending():
            await self._send_text(
                seen.mark, json.dumps({"host": platform.node(), "run": self._paths.run}) + "\n"
            )
        seen.write(self._campaign)
        return seen

    async def check_mark(self, mark: str) -> None:
        """Raise DiskError when the place does not hold the mark of its first sync."""
        with self._ending():
            size = await self._persist(lambda: self._place.size(self._name(mark)))
        if size is None:
            raise DiskError(
                f"{self._to}: not the place of the last sync: {self._name(mark)} is missing. Nothing "
                "more is sent. If a disk is not mounted, mount it and run the same command again; if that "
                "copy is gone for good, `crpipe sync --new` sends everything again"
            )

    async def prove(self, files: Files, *, verify: bool) -> Files:
        """Return the files that the place holds: by their size, with ``verify`` by their hash."""
        held: Files = {}

        async def one(name: str) -> None:
            file, at = files[name], self._name(files[name].at)
            try:
                size = await self._persist(lambda: self._place.size(at))
                right = size == file.size
                if right and verify:
                    right = await self._persist(lambda: self._place.sha256(at)) == file.sha256
            except _FAILURES as error:
                self._fail(name, error)
                right = True  # not known: it stays what it was
            if right:
                held[name] = file
            else:
                what = "missing" if size is None else "damaged"
                self._say(f"warning: {at}: {what} in {self._to}; it is sent again")

        await run_concurrently(files, one, self._options.concurrency)
        if verify and files:
            self._say(f"{self._to}: {len(held)} of {len(files)} files have their sha256")
        return {name: held[name] for name in files if name in held}

    async def send(self, names: dict[str, str]) -> None:
        """Send files several at once. One that a job replaced meanwhile is neither sent nor failed."""

        async def one(name: str) -> None:
            path = file_here(self._paths, name)

            async def attempt() -> None:
                stamp = _stamp(path)
                content = await asyncio.to_thread(sha256, path)
                await self._place.send(path, self._name(names[name]))
                if _stamp(path) != stamp:
                    raise TemporaryFailure("it changed while it was sent")
                self.sent[name] = CopiedFile(names[name], stamp[0], content, stamp[1])

            try:
                await self._persist(attempt)
            except FileNotFoundError:
                return
            except _FAILURES as error:
                if is_present(path):
                    self._fail(name, error)

        await run_concurrently(names, one, self._options.concurrency)

    async def bring_index(self, text: str, before: str, *, verify: bool) -> str:
        """Have the index there; return the text of the one that is."""
        raw = text.encode()
        row = CopiedFile(INDEX, len(raw), hashlib.sha256(raw).hexdigest(), 0)
        if text == before and await self.prove({INDEX: row}, verify=verify):
            return text
        try:
            await self._send_text(INDEX, text)
        except _FAILURES as error:
            self._fail(INDEX, error)
            return before
        return text

    def raise_failures(self) -> None:
        """Raise an error of the kind of the most lasting failure."""
        if not self.failed:
            return
        name, error = next(iter(self.failed.items()))
        kinds = (AccessError, DiskError, TransferError)
        found = [kind for kind in kinds if any(isinstance(each, kind) for each in self.failed.values())]
        raise [*found, TransferError][0](
            f"{self._to}: {len(self.failed)} files were not sent, the first of them {name} ({error}); "
            "the same command sends what is missing"
        )

    def _fail(self, name: str, error: Exception) -> None:
        self.failed[name] = error
        self._say(f"warning: {name} was not synced: {error}")

    async def _send_text(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            await asyncio.to_thread(path.write_text, text)
            await self._persist(lambda: self._place.send(path, self._name(name)))

    def _name(self, name: str) -> str:
        return f"{self._paths.run}/{name}"

    async def _persist(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        attempts = self._options.attempts
        return await retry(attempt, attempts=attempts, deadline=self._deadline, patient=False)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Turn what another try may repair into an error of the tree."""
        try:
            yield
        except TemporaryFailure as error:
            raise TransferError(f"{self._to}: {error}; run the same command again") from error
