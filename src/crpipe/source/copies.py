"""Copy listed files into one directory: each verified before its name appears, resumed after any crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from crpipe.campaign.raw_files import CONVERTED, LISTED, Entry, Verification
from crpipe.core import checksums
from crpipe.core.causes import OF_PROGRAMS, is_plain, is_present, refuse_machine_error
from crpipe.core.errors import AccessError, ChangedError, DiskError, OutageError, SourceError, TransferError
from crpipe.core.files import (
    digest,
    disk_errors,
    free_bytes,
    make_folder,
    open_regular_file,
    refuse_links,
    size,
    write_text,
)
from crpipe.core.records import Record
from crpipe.core.text import counted
from crpipe.source.retries import (
    AdaptiveDiskCalls,
    Deadline,
    Failure,
    Flush,
    TemporaryFailure,
    retry,
    run_concurrently,
)
from crpipe.source.sources import Copier, open_copier
from crpipe.source.uris import REMOTE, SourceOptions, place_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from crpipe.core.text import Progress

# Journal of verified copies, one line per file beside them: a killed job loses only unfinished copies.


PART = ".part"
_JOURNAL, _LISTING = ".proofs.jsonl", ".listing"
WORK = ".work"  # among converted files: a folder for each command that runs
_RESERVED = frozenset({_JOURNAL, _LISTING, CONVERTED, WORK, "lease"})
_THREADS = 4


def is_reserved(path: str) -> bool:
    """Return whether a copy of this name would take the place of one of crpipe's own files."""
    parts = path.split("/")
    return parts[0] in _RESERVED or any(part.endswith(PART) for part in parts)


@dataclass(frozen=True, kw_only=True)
class _ProofRow(Record):
    """One line of the journal: path, which file was listed, and how its copy was verified."""

    path: str
    listed: tuple[str, ...]
    size: int
    checksum: str
    algorithm: str
    verified: str

    @property
    def proof(self) -> Verification:
        return Verification(self.size, self.checksum, self.algorithm, self.verified)


class VerificationLog:
    """Proofs of the copies in one range's directory; in a ``with`` block they are appended to."""

    def __init__(self, folder: Path, options: SourceOptions) -> None:
        self._folder = folder
        self._options = options
        self._path = folder / _JOURNAL
        self._listing = folder / _LISTING

    def __enter__(self) -> Self:
        """Open the journal, for all threads that will add to it; raise DiskError."""
        with disk_errors(self._path):
            self._log = open_regular_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self._log)

    def begin(self, entries: Iterable[Entry]) -> None:
        """Remove unfinished copies that were begun under another listing.

        A file that was written again may have its old size: the copy would have the old beginning and the
        new end.
        """
        listing = digest([[entry.path, entry.size, *_listed(entry)] for entry in entries])
        if is_present(self._listing) and self._listing.read_bytes() == listing.encode():
            return
        for part in self._folder.rglob(f"*{PART}"):
            part.unlink()
        write_text(self._listing, listing)

    def file(self, path: str) -> Path:
        """Return where the copy of a listed file is."""
        return self._folder / path

    def folders(self, entries: Iterable[Entry]) -> list[Path]:
        """Return where the copies are: one directory, unless some files are in directories below it."""
        return [self._folder / name for name in {entry.path.rpartition("/")[0] for entry in entries}]

    def add(self, entry: Entry, proof: Verification) -> None:
        """Record one verified copy; one write, so that rows of many threads never mix."""
        row = json.dumps({"path": entry.path, "listed": _listed(entry), **proof.row()}) + "\n"
        with disk_errors(self._path):
            os.write(self._log, row.encode())

    def keep(self, entries: Iterable[Entry]) -> dict[str, Verification]:
        """Find the copies that are still what was verified, by reading each again; the others are not kept.

        Reading again costs a fraction of copying again, and also finds what a power failure damaged.
        """
        rows = self._rows()
        known = [
            entry for entry in entries if entry.path in rows and rows[entry.path].listed == _listed(entry)
        ]
        with ThreadPoolExecutor(_THREADS) as pool:
            proofs = list(pool.map(lambda entry: self._sound(entry, rows[entry.path].proof), known))
        return {entry.path: proof for entry, proof in zip(known, proofs, strict=True) if proof}

    def _sound(self, entry: Entry, proof: Verification) -> Verification | None:
        """Return the proof of a copy that is what was verified and what a list says; None for others."""
        file = self.file(entry.path)
        if entry.listed:
            proof = Verification(proof.size, entry.listed.value, entry.listed.algorithm, LISTED)
        is_enough = proof.is_checked() or not self._options.requires_checksum(entry.uri)
        if entry.size not in {None, proof.size} or not is_enough:
            return None
        if file.is_symlink():  # to a file that is read in place
            return None
        try:
            is_same = file.stat().st_size == proof.size and (
                checksums.of_file(file, proof.algorithm) == proof.checksum
            )
        except OSError:
            return None
        return proof if is_same else None

    def _rows(self) -> dict[str, _ProofRow]:
        """Read the journal; a line cut by a crash, damaged, or of another version: its copy is made again."""
        rows = {}
        lines = self._path.read_text(errors="replace").splitlines() if is_plain(self._path) else []
        for line in lines:
            with contextlib.suppress(ValueError):
                row = _ProofRow.from_json(json.loads(line))
                rows[row.path] = row
        return rows


def _listed(entry: Entry) -> tuple[str, ...]:
    """Return which file was copied: one that was written again may have the old one's name and size."""
    return entry.uri, entry.mtime.isoformat() if entry.mtime else ""


RESERVE = 1 << 28  # bytes of the disk kept free for journals and manifests
MOST_BAD = 0.5  # of a range's files: one that loses more fails
PROBE = ".probe"


@dataclass(frozen=True, slots=True)
class CopyRules:
    """What the copies are for, and what to do with a file that is bad for good.

    label: names them in messages. remedy: what a person should do about a file that changed or is gone.
    on_bad_file: fail, set up to ``max_quarantined`` files aside, or None where no file may be set aside.
    accept: called with the first copy, before the others are made; raises for one of another schema.
    """

    label: str
    remedy: str
    on_bad_file: Literal["fail", "quarantine"] | None = None
    max_quarantined: int = 0
    accept: Callable[[Path], None] | None = None

    @property
    def hint(self) -> str:
        """How to go on without the file, where that is an option."""
        aside = ", or set such files aside with source.on_bad_file: quarantine"
        return aside if self.on_bad_file == "fail" else ""


class _FailingError(TransferError):
    """A file does not arrive; that may be the file's fault or the source's."""


class Copies:
    """One attempt to have a verified copy of every entry in one directory; ``run`` does it.

    done: verified copies by path, those of earlier attempts included. bad: reasons of files set aside.
    """

    def __init__(
        self,
        folder: Path,
        entries: Sequence[Entry],
        options: SourceOptions,
        rules: CopyRules,
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._options = options
        self._rules = rules
        self._progress = progress
        self._proofs = VerificationLog(folder, options)
        self._proofs.begin(entries)
        self.done = self._proofs.keep(entries)
        self.bad: dict[str, str] = {}
        self._wanted = [entry for entry in entries if entry.path not in self.done]
        self._entries = entries
        self._suspects: list[Entry] = []
        self._folders = self._proofs.folders(entries)
        self._bytes = 0
        self._copied = 0
        self._accept = rules.accept
        self._begin = time.monotonic()
        self._deadline = Deadline(options.deadline_s, f"staging of {rules.label}", progress.message)

    @property
    def needed(self) -> int:
        """Bytes that are still to be copied, as far as they are known."""
        return self._options.copied_bytes(self._wanted)

    def run(self) -> None:
        """Copy what is wanted; when this returns, every copy is on the disk.

        Raise TransferError naming the file that cannot be copied, or SourceError when too many cannot.
        """
        with self._proofs:
            asyncio.run(self._run())

    async def _run(self) -> None:
        width = self._options.concurrency
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(width))
        self._steps, self._flush = AdaptiveDiskCalls(), Flush()
        # An earlier attempt may have been killed before it flushed them.
        for path, proof in self.done.items():
            await self._flush.add(self._proofs.file(path), proof.size)
        for folder in self._folders:
            refuse_links(self._folder, folder)
            with disk_errors(folder):
                make_folder(folder)
        if self.done:
            await self._check_first_copy(min(self.done))
        for (scheme, host), entries in self._by_source().items():
            async with open_copier(self._options, scheme, host, self._deadline) as copier:
                await self._copy_all(copier, entries, width)
        await self._flush.finish(self._folders)

    def _by_source(self) -> dict[tuple[str, str], list[Entry]]:
        """Group the wanted files by the federation (or file system) that holds them."""
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in self._wanted:
            groups.setdefault(place_of(entry.uri), []).append(entry)
        return groups

    async def _copy_all(self, copier: Copier, entries: Sequence[Entry], width: int) -> None:
        await run_concurrently(entries, lambda entry: self._one(copier, entry), width)
        # What failed is tried again after all the others: an outage may have begun and ended.
        suspects, self._suspects = self._suspects, []
        for entry in suspects:
            await self._one(copier, entry, again=True)

    async def _one(self, copier: Copier, entry: Entry, *, again: bool = False) -> None:
        """Copy one file; when it fails again, set it aside where that is allowed."""
        final = self._proofs.file(entry.path)
        part = final.with_name(final.name + PART)
        try:
            proof = await self._fetch(copier, entry, part)
        except ChangedError:
            part.unlink(missing_ok=True)
            raise
        except TransferError as error:
            if not isinstance(error, _FailingError):
                part.unlink(missing_ok=True)
            if self._rules.on_bad_file != "quarantine":
                raise TransferError(str(error)) from error
            self._refuse_machine_error(entry, error)
            if again:
                await self._set_aside(copier, entry, error)
                part.unlink(missing_ok=True)
            else:
                self._suspects.append(entry)
            self._check_number(error)
            return
        await self._steps.do(lambda: self._publish(entry, part, final, proof))
        await self._check_first_copy(entry.path)
        self._count(entry, proof)
        if not final.is_symlink():
            await self._flush.add(final, proof.size)

    async def _probe(self, copier: Copier, failure: TransferError) -> None:
        """Copy a file that arrived before once again; raise SourceError when the source is out of order."""
        known = [entry for entry in self._entries if entry.path in self.done]
        if not known:
            raise SourceError(f"{failure}; no file of {self._rules.label} arrives, so that none is set aside")
        entry = min(known, key=lambda entry: self.done[entry.path].size)
        part = self._proofs.file(entry.path + PROBE + PART)
        try:
            await self._fetch(copier, entry, part)
        except TransferError as error:
            raise SourceError(
                f"{failure}; {entry.uri}, which arrived before, fails now, too: nothing is set aside"
            ) from error
        finally:
            part.unlink(missing_ok=True)

    async def _fetch(self, copier: Copier, entry: Entry, part: Path) -> Verification:
        try:
            proof = await retry(
                lambda: _fetch_listed(copier, entry, part),
                attempts=self._options.attempts,
                deadline=self._deadline,
            )
        except TemporaryFailure as error:
            failure = f"{entry.uri}: {str(error).removeprefix(f'{entry.uri}: ')}"
            if error.kind is Failure.DENIED:
                raise AccessError(f"{failure}; renew it, see `crpipe token`") from error
            if error.kind is Failure.MISSING:
                raise TransferError(f"{failure}; {self._rules.remedy}{self._rules.hint}") from error
            # A source that is out of reach means nothing for the file: it is never set aside for that.
            self._refuse_machine_error(entry, error)
            if error.is_outage:
                raise OutageError(
                    f"{failure}; what is verified stays: run the same command again later"
                ) from error
            kind = TransferError if error.kind is Failure.WRONG_BYTES else _FailingError
            raise kind(f"{failure}; run the same command again later{self._rules.hint}") from error
        except ChangedError as error:
            raise ChangedError(f"{error}; {self._rules.remedy}") from error
        except TransferError as error:
            raise TransferError(f"{error}; {self._rules.remedy}{self._rules.hint}") from error
        if not proof.is_checked() and self._options.requires_checksum(entry.uri):
            raise TransferError(
                f"{entry.uri}: the source names no checksum; name a list of them in source.checksums, or "
                "write source.require_checksum: false to accept files by their size"
            )
        return proof

    def _refuse_machine_error(self, entry: Entry, error: Exception) -> None:
        """Raise MachineError where this machine failed: no file is set aside whose bytes were not read."""
        if scheme_of(entry.uri) not in REMOTE:  # a connection that ends has an errno, too
            refuse_machine_error(error, entry.uri, OF_PROGRAMS)

    async def _check_first_copy(self, path: str) -> None:
        """Check the first copy, before gigabytes of others are made; bytes that are right stay."""
        if self._proofs.file(path).is_symlink():
            return
        accept, self._accept = self._accept, None
        if accept is not None:
            await asyncio.to_thread(accept, self._proofs.file(path))

    def _publish(self, entry: Entry, part: Path, final: Path, proof: Verification) -> None:
        with disk_errors(final):
            os.replace(part, final)  # noqa: PTH105 - that of pathlib parses the path again
        self._proofs.add(entry, proof)

    async def _set_aside(self, copier: Copier, entry: Entry, error: TransferError) -> None:
        if isinstance(error, _FailingError):
            await self._probe(copier, error)
        self.bad[entry.path] = str(error)
        self._progress.message(f"{self._rules.label}: set aside: {error}")

    def _check_number(self, last: TransferError) -> None:
        """Raise SourceError when more files are bad, or fail, than may be set aside."""
        most = min(self._rules.max_quarantined, int(MOST_BAD * len(self._entries)))
        if len(self.bad) + len(self._suspects) > most:
            count = len(self.bad) + len(self._suspects)
            raise SourceError(
                f"{self._rules.label}: {counted(count, 'bad file')}, at most {most} may be set aside "
                f"(source.max_quarantined, and half of those of the range, {len(self._entries)}); the "
                f"last: {last}"
            )

    def _count(self, entry: Entry, proof: Verification) -> None:
        self.done[entry.path] = proof
        self._copied += 1
        self._bytes += proof.size
        rate = self._bytes / 1e6 / max(time.monotonic() - self._begin, 1e-3)
        self._progress.update(
            f"stage {self._rules.label}",
            self._copied,
            len(self._wanted),
            f"{counted(self._copied, 'file')}, {rate:.1f} MB/s",
        )


async def _fetch_listed(copier: Copier, entry: Entry, part: Path) -> Verification:
    """Make one try to copy a file, and compare the copy with what a list says of it."""
    proof, listed = await copier.fetch(entry, part), entry.listed
    if listed is None or proof.verified == LISTED:
        return proof
    checksum = await asyncio.to_thread(checksums.of_file, part, listed.algorithm)
    if checksum == listed.value:
        return Verification(proof.size, checksum, listed.algorithm, LISTED)
    differs = f"{listed.algorithm} is {checksum}, {listed.where} says {listed.value}"
    if scheme_of(entry.uri) in REMOTE:
        raise TemporaryFailure(f"{differs}: bytes were changed on the way", Failure.WRONG_BYTES)
    raise TransferError(f"{entry.uri}: {differs}: the file is damaged, or not the one of the list")


def check_free_space(folder: Path, needed: int, label: str) -> None:
    """Raise DiskError when ``needed`` bytes do not fit on the disk of ``folder``."""
    free = free_bytes(folder)
    if needed > free - RESERVE:
        raise DiskError(
            f"{label}: {size(needed)} needed below {folder}, {size(RESERVE)} kept in reserve, {size(free)} "
            "free; free some space, or set `results` to a larger disk"
        )
