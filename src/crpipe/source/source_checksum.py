"""The checksum that a source names of one file, and whether a file here has it: any user's question."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.core.errors import AccessError, ConfigError, ListingError, TransferError
from crpipe.core.files import disk_errors
from crpipe.source.retries import Deadline, Failure, TemporaryFailure, retry
from crpipe.source.sources import open_source
from crpipe.source.uris import SYNTHETIC, SourceOptions, place_of

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SourceChecksum:
    """What a source says of one file: size in bytes, algorithm, and checksum in hexadecimal."""

    uri: str
    size: int
    algorithm: str
    value: str

    def __str__(self) -> str:
        """Return a row that ``source.checksums`` reads."""
        return f"{self.algorithm}:{self.value}  {self.uri}"


def ask_checksum(options: SourceOptions, uri: str) -> SourceChecksum:
    """Ask a source for the checksum of a file; of one on this machine, compute it.

    Raise ListingError for a missing file or no answer, TransferError where the source names no checksum,
    AccessError for a refusal.
    """
    scheme, host = place_of(uri, "URI")
    if scheme == SYNTHETIC:
        raise ConfigError(f"{uri}: a simulator has no files; name one of a source")
    deadline = Deadline(options.deadline_s, uri)

    async def ask() -> tuple[int, tuple[str, str] | None]:
        async with open_source(options, scheme, host, deadline) as source:
            return await retry(lambda: source.checksum(uri), attempts=options.attempts, deadline=deadline)

    try:
        size, named = asyncio.run(ask())
    except TemporaryFailure as error:
        text = str(error) if uri in str(error) else f"{uri}: {error}"
        if error.kind is Failure.DENIED:
            raise AccessError(f"{text}; see `crpipe token`") from error
        what = "correct the address" if error.kind is Failure.MISSING else "run the same command again later"
        raise ListingError(f"{text}; {what}") from error
    if named is None:
        raise TransferError(
            f"{uri}: {size} bytes, and the source names no checksum; ask its owner for a list of checksums "
            "(source.checksums)"
        )
    return SourceChecksum(uri, size, *named)


def compare_file(named: SourceChecksum, file: Path) -> str:
    """Compare a file here with what a source says, and return that it agrees; raise TransferError if not."""
    with disk_errors(file):
        size, value = file.stat().st_size, checksums.of_file(file, named.algorithm)
    if size != named.size:
        raise TransferError(f"{file}: {size} bytes, {named.uri} has {named.size}; copy it again")
    if value != named.value:
        raise TransferError(
            f"{file}: {named.algorithm} is {value}, that of {named.uri} is {named.value}; copy it again"
        )
    return f"{file}: {size} bytes, {named.algorithm} {value}: the same as {named.uri}"
