"""The staged table of one range: which raw files there are, and whether they are still what was staged."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import DataError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

STAGED, QUARANTINED = "staged", "quarantined"
_COLUMNS = ["path", "size", "state", "reason", "checksum", "algorithm", "verified"]
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class RawFile:
    """One row of the staged table; ``number`` is its place in the sorted table and names it in shards."""

    number: int
    path: str
    size: int
    state: str
    reason: str
    checksum: str
    algorithm: str
    verified: str


def read_staged(path: Path) -> list[RawFile]:
    """Read the staged table; raise DataError when it is missing or damaged."""
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read(_COLUMNS).select(_COLUMNS).to_pylist()
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing; run `crpipe stage {path.stem}` first") from error
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path}: damaged ({error}); delete it and run the same command again") from error
    return [RawFile(number, **row) for number, row in enumerate(rows)]


def check_present(folder: Path, file: RawFile) -> None:
    """Raise SourceError unless the raw copy is there with the size that was staged."""
    path = folder / file.path
    if not path.is_file():
        raise SourceError(f"{path}: missing, though it was staged; {_advice(folder)}")
    size = path.stat().st_size
    if size != file.size:
        raise SourceError(f"{path}: {size} bytes, {file.size} were staged; {_advice(folder)}")


def check_unchanged(folder: Path, file: RawFile) -> None:
    """Raise SourceError unless the raw copy has the checksum that was staged."""
    path = folder / file.path
    if file.checksum and checksum(path, file.algorithm) != file.checksum:
        raise SourceError(f"{path}: changed since it was staged ({file.algorithm}); {_advice(folder)}")


def _advice(folder: Path) -> str:
    return f"delete {folder}.parquet and stage the range again"


def checksum(path: Path, algorithm: str) -> str:
    """Hash a file as the staging did: lower-case hexadecimal."""
    running = {"crc32c": (google_crc32c.extend, 0), "adler32": (zlib.adler32, 1)}
    with path.open("rb") as handle:
        if algorithm not in running:
            return hashlib.file_digest(handle, algorithm).hexdigest()
        extend, value = running[algorithm]
        while chunk := handle.read(_CHUNK):
            value = extend(value, chunk) if algorithm == "crc32c" else extend(chunk, value)
    return f"{value:08x}"
