"""Find the servers of a path in a Pelican federation: ask its director, through pelicanfs, per namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from pelicanfs import PelicanFileSystem
from pelicanfs.dir_header_parser import parse_director_response
from pelicanfs.exceptions import PelicanException

from crpipe.core.errors import SourceError
from crpipe.source.retries import CONNECT_S, Transient, redact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from typing import Self

ANSWER_S = 600.0  # how long a director's answer holds
BENCH_S = 30.0  # how long a server that failed is not used
CLOSING = 100  # checks, a hundredth of a second apart, whether all connections are closed
BUFFER = 1 << 20
NOT_FOUND = {404, 410}
BUSY = {429, 502, 503, 504}
_REASONS: dict[type[Exception], str] = {  # the first that fits
    TimeoutError: "no answer in time",
    aiohttp.ClientConnectorDNSError: "the name of its host is not known",
    aiohttp.ClientConnectorCertificateError: (
        "its certificate is not trusted; name its authority in SSL_CERT_FILE"
    ),
    aiohttp.ClientConnectorSSLError: "a TLS connection cannot be set up",
    aiohttp.ClientConnectorError: "",  # the system's own words
    aiohttp.TooManyRedirects: "too many redirects",
    aiohttp.ClientResponseError: "the answer is not HTTP",
    aiohttp.ClientPayloadError: "the connection ended early",
    aiohttp.ServerDisconnectedError: "the connection ended early",
    aiohttp.ClientOSError: "the connection ended early",
}


@dataclass
class Namespace:
    """One namespace: its data servers in the director's order, its origin last, and its token's base path."""

    prefix: str
    servers: list[str]
    origin: str
    guarded: bool
    base_path: str
    issuer: str
    asked: float = field(default_factory=time.monotonic)
    _benched: dict[str, float] = field(default_factory=dict)

    def best(self) -> str:
        """The first server without a recent failure; when all failed, the one that failed first."""
        now = time.monotonic()
        free = [server for server in self.servers if self._benched.get(server, 0.0) <= now]
        return free[0] if free else min(self.servers, key=lambda server: self._benched[server])

    def bench(self, server: str) -> bool:
        """Do not use a server for a while; tell whether another one is left."""
        self._benched[server] = time.monotonic() + BENCH_S
        now = time.monotonic()
        return any(self._benched.get(other, 0.0) <= now for other in self.servers)


class Director:
    """Discovery and director of one federation, and the HTTP session that everything else uses too."""

    def __init__(self, host: str, *, connections: int, read_timeout_s: float) -> None:
        self.host = host
        self._connections = connections
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_S, read_timeout_s), sock_read=read_timeout_s
        )
        self._namespaces: dict[str, Namespace] = {}
        self._asking = asyncio.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        """Open the session; nothing is connected yet."""
        # aiohttp's own context is made when it is imported; this one sees SSL_CERT_FILE as it is now.
        connector = aiohttp.TCPConnector(
            limit=self._connections, ssl=ssl.create_default_context(), socket_factory=self._open
        )
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            read_bufsize=BUFFER,
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "crpipe"},
            raise_for_status=True,
        )
        self._pelican = PelicanFileSystem(
            f"pelican://{self.host}",
            asynchronous=True,
            skip_instance_cache=True,
            get_client=self._get_session,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the session, and wait until its connections are closed."""
        HTTPFileSystem.clear_instance_cache()  # or the next federation here gets the closed session
        await self.session.close()
        # aiohttp drops cancelled connections before their TLS shutdown completes; close those sockets here.
        for left in self._sockets:
            with contextlib.suppress(OSError):
                left.shutdown(socket.SHUT_RDWR)
        for _look in range(CLOSING):
            if all(left.fileno() < 0 for left in self._sockets):
                break
            await asyncio.sleep(0.01)

    def _open(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    async def _get_session(self, **_: Any) -> aiohttp.ClientSession:
        return self.session

    async def namespace(self, path: str) -> Namespace:
        """Find who serves ``path``; the director is asked once per namespace; others wait for its answer.

        No token is sent along: a director copies it into the address that it answers with.
        """
        async with self._asking:
            known = self._known(path)
            if known is None:
                headers = await self._ask(self._pelican.get_director_headers(quote(path)), path)
                known = _namespace(headers, path)
                self._namespaces[known.prefix] = known
            return known

    async def collection(self, path: str) -> tuple[str, bool]:
        """Find where a directory is listed; return its URL and whether that needs a token."""
        url, answer = await self._ask(self._pelican.get_dirlist_url(quote(path)), path)
        return url, bool(answer.x_pel_ns_hdr and answer.x_pel_ns_hdr.require_token)

    async def upload_url(self, path: str) -> str:
        """Find the origin's address for writing ``path``."""
        url, _ = await self._ask(self._pelican.get_origin_url(quote(path)), path)
        return str(url)

    def _known(self, path: str) -> Namespace | None:
        fresh = time.monotonic() - ANSWER_S
        found = [
            space
            for prefix, space in self._namespaces.items()
            if f"{path}/".startswith(f"{prefix}/") and space.asked > fresh
        ]
        return max(found, key=lambda space: len(space.prefix), default=None)

    async def _ask(self, question: Awaitable[Any], path: str) -> Any:
        where = f"federation {self.host}"
        try:
            return await question
        except aiohttp.ClientResponseError as error:
            if error.status in NOT_FOUND:
                raise SourceError(
                    f"{where}: nobody serves {path} (status {error.status}); check source.uri"
                ) from error
            raise Transient(f"{where}: the director answers {error.status}", outage=True) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"{where}: out of reach ({cause(error)})", outage=True) from error
        except (PelicanException, ValueError) as error:
            raise Transient(
                f"{where}: the answer cannot be understood ({cause(error)})", outage=True
            ) from error


def cause(error: BaseException) -> str:
    """Describe a network error in a few words, without secrets."""
    reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "")
    if reason:
        return reason
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.errno).lower() if error.errno else redact(error.strerror or "no connection")
    text = " ".join(redact(str(error)).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _namespace(headers: Mapping[str, str], path: str) -> Namespace:
    answer = parse_director_response(headers)
    if not answer.object_servers or answer.x_pel_ns_hdr is None:
        raise Transient(f"the director names no server for {path}", outage=True)
    origin = _root(answer.x_pel_ns_hdr.collections_url or answer.object_servers[-1])
    servers = [_root(url) for url in answer.object_servers]
    prefix = answer.x_pel_ns_hdr.namespace.rstrip("/")
    rules = _pairs(headers.get("X-Pelican-Token-Generation", ""))
    return Namespace(
        prefix=prefix,
        servers=list(dict.fromkeys([*servers, origin])),
        origin=origin,
        guarded=answer.x_pel_ns_hdr.require_token,
        base_path=rules.get("base-path") or prefix,
        issuer=rules.get("issuer", ""),
    )


def _root(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _pairs(header: str) -> dict[str, str]:
    return dict(part.strip().partition("=")[::2] for part in header.split(","))
