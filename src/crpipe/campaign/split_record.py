"""The record of a finished split: a workflow deletes outputs of a job that it starts again, but not this.

In: the folders of a range's shards and outliers. Out: whether it is finished, and from which raw files.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from crpipe.campaign.ledger import LedgerFile, LedgerFiles
from crpipe.campaign.raw_files import STAGED, Entry, RawFile, StagedFile, Verification, read_manifest
from crpipe.campaign.records import SplitKey
from crpipe.core.causes import is_plain, is_present, look_at
from crpipe.core.errors import DataError, ShardError
from crpipe.core.files import digest, read_json_if_any, sha256
from crpipe.core.paths import FINISHED, HASHES, MANIFEST, Paths
from crpipe.events.shard_records import ShardManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


TABLE, HISTOGRAM, LEDGER = "multiplicity.parquet", "histogram.json", "ledger.json"
OUTLIER_SHARDS, BULK_SHARDS, KEY = "outliers.json", "shards.json", "key.json"
LISTING = "manifest.parquet"  # an earlier crpipe kept none
FILES = (TABLE, HISTOGRAM, LEDGER, OUTLIER_SHARDS, BULK_SHARDS, KEY)
ASIDE = ".finished.old"  # where a person has set it aside
SPILLS, NOTES = ".scatter", "working-on"  # while it is split: what each process works on
NOTE = 4096  # bytes of a process in the file of notes
_SHOWN = 5


def is_manifest_damaged(folder: Path) -> bool:
    """Return whether a manifest of shards has another hash than the recorded one: it says nothing then."""
    path, hashes = folder / MANIFEST, dict[str, str]()
    for record in (folder, folder / FINISHED):
        with contextlib.suppress(DataError):  # a damaged record says nothing of the manifest
            hashes.update(read_json_if_any(record / HASHES) or {})
    try:
        actual = {BULK_SHARDS: sha256(path), MANIFEST: digest(ShardManifest.read(path).as_json())}
    except FileNotFoundError:
        return False
    except DataError:
        return True
    return any(hashes.get(name, value) != value for name, value in actual.items())


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """The record of a range: where its outputs are, besides the record itself."""

    name: str
    listing: Path
    shards: Path
    outliers: Path
    ledger: Path

    @classmethod
    def of(cls, paths: Paths, name: str) -> Self:
        """Name the record of a range of a campaign."""
        return cls(name, paths.manifest(name), paths.shards(name), paths.outliers(name), paths.ledger(name))

    @property
    def folder(self) -> Path:
        """The record's own folder."""
        return self.shards / FINISHED

    def is_whole(self) -> bool:
        """Return whether the range is finished: its record has all files, and every shard has its size.

        Times say nothing about it, nor does what else is there: only a person can take it back.
        """
        return all(is_present(self.folder / file) for file in FILES) and self._has_shards()

    def _has_shards(self) -> bool:
        for file, folder in ((BULK_SHARDS, self.shards), (OUTLIER_SHARDS, self.outliers)):
            for entry in ShardManifest.read(self.folder / file).shards:
                for part, recorded in entry.files.items():
                    path = folder / f"{entry.name}.{part}.parquet"
                    status = look_at(path)
                    if status is None or status.st_size != recorded.size:
                        return False
        return True

    def rows(self) -> tuple[LedgerFile, ...]:
        """List the raw files that the range was made from; none where no ledger is left."""
        for path in (self.folder / LEDGER, self.ledger, self.shards / ASIDE / LEDGER):
            with contextlib.suppress(DataError):
                if is_present(path):
                    return LedgerFiles.read(path).files
        return ()

    def has_key(self, key: SplitKey) -> bool:
        """Return whether the range, finished or set aside, was made from what ``key`` describes."""
        for folder in (self.folder, self.shards / ASIDE):
            with contextlib.suppress(DataError):
                if SplitKey.read_if_any(folder / KEY) == key:
                    return True
        return False

    def staged_again(self, entries: Sequence[Entry]) -> list[StagedFile]:
        """Return the staged table of a finished range without its raw copies.

        Raise DataError when the listing is another one.
        """
        self.refuse_other_listing(entries)
        rows = {row.path: row for row in self.rows()}
        return [StagedFile(entry, _proof(rows[entry.path]), rows[entry.path].reason) for entry in entries]

    def adopt(self, data: str, threshold: int) -> None:
        """Check that a finished range is what would be made now; raise ShardError or DataError otherwise."""
        key = SplitKey.read(self.folder / KEY)
        for name, before, value in (("data", key.data, data), ("threshold", key.threshold, threshold)):
            if before != value:
                raise ShardError(
                    f"{self.shards}: was split with another key ({name} {before}, now {value}); restore the "
                    f"configuration, or make the range again: {self.remove()}, and run it again"
                )
        if is_present(self.listing):
            self.refuse_other_listing(read_manifest(self.listing))

    def refuse_other_listing(self, entries: Sequence[Entry]) -> None:
        """Raise DataError unless a listing names the files that the range was made from, with their sizes."""
        self._refuse(_listed(entries), self.rows(), "the listing has")

    def changes(self, entries: Iterable[Entry | RawFile]) -> list[str]:
        """Describe each file of a listing that is new, gone or changed since the range was made."""
        return list(_changes(_listed(entries), {row.path: row for row in self.rows()}))

    def refuse_other_files(self, files: Sequence[RawFile]) -> None:
        """Raise DataError when staged files are not those that the range was made from."""
        rows = self.rows()
        aside = {row.path for row in rows if row.state != STAGED}
        there = {
            file.path: (file.size, file.algorithm, file.checksum)
            for file in files
            if file.state == STAGED and file.path not in aside
        }
        self._refuse(there, [row for row in rows if row.path not in aside], "there is")

    def _refuse(
        self, listed: Mapping[str, tuple[int | None, str, str]], rows: Iterable[LedgerFile], says: str
    ) -> None:
        recorded = {row.path: row for row in rows}
        changes = list(_changes(listed, recorded)) if recorded else []
        if not changes:
            return
        more = [f"  … and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
        head = f"range {self.name} is split, and was made from other files than {says} now:"
        remedy = (
            "it stays as it is: restore these files, or the listing; to make the range again from what the "
            f"source has now: {self.remove()}, and run the same command again"
        )
        raise DataError("\n".join([head, *changes[:_SHOWN], *more, remedy]))

    def remove(self) -> str:
        """Return the command by which a person gives a finished range up."""
        files = (self.shards, self.outliers, self.ledger, self.listing)
        return f"rm -rf {shlex.join(map(str, files))}"


def left_notes(notes: Path) -> dict[int, str]:
    """Read what each process worked on when it, or its parent, died: {process: file}."""
    if not is_plain(notes):
        return {}
    data = notes.read_bytes()
    texts = [data[at : at + NOTE].partition(b"\0")[0] for at in range(0, len(data), NOTE)]
    pairs = [os.fsdecode(text).partition(" ") for text in texts if text]
    return {int(process): path for process, _, path in pairs}


def _listed(entries: Iterable[Entry | RawFile]) -> dict[str, tuple[int | None, str, str]]:
    return {entry.path: (entry.size, "", "") for entry in entries}


def _changes(
    listed: Mapping[str, tuple[int | None, str, str]], recorded: Mapping[str, LedgerFile]
) -> Iterator[str]:
    """Describe how files differ from the rows of a ledger, as far as sizes and checksums are known."""
    for path in sorted({*listed, *recorded}):
        if path not in recorded:
            yield f"  {path}: new"
        elif path not in listed:
            yield f"  {path}: gone"
        else:
            (size, algorithm, checksum), row = listed[path], recorded[path]
            if size is not None and row.state == STAGED and size != row.size:
                yield f"  {path}: {row.size} bytes before, {size} now"
            elif checksum and algorithm == row.algorithm and checksum != row.checksum:
                yield f"  {path}: {algorithm} {row.checksum} before, {checksum} now"


def _proof(row: LedgerFile) -> Verification | None:
    if row.state != STAGED or row.size is None:
        return None
    return Verification(row.size, row.checksum, row.algorithm, row.verified)
