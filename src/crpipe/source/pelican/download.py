"""Requests of a copy over the HTTP session of its federation: headers first, then the body piece by piece."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import aiohttp
from yarl import URL

from crpipe.core import checksums
from crpipe.core.files import disk_errors, open_regular_file
from crpipe.source.pelican.director import SLOWEST, TrickleError, cause
from crpipe.source.pelican.webdav import when
from crpipe.source.retries import CONNECT_S, LONGEST_S, TemporaryFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    Write = Callable[[bytes], object]

LOOKS = 10  # looks at a body during one read timeout
_DIGITS = 18  # of a length; more do not fit into 64 bits
_UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError)


class DownloadError(Exception):
    """The answer is missing or incomplete; the text says why, without secrets. ``outage``: no connection."""

    def __init__(self, reason: str, *, outage: bool = False) -> None:
        super().__init__(reason)
        self.outage = outage


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and headers of an answer, the last one when redirects were followed.

    elsewhere: the server that they led to, which got no token; empty when it is the one that was asked.
    """

    status: int
    headers: Mapping[str, str]  # any case of a name finds it
    elsewhere: str = ""

    def header(self, name: str) -> str:
        """Return the value of a header, empty when there is none."""
        return self.headers.get(name, "")

    @property
    def length(self) -> int | None:
        """Length of the body by its header, in bytes; None when the server does not send it."""
        named = self.header("Content-Length")
        return int(named) if named.isdecimal() and len(named) <= _DIGITS else None

    @property
    def mtime(self) -> datetime | None:
        """Time of the file's last change; None where the server does not name it, or names the present time.

        Apache does so for a file whose time is in the future, other servers for files that they make.
        """
        named, now = when(self.header("Last-Modified")), when(self.header("Date"))
        return None if named and now and named >= now else named

    @property
    def retry_after(self) -> float:
        """Seconds that a busy server asks to wait, 0 when it does not."""
        named = self.header("Retry-After").strip()
        if re.fullmatch(r"[0-9]{1,9}", named):
            return min(float(named), LONGEST_S)
        moment = when(named)
        return min(max(0.0, moment.timestamp() - time.time()), LONGEST_S) if moment else 0.0

    def compression(self, *sizes: int) -> str:
        """Describe that the body is compressed on its way; empty where it has one of the file's ``sizes``.

        Some servers name the encoding of a file that is stored so (x.gz), and send it as it is.
        """
        named = self.header("Content-Encoding").strip()
        if named.lower() in {"", "identity"} or self.length in sizes:
            return ""
        return (
            f"comes compressed (Content-Encoding: {named}), though it is asked for as it is; ask the site to "
            "switch that off"
        )


class Downloads:
    """HEAD and GET over one session; its read timeout bounds the pause between two pieces of an answer.

    Redirects are followed: without the token to another server, and never from https to http.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        read_timeout_s = session.timeout.sock_read or 0.0
        self._look_s = read_timeout_s / LOOKS
        self._headers_s = CONNECT_S + 2 * read_timeout_s

    async def head(self, url: str, headers: Mapping[str, str]) -> Answer:
        """Ask for the headers alone; raise DownloadError."""
        return await self._request("HEAD", url, headers, None)

    async def get(
        self, url: str, headers: Mapping[str, str], receive: Callable[[Answer], Write], method: str = "GET"
    ) -> Answer:
        """Pass the answer to ``receive`` and its body to what that returns; raise DownloadError.

        What either of them raises (a CrpipeError, TemporaryFailure) ends the request and is raised here.
        """
        return await self._request(method, url, headers, receive)

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], receive: Callable[[Answer], Write] | None
    ) -> Answer:
        is_secure = url.startswith("https:")
        if "Authorization" in headers and not is_secure:
            raise DownloadError("the token is not sent, because the address is not https", outage=True)
        try:
            # Headers that trickle never meet the read timeout.
            async with asyncio.timeout(self._headers_s):
                response = await self._session.request(
                    method,
                    URL(url, encoded=True),
                    headers=headers,
                    raise_for_status=False,
                    middlewares=(https_only,) if is_secure else (),
                )
            async with response:
                first, last = URL(url, encoded=True).origin(), response.url.origin()
                answer = Answer(response.status, response.headers, "" if first == last else str(last))
                if receive:
                    await self._receive(response.content, receive(answer))
                return answer
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: not an address
            raise DownloadError(cause(error), outage=isinstance(error, _UNREACHED)) from error

    async def _receive(self, body: aiohttp.StreamReader, write: Write) -> None:
        watch = _Watch(body, self._look_s)
        try:
            async for piece in body.iter_any():
                watch.arrived += len(piece)
                write(piece)
        finally:
            watch.stop()


class _Watch:
    """Ends a body of which too little arrives during LOOKS looks; not seconds: a slow disk stops the loop.

    aiohttp's own timeout is not enough: after a chunk that is not valid, its reader waits for ever, and a
    server that sends a byte now and then never meets it.
    """

    def __init__(self, body: aiohttp.StreamReader, pause_s: float) -> None:
        self.arrived = 0  # bytes since the window began
        self._looks = 0
        self._body = body
        self._pause_s = pause_s
        self._needed = SLOWEST * pause_s * LOOKS
        self._loop = asyncio.get_running_loop()
        self._look()

    def _look(self) -> None:
        if self._looks > LOOKS:
            if self.arrived < self._needed:
                self._body.set_exception(TrickleError() if self.arrived else aiohttp.SocketTimeoutError())
            self._looks = self.arrived = 0
        self._looks += 1
        self._next = self._loop.call_later(self._pause_s, self._look)

    def stop(self) -> None:
        """Stop looking."""
        self._next.cancel()


async def https_only(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Refuse the request that follows a redirect to http."""
    if request.url.scheme != "https":
        raise DownloadError(f"redirects from https to {request.url.origin()}")
    return await send(request)


# A partial copy: what arrives is written, read back from the file, and then added to its checksum.


PIECE = 1 << 18  # bytes written at once; they are read back while the processor's cache still has them
STRIDE = 1 << 23  # bytes after which the system is asked to write to the disk


class PartialFile:
    """The file ``path``, which is to have ``size`` bytes; it keeps what an earlier try wrote.

    Raise DiskError when it cannot be written, TemporaryFailure when more bytes come than belong there.
    """

    def __init__(self, path: Path, size: int, algorithm: str) -> None:
        self.path = path
        self.size = size
        self.algorithm = algorithm
        self._begin_again()
        with disk_errors(path):
            self._handle = open_regular_file(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._written = self._begun = os.fstat(self._handle).st_size
        if self._written > size:
            self.restart()
        self.kept = self._written

    def __enter__(self) -> Self:
        """Return this file, which is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Keep all that arrived, for the next try."""
        try:
            self.flush()
        finally:
            os.close(self._handle)

    @property
    def position(self) -> int:
        """Where the next byte belongs."""
        return self._written + self._held

    def restart(self) -> None:
        """Start again from the first byte."""
        with disk_errors(self.path):
            os.ftruncate(self._handle, 0)
        self._begin_again()

    def _begin_again(self) -> None:
        self._written = self._read = self._begun = 0
        self._digest = checksums.new(self.algorithm)
        self._drop()

    def _drop(self) -> None:
        """Drop the bytes that are not in the file yet."""
        self._chunks: list[bytes] = []
        self._held = 0

    def write(self, data: bytes) -> None:
        """Add the next bytes."""
        self._chunks.append(data)
        self._held += len(data)
        if self.position > self.size:
            self._drop()
            raise TemporaryFailure(f"more bytes than the {self.size} of the manifest came")
        if self._held >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Write the bytes that were added, and read them back."""
        if not self._held:
            return
        data = memoryview(b"".join(self._chunks))
        self._drop()
        with disk_errors(self.path):
            while data:  # a disk that fills up accepts a part, then raises
                count = os.pwrite(self._handle, data, self._written)
                self._written += count
                data = data[count:]
        self.read_back()
        if self._written - self._begun >= STRIDE:
            # Linux begins to write such pages out, and cannot drop them before: a large file is nearly on the
            # disk when it is flushed.
            os.posix_fadvise(self._handle, self._begun, self._written - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = self._written

    def read_back(self) -> None:
        """Add the file's content to the checksum; after an earlier try this may take seconds."""
        while self._read < self._written:
            data = os.pread(self._handle, min(checksums.CHUNK, self._written - self._read), self._read)
            if not data:
                raise TemporaryFailure("the copy shrank while it was made")
            self._digest.update(data)
            self._read += len(data)

    def checksum(self) -> str:
        """Return the checksum of the file's content, in hexadecimal."""
        self.flush()
        self.read_back()
        return self._digest.hexdigest()
