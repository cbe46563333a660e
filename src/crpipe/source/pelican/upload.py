"""Send one file into a Pelican federation, and verify what arrived there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from crpipe.core import checksums
from crpipe.core.errors import AccessError, TransferError
from crpipe.source.pelican.director import BUFFER, Director, cause
from crpipe.source.pelican.download import DownloadError, https_only
from crpipe.source.pelican.tokens import Tokens
from crpipe.source.pelican.transfer import DENIED, WANTED, authorization
from crpipe.source.retries import Transient
from crpipe.source.uris import host_and_path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Self

    from crpipe.source.options import SourceOptions


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

        Raise Transient when another try may succeed, TransferError or AccessError when not.
        """
        path = f"{self._root.rstrip('/')}/{name}"
        url = await self._federation.upload_url(path)
        headers = authorization(self._tokens.current())
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
            ) as answer:
                _check_status(answer.status, path)
            asking = headers | {"Want-Digest": WANTED}
            async with session.head(
                URL(url, encoded=True), headers=asking, raise_for_status=False, middlewares=(https_only,)
            ) as answer:
                arrived, named = answer.content_length, checksums.parse(answer.headers.get("Digest", ""))
        except (aiohttp.ClientError, DownloadError, TimeoutError, OSError) as error:
            raise Transient(f"{path}: {cause(error)}", outage=True) from error
        if arrived != size:
            raise Transient(f"{path}: {arrived} of {size} bytes arrived")
        if named and await asyncio.to_thread(checksums.of_file, file, named[0]) != named[1]:
            raise Transient(f"{path}: what arrived has another {named[0]}, or the file changed meanwhile")


def _check_status(status: int, path: str) -> None:
    if status in DENIED:
        raise AccessError(f"{path}: refused (status {status}); the token needs storage.modify for this path")
    if 400 <= status < 500:  # noqa: PLR2004 - the request is wrong, and stays so
        raise TransferError(f"{path}: cannot be written (status {status})")
    if status >= 500:  # noqa: PLR2004
        raise Transient(f"{path}: the server answers {status}")


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    handle = await asyncio.to_thread(file.open, "rb")
    with handle:
        while piece := await asyncio.to_thread(handle.read, BUFFER):
            yield piece
