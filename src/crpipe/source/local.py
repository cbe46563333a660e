"""Raw files in a directory of this machine: a mounted file system or the user's own disk."""

from __future__ import annotations

import asyncio
import errno
import fnmatch
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from crpipe.core import checksums
from crpipe.core.errors import ListingError, TransferError
from crpipe.core.files import writing
from crpipe.core.raw_files import Entry, Proof
from crpipe.source.retries import Transient
from crpipe.source.uris import host_and_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.core.ranges import Range
    from crpipe.source.uris import RangeSource

_PERMANENT = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}


class LocalSource:
    """Lists directories and copies files, comparing each copy with its source."""

    async def entries(self, name: Range, place: RangeSource) -> Sequence[Entry]:
        """List the regular files of the range's directory that match the pattern."""
        folder = Path(place.folder)
        try:
            names = sorted(fnmatch.filter(os.listdir(folder), place.pattern))  # noqa: PTH208 - names, not paths
        except OSError as error:
            raise ListingError(
                f"range {name}: {folder} cannot be listed ({error.strerror}); check source.uri, or skip the "
                "range with ranges.skip"
            ) from error
        return [_entry(folder / file, file) for file in names if not (folder / file).is_dir()]

    async def describe(self, uris: Sequence[str], paths: Sequence[str]) -> Sequence[Entry]:
        """Look up size and time of named files."""
        return [_entry(Path(host_and_path(uri)[1]), path) for uri, path in zip(uris, paths, strict=True)]

    async def fetch(self, entry: Entry, part: Path) -> Proof:
        """Copy one file; the checksum of what was read must be that of what stands in the copy."""
        return await asyncio.to_thread(_copy, entry, part)


def _entry(file: Path, path: str) -> Entry:
    try:
        found = file.stat()
    except OSError as error:
        raise ListingError(f"{file}: cannot be looked up ({error.strerror}); correct the source") from error
    return Entry(path, str(file), found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def _copy(entry: Entry, part: Path) -> Proof:
    digest = checksums.new(checksums.OWN)
    size = 0
    try:
        source = Path(entry.uri).open("rb")  # noqa: SIM115 - closed below; only its opening is judged here
    except OSError as error:
        raise _failure(entry, error) from error
    with source, writing(part), part.open("wb") as copy:
        while chunk := _read(source, entry):
            digest.update(chunk)
            size += copy.write(chunk)
    if size != entry.size:
        raise TransferError(
            f"{entry.uri}: has {size} bytes, its manifest says {entry.size}; it changed: delete the manifest "
            "to list the range again"
        )
    checksum = checksums.of_file(part, checksums.OWN)
    if checksum != digest.hexdigest():
        raise Transient(f"the copy differs from its source (crc32c {checksum}, source {digest.hexdigest()})")
    return Proof(size, checksum, checksums.OWN, "copy-compare")


def _read(source: BinaryIO, entry: Entry) -> bytes:
    try:
        return source.read(checksums.CHUNK)
    except OSError as error:
        raise _failure(entry, error) from error


def _failure(entry: Entry, error: OSError) -> Exception:
    if error.errno in _PERMANENT:
        return TransferError(
            f"{entry.uri}: cannot be read ({error.strerror}); restore it, or delete its manifest to list the "
            "range again"
        )
    return Transient(f"cannot be read ({error.strerror})")
