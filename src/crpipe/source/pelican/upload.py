"""Send a file into a Pelican federation, verify what arrived, and look later whether it is still there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import aiohttp
from yarl import URL

from crpipe.core import checksums
from crpipe.core.errors import AccessError, TransferError
from crpipe.source.pelican.director import BUFFER, NOT_FOUND, Director, cause
from crpipe.source.pelican.download import Answer, DownloadError, Downloads, https_only
from crpipe.source.pelican.tokens import Tokens
from crpipe.source.pelican.transfer import DENIED, WANTED, authorization
from crpipe.source.retries import Failure, TemporaryFailure
from crpipe.source.uris import SourceOptions, host_and_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Upload:
    """Sends files below one ``pelican://`` address; needs a token whose scope allows writing there."""

    def __init__(self, options: SourceOptions, to: str) -> None:
        self._tokens = Tokens(options.token_file)
        host, self._root = host_and_path(to, "sync.to")
        self._federation = Director(
            host, connections=options.concurrency, read_timeout_s=options.read_timeout_s
        )

    async def __aenter__(self) -> Self:
        """Open the session."""
        await self._federation.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""
        await self._federation.__aexit__(*error)

    async def send(self, file: Path, name: str) -> None:
        """Send a file and compare the checksum that the origin names with the file's own.

        Raise TemporaryFailure when another try may succeed, TransferError or AccessError when not.
        """
        path, url, headers = await self._where(name)
        size = (await asyncio.to_thread(file.stat)).st_size
        sending = headers | {"Content-Length": str(size)}
        session = self._federation.session
        try:
            async with session.put(
                URL(url, encoded=True),
                data=_pieces(file),
                headers=sending,
                raise_for_status=False,
                middlewares=(https_only,),
            ) as response:
                _check_status(response.status, path, "storage.modify")
        except (aiohttp.ClientError, DownloadError, TimeoutError, OSError) as error:
            raise TemporaryFailure(f"{path}: {cause(error)}", Failure.SERVER_BUSY) from error
        answer = await self._ask(url, headers | {"Want-Digest": WANTED}, path)
        arrived, named = answer.length, checksums.parse(answer.header("Digest"))
        if arrived != size:
            raise TemporaryFailure(f"{path}: {arrived} of {size} bytes arrived")
        if named and await asyncio.to_thread(checksums.of_file, file, named[0]) != named[1]:
            raise TemporaryFailure(
                f"{path}: what arrived has another {named[0]}, or the file changed meanwhile"
            )

    async def size(self, name: str) -> int | None:
        """Ask the origin for the size of a file in bytes; None where it has none.

        Raise TemporaryFailure when another try may succeed, TransferError or AccessError when not.
        """
        path, url, headers = await self._where(name)
        answer = await self._ask(url, headers, path)
        if answer.status in NOT_FOUND:
            return None
        _check_status(answer.status, path, "storage.read")
        if answer.length is None:
            raise TemporaryFailure(f"{path}: the server names no size")
        return answer.length

    async def read(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Pass a file to ``write`` piece by piece, from the origin, past all caches; False where it has none.

        Raise TemporaryFailure when another try may succeed, TransferError or AccessError when not.
        """
        path, url, headers = await self._where(name)
        size = 0

        def receive(answer: Answer) -> Callable[[bytes], object]:
            return keep if answer.status < 300 else len  # noqa: PLR2004 - what explains an error is not kept

        def keep(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            write(piece)

        try:
            answer = await Downloads(self._federation.session).get(url, headers, receive)
        except DownloadError as error:
            raise TemporaryFailure(f"{path}: {error}", Failure.SERVER_BUSY) from error
        if answer.status in NOT_FOUND:
            return False
        _check_status(answer.status, path, "storage.read")
        if answer.length not in (None, size):
            raise TemporaryFailure(f"{path}: {size} of {answer.length} bytes arrived")
        return True

    async def _where(self, name: str) -> tuple[str, str, dict[str, str]]:
        """Return path, address at the origin, and headers for a file."""
        path = f"{self._root.rstrip('/')}/{name}"
        return path, await self._federation.upload_url(path), authorization(self._tokens.current())

    async def _ask(self, url: str, headers: dict[str, str], path: str) -> Answer:
        try:
            return await Downloads(self._federation.session).head(url, headers)
        except DownloadError as error:
            raise TemporaryFailure(f"{path}: {error}", Failure.SERVER_BUSY) from error


def _check_status(status: int, path: str, needed: str) -> None:
    if status in DENIED:
        raise AccessError(f"{path}: refused (status {status}); the token needs {needed} for this path")
    if 400 <= status < 500:  # noqa: PLR2004 - the request is wrong, and stays so
        raise TransferError(f"{path}: cannot be written or read (status {status})")
    if status >= 500:  # noqa: PLR2004
        raise TemporaryFailure(f"{path}: the server answers {status}")


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    handle = await asyncio.to_thread(file.open, "rb")
    with handle:
        while piece := await asyncio.to_thread(handle.read, BUFFER):
            yield piece
