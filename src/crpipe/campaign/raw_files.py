"""The manifest and the staged table of one range: which raw files exist, and how each copy was verified.

Both are Parquet tables with one row per file, sorted by path. They are the only record of what should exist.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from crpipe.core.causes import OF_FORM, refuse_machine_error, retry_io
from crpipe.core.errors import DataError
from crpipe.core.files import atomic_write, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa

    from crpipe.config.sections import SourceSection
    from crpipe.core.paths import Paths

# ruff: noqa: PLC0415

# Most who need a name or a type from here read no table: `status`, and Snakemake.

State = Literal["staged", "quarantined"]
STAGED: State = "staged"
QUARANTINED: State = "quarantined"
_SOURCE_FILES = b"source_files"  # of the Parquet file of a manifest
SERVER_ONLY = "server-checksum"  # of the server that sent the file, where no other one names any
LISTED = "listed-checksum"  # of the list that `source.checksums` names
SIZE_ONLY = "size-only"  # the one way that `source.require_checksum` refuses
CONVERTED = ".converted"  # folder among raw copies: what source.convert made of them
NAME_BYTES = 250  # of a file's name; while it is copied, ".part" is added, and file systems end at 255
FEW = 0.5  # of the median: ranges with fewer files are reported
_LISTED = ("path", "uri", "size", "mtime", "inode", "ctime")  # columns of a manifest
_PROVED = ("size", "checksum", "algorithm", "verified")
_OF_THIS_MACHINE = ("inode", "ctime")  # columns that other sources, and older campaigns, lack
_DIGITS = re.compile(r"([0-9]+)")


def lease_folder(raw: Path) -> Path:
    """Directory of the lease of who writes or deletes the raw copies in ``raw``: it is never deleted itself.

    Where a deleted file that is open stays under a hidden name, a lease among the copies would keep them.
    """
    return raw.parent / ".leases" / raw.name


@dataclass(frozen=True, slots=True)
class ListedChecksum:
    """What a list says of one file: algorithm, checksum in hexadecimal, and the row that says so."""

    algorithm: str
    value: str
    where: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the source.

    ``path`` is its name relative to the range. ``size`` (bytes) is None for a file that is only made when it
    is staged; ``mtime``, and ``inode`` and ``ctime`` (of the last change, also of name or mode) of a file of
    this machine, are None where the source has none. ``listed`` is in no manifest.
    """

    path: str
    uri: str
    size: int | None
    mtime: datetime | None
    listed: ListedChecksum | None = None
    inode: int | None = None
    ctime: datetime | None = None

    def row(self) -> dict[str, Any]:
        """The entry as column values; `dataclasses.asdict` would copy each of them, which costs more."""
        return {name: getattr(self, name) for name in _LISTED}


@dataclass(frozen=True, slots=True)
class Verification:
    """How a copy was verified: size in bytes, checksum in hexadecimal, what it was compared with.

    ``verified`` is listed-checksum (that of a list), source-checksum (the source named the checksum),
    server-checksum (only the server that sent the file named it; a cache that keeps an old file names its
    checksum), copy-compare (source and copy were both read; in place: the source was the listed file before
    and after it was read), generated (made here, nothing to compare with) or size-only. ``checksum`` is empty
    until the split reads a file in place.
    """

    size: int
    checksum: str
    algorithm: str
    verified: str

    def row(self) -> dict[str, Any]:
        """The proof as column values."""
        return {name: getattr(self, name) for name in _PROVED}

    def is_checked(self) -> bool:
        """Return whether more than the size was verified."""
        return self.verified != SIZE_ONLY


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One row of the staged table: a verified copy, or a file set aside with the reason."""

    entry: Entry
    proof: Verification | None
    reason: str = ""

    @property
    def state(self) -> State:
        """``staged`` when there is a verified copy."""
        return STAGED if self.proof else QUARANTINED

    def row(self) -> dict[str, Any]:
        """The row as column values; a size that only staging could know is filled in."""
        proof = self.proof or Verification(self.entry.size or 0, "", "", "")
        size = self.entry.size if self.entry.size is not None else proof.size
        about = {"size": size, "state": self.state, "reason": self.reason}
        return self.entry.row() | proof.row() | about


@dataclass(frozen=True, slots=True)
class RawFile:
    """One row of the staged table as it is read; ``number``, its place in the table, names it in shards.

    converted: what ``source.convert`` made of it.
    """

    number: int
    path: str
    uri: str
    size: int
    state: State
    reason: str
    checksum: str
    algorithm: str
    verified: str
    mtime: datetime | None = None
    inode: int | None = None
    ctime: datetime | None = None
    converted: RawFile | None = None

    @property
    def ready(self) -> RawFile:
        """The file that the reader reads."""
        return self.converted or self


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts file2 before file10."""
    # Splitting gives text and digits in turn: equal places hold equal types. file01 and file1 differ at last.
    parts = _DIGITS.split(name)
    return [int(part) if index % 2 else part for index, part in enumerate(parts)], name


def check_paths(paths: Iterable[str]) -> str:
    """Describe what is wrong with the paths of a range's files; empty when each names one file of its own.

    A path that is there twice would count its events twice; one with control characters changes the terminal
    of who reads about it.
    """
    listed = list(paths)
    for path in listed:
        parts = path.split("/")
        if path.startswith("/") or {"", ".", ".."} & set(parts):
            return f"{path!r} is outside the range's directory"
        if not path.isprintable():
            return f"{path!r}: the name holds characters that cannot be printed"
        if max(len(part.encode()) for part in parts) > NAME_BYTES:
            return f"{path!r}: a name may have {NAME_BYTES} bytes at most"
    if len(set(listed)) < len(listed):
        twice = [path for path, count in Counter(listed).items() if count > 1]
        return f"{', '.join(twice[:5])}: listed twice; each file may be there once, or its events count twice"
    return ""


def count_listed(manifest: Path) -> int:
    """Return the number of files in a manifest, from its footer alone; 0 when it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(retry_io(lambda: pq.read_metadata(manifest), manifest).num_rows)
    except (pa.ArrowException, OSError):
        return 0


def far_fewer(counts: Mapping[str, int]) -> dict[str, int]:
    """Choose the ranges with less than half of the median number of files: their listing may not be whole."""
    least = FEW * statistics.median(counts.values()) if counts else 0.0
    return {name: count for name, count in counts.items() if count < least}


def write_manifest(path: Path, entries: Iterable[Entry], source_files: int = 0) -> None:
    """Write the manifest atomically; ``source_files``: how many the source has, where not all are taken."""
    rows = [entry.row() for entry in entries]
    left_out = source_files > len(rows)
    schema = _manifest_schema()
    _write(path, rows, schema.with_metadata({_SOURCE_FILES: str(source_files)}) if left_out else schema)


def count_source_files(manifest: Path) -> int | None:
    """Return how many files the source has of a range of which not all are taken; None where all are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        count = (retry_io(lambda: pq.read_schema(manifest), manifest).metadata or {}).get(_SOURCE_FILES)
        return None if count is None else int(count)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError, ValueError) as error:
        refuse_machine_error(error, manifest, OF_FORM)
        raise DataError(f"{manifest}: damaged ({error}); delete it and list the range again") from error


def read_manifest(path: Path) -> list[Entry]:
    """Read a manifest, or the manifest's part of a staged table; raise DataError when missing or damaged."""
    again = "list the range again"
    rows = _read_table(path, _manifest_schema().names, "list", if_damaged=again, if_wrong=again)
    return [Entry(**row) for row in rows]


def _read_table(
    path: Path, names: list[str], verb: str, *, if_damaged: str, if_wrong: str
) -> list[dict[str, Any]]:
    """Read columns of a table that ``crpipe verb`` writes; raise DataError when it is missing or damaged.

    if_damaged, if_wrong: what to do with a file that is no such table, and with one whose paths are wrong.
    """
    import pyarrow as pa

    try:
        rows = retry_io(lambda: _rows(path, names), path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing; run `crpipe {verb} {path.stem}` first") from error
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        refuse_machine_error(error, path, OF_FORM)
        raise DataError(f"{path}: damaged ({error}); delete it and {if_damaged}") from error
    problem = check_paths(row["path"] for row in rows)
    if problem:
        raise DataError(f"{path}: {problem}; delete it and {if_wrong}")
    return rows


def _rows(path: Path, names: list[str]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        held = file.schema_arrow.names
        there = [name for name in names if name not in _OF_THIS_MACHINE or name in held]
        return file.read(there).select(there).to_pylist()  # type: ignore[no-any-return]


def write_staged(path: Path, files: Iterable[StagedFile]) -> None:
    """Write the staged table atomically."""
    _write(path, [file.row() for file in files], _staged_schema())


def read_staged(path: Path, verb: str = "stage") -> list[RawFile]:
    """Read the staged table, or that of ``verb`` convert; raise DataError when it is missing or damaged."""
    rows = _read_table(
        path,
        _staged_schema().names,
        verb,
        if_damaged="run the same command again",
        if_wrong=f"{verb} the range again: copies that are verified stay",
    )
    return [RawFile(number, **row) for number, row in enumerate(rows)]


def conversion_key(source: SourceSection, file: RawFile) -> str:
    """Return what a converted file follows from: the command, and the raw file."""
    about = [file.path, file.size, file.algorithm, file.checksum]
    return digest([source.convert, source.convert_suffix, *about])


def read_ready(paths: Paths, source: SourceSection, name: str) -> list[RawFile]:
    """Read the staged table; where files are converted, with the result of each.

    Raise DataError when a table is missing or damaged, or where a file was not converted as it is now.
    """
    files = read_staged(paths.staged(name))
    if not source.convert:
        return files
    table = paths.converted(name)
    rows = {row.uri: row for row in read_staged(table, "convert")}

    def with_result(file: RawFile) -> RawFile:
        if file.state != STAGED:
            return file
        row = rows.get(conversion_key(source, file))
        if row is None:
            raise DataError(f"{table}: {file.path} is another file now; run `crpipe convert {name}` again")
        if row.state != STAGED:
            return replace(file, state=QUARANTINED, reason=row.reason)
        return replace(file, converted=replace(row, path=f"{CONVERTED}/{file.path}{source.convert_suffix}"))

    return [with_result(file) for file in files]


@cache
def _manifest_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("path", pa.string(), nullable=False),
            pa.field("uri", pa.string(), nullable=False),
            pa.field("size", pa.int64()),
            pa.field("mtime", pa.timestamp("us", tz="UTC")),
            pa.field("inode", pa.uint64()),
            pa.field("ctime", pa.timestamp("us", tz="UTC")),
        ]
    )


@cache
def _staged_schema() -> pa.Schema:
    import pyarrow as pa

    words = ("state", "reason", "checksum", "algorithm", "verified")
    return pa.schema([*_manifest_schema(), *(pa.field(name, pa.string(), nullable=False) for name in words)])


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows.sort(key=lambda row: str(row["path"]))
    for name in _OF_THIS_MACHINE:
        if all(row[name] is None for row in rows):
            schema = schema.remove(schema.get_field_index(name))
    with atomic_write(path) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), part)
