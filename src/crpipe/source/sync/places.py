"""Where a second copy is: a directory or a Pelican federation. Both send a file, and prove what they hold."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from crpipe.core import checksums
from crpipe.core.causes import is_plain, is_present
from crpipe.core.errors import DiskError
from crpipe.core.files import atomic_write, drop_page_cache, sha256
from crpipe.source.retries import TemporaryFailure
from crpipe.source.uris import FEDERATIONS, SourceOptions, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from crpipe.config.loading import Config


class Place(Protocol):
    """What holds a copy. Each method raises TemporaryFailure when a retry may succeed, else a CrpipeError."""

    async def send(self, file: Path, name: str) -> None:
        """Send a file, and verify what arrived."""

    async def size(self, name: str) -> int | None:
        """Return the size in bytes that a file has there; None where it is missing."""

    async def sha256(self, name: str) -> str:
        """Read a file there and return its sha256; empty where it is missing."""


@contextlib.asynccontextmanager
async def open_place(config: Config) -> AsyncIterator[Place]:
    """Open the place that ``sync.to`` names."""
    to = config.sync.to
    if scheme_of(to, "sync.to") not in FEDERATIONS:
        yield Directory(Path(host_and_path(to, "sync.to")[1]))
        return
    # Its own libraries are loaded only where a federation is used.
    from crpipe.source.pelican.upload import Upload  # noqa: PLC0415

    async with Upload(SourceOptions.of(config), to) as upload:
        yield upload


class Directory:
    """A directory of this machine or of a mounted disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, file: Path, name: str) -> None:
        """Copy a file, and compare what was written."""
        await asyncio.to_thread(self._copy, file, self._folder / name)

    async def size(self, name: str) -> int | None:
        """Return the size in bytes that a file has there; None where it is missing."""
        path = self._folder / name
        try:
            return path.stat().st_size if is_plain(path) else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DiskError(f"{path}: cannot be read ({error.strerror})") from error

    async def sha256(self, name: str) -> str:
        """Read a file there and return its sha256; empty where it is missing or cannot be read any more."""
        path = self._folder / name
        try:
            await asyncio.to_thread(drop_page_cache, path)
            return await asyncio.to_thread(sha256, path)
        except OSError:
            return ""

    @staticmethod
    def _copy(file: Path, target: Path) -> None:
        file.stat()  # a file of ours that is gone is no error of the place
        try:
            with atomic_write(target) as part:
                shutil.copyfile(file, part)
                if checksums.of_file(part, checksums.OWN) != checksums.of_file(file, checksums.OWN):
                    raise TemporaryFailure("it changed while it was copied")
        except OSError as error:
            if not is_present(file):
                raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
            raise DiskError(f"{target}: cannot be written ({error.strerror})") from error
