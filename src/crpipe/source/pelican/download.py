"""Requests of a copy over the HTTP session of its federation: headers first, then the body piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from crpipe.source.pelican.director import cause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Write = Callable[[bytes], object]

_UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError)


class DownloadError(Exception):
    """The answer is missing or incomplete; the text says why, without secrets. ``outage``: no connection."""

    def __init__(self, reason: str, *, outage: bool = False) -> None:
        super().__init__(reason)
        self.outage = outage


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and headers of an answer, the last one when redirects were followed."""

    status: int
    headers: Mapping[str, str]  # any case of a name finds it

    def header(self, name: str) -> str:
        """The value of a header, empty when there is none."""
        return self.headers.get(name, "")

    @property
    def length(self) -> int | None:
        """Length of the body by its header, in bytes; None when the server does not send it."""
        named = self.header("Content-Length")
        return int(named) if named.isdecimal() else None


class Downloads:
    """HEAD and GET over one session; its read timeout bounds the pause between two pieces of an answer.

    Redirects are followed: without the token to another server, and never from https to http.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def head(self, url: str, headers: Mapping[str, str]) -> Answer:
        """Ask for the headers alone; raise DownloadError."""
        return await self._request("HEAD", url, headers, None)

    async def get(self, url: str, headers: Mapping[str, str], receive: Callable[[Answer], Write]) -> Answer:
        """Pass the answer to ``receive`` and its body to what that returns; raise DownloadError.

        What either of them raises (a CrpipeError, Transient) ends the request and is raised here.
        """
        return await self._request("GET", url, headers, receive)

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], receive: Callable[[Answer], Write] | None
    ) -> Answer:
        is_secure = url.startswith("https:")
        if "Authorization" in headers and not is_secure:
            raise DownloadError("the token is not sent, because the address is not https", outage=True)
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                raise_for_status=False,
                middlewares=(_https_only,) if is_secure else (),
            ) as response:
                answer = Answer(response.status, response.headers)
                if receive:
                    write = receive(answer)
                    async for piece in response.content.iter_any():
                        write(piece)
                return answer
        except (aiohttp.ClientError, ValueError) as error:  # ValueError: not an address
            raise DownloadError(cause(error), outage=isinstance(error, _UNREACHED)) from error


async def _https_only(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Refuse the request that follows a redirect to http."""
    if request.url.scheme != "https":
        raise DownloadError(f"redirects from https to {request.url.origin()}")
    return await send(request)
