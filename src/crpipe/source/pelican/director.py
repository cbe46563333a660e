"""Find the servers of a path: ask the director of a Pelican federation, through pelicanfs, per namespace.

A single server (https://, davs://) is its own director.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import ssl
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from pelicanfs import PelicanFileSystem
from pelicanfs.exceptions import PelicanException

from crpipe.core.errors import SourceError
from crpipe.source.retries import CONNECT_S, Failure, TemporaryFailure, redact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping

# The servers of one namespace: read from the headers of a director's answer, and avoided while they fail.


AVOIDED_S = 30.0  # how long a server that failed is not used
_LINK = re.compile(r"<([^<>]*)>([^<>]*)")
_RANK = re.compile(r";\s*pri\s*=\s*\"?(\d{1,6})")
_LAST = 1 << 20  # rank of a server without one


@dataclass
class Namespace:
    """One namespace: its data servers in the director's order, its origin last, and its token's base path.

    collections: the server that lists directories; empty when the director names none. is_host: a single
    server, of which nobody says beforehand whether it needs a token.
    """

    prefix: str
    servers: list[str]
    guarded: bool
    base_path: str
    issuer: str
    collections: str = ""
    is_host: bool = False
    asked: float = field(default_factory=time.monotonic)
    _avoided: dict[str, float] = field(default_factory=dict)

    def pick_server(self, without: Container[str] = ()) -> str:
        """Return the first server without a recent failure; when all failed, the one that failed first.

        Servers in ``without`` do not have the file; raise LookupError when no other is left.
        """
        now = time.monotonic()
        having = [server for server in self.servers if server not in without]
        free = [server for server in having if self._avoided.get(server, 0.0) <= now]
        if not having:
            raise LookupError(self.prefix)
        return free[0] if free else min(having, key=lambda server: self._avoided[server])

    def avoid(self, server: str, pause_s: float = AVOIDED_S) -> bool:
        """Avoid a server for a while; return whether another one is left."""
        now = time.monotonic()
        self._avoided[server] = max(self._avoided.get(server, 0.0), now + pause_s)
        return any(self._avoided.get(other, 0.0) <= now for other in self.servers)


def read_namespace(headers: Mapping[str, str], links: list[str], path: str) -> Namespace:
    """Read who serves ``path``; ``links`` are the values of all Link headers.

    Raise TemporaryFailure when the answer names no server, SourceError if a token would go to a server
    without TLS.
    """
    about = _pairs(headers.get("X-Pelican-Namespace", ""))
    rules = _pairs(headers.get("X-Pelican-Token-Generation", ""))
    prefix = about.get("namespace", "").rstrip("/")
    guarded = about.get("require-token", "").lower() == "true"
    named = [root for url in _ranked(links) if (root := root_of(url))]
    collections = root_of(about.get("collections-url", ""))
    if not named or not about.get("namespace", "").startswith("/"):
        raise TemporaryFailure(f"the director names no server for {path}", Failure.SERVER_BUSY)
    servers = [*named, *([collections] if collections else [])]
    if guarded:
        servers = [server for server in servers if server.startswith("https:")]
        if not servers or (collections and collections not in servers):
            raise SourceError(
                f"{path}: needs a token, and the director names {collections or named[0]}, which is not "
                "https; the token is not sent; report it to the site"
            )
    return Namespace(
        prefix=prefix,
        servers=list(dict.fromkeys(servers)),
        guarded=guarded,
        base_path=rules.get("base-path") or prefix,
        issuer=rules.get("issuer", ""),
        collections=collections,
    )


def root_of(url: str) -> str:
    """Return scheme, host and port of an address; empty when it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if usable else ""


def _ranked(links: list[str]) -> list[str]:
    """Name the addresses of Link headers in the order of their priority."""
    links_and_ranks = [(url, _RANK.search(rest)) for line in links for url, rest in _LINK.findall(line)]
    ranked = sorted(links_and_ranks, key=lambda one: int(one[1][1]) if one[1] else _LAST)
    return [url for url, _ in ranked]


def _pairs(header: str) -> dict[str, str]:
    return dict(part.strip().partition("=")[::2] for part in header.split(","))


ANSWER_S = 600.0  # how long a director's answer holds
CLOSING = 100  # checks, a hundredth of a second apart, whether all connections are closed
BUFFER = 1 << 20
DISCOVERY = ".well-known/pelican-configuration"
DISCOVERY_BYTES = 1 << 20  # more is no answer to discovery
NOT_FOUND = {404, 410}
BUSY = {429, 502, 503, 504}
# Nobody has to wait for these: a person has to correct them.
_LASTING = (
    aiohttp.ClientConnectorDNSError,
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ClientConnectorSSLError,
)
SLOWEST = 1000.0  # bytes per second: a body that is slower than this over one read timeout is a stall


class TrickleError(aiohttp.SocketTimeoutError):
    """A body goes on, but too slowly."""


_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}  # OpenSSL's numbers: nobody trusted has signed the certificate
_REASONS: dict[type[Exception], str] = {  # the first that fits
    TrickleError: f"less than {SLOWEST / 1000:g} kB/s came",
    TimeoutError: "no answer in time",
    aiohttp.ClientConnectorDNSError: "the name of its host is not known",
    aiohttp.ClientConnectorSSLError: "a TLS connection cannot be set up",
    aiohttp.ClientConnectorError: "",  # the system's own words
    aiohttp.TooManyRedirects: "too many redirects",
    aiohttp.ClientResponseError: "the answer is not HTTP",
    aiohttp.ClientPayloadError: "the connection ended early",
    aiohttp.ServerDisconnectedError: "the connection ended early",
    aiohttp.ClientOSError: "the connection ended early",
}


class SingleHost:
    """One server that holds all paths, and the HTTP session for all requests to it.

    url: scheme, host and port of the server.
    """

    def __init__(self, url: str, *, connections: int, read_timeout_s: float) -> None:
        self.host = url.partition("://")[2]
        self._connections = connections
        self._answer_s = CONNECT_S + 2 * read_timeout_s
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_S, read_timeout_s), sock_read=read_timeout_s
        )
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._space = Namespace("", [url], guarded=False, base_path="", issuer="", collections=url)
        self._space.is_host = True

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
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the session, and wait until its connections are closed."""
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

    async def namespace(self, _path: str) -> Namespace:
        """Return the server, for every path."""
        return self._space

    async def servers_of(self, _path: str) -> list[str]:
        """Return the address of the server alone."""
        return self._space.servers

    async def collection(self, path: str) -> Namespace:
        """Find where a directory is listed."""
        return await self.namespace(path)


class Director(SingleHost):
    """Discovery and director of one federation, and the HTTP session that everything else uses too."""

    def __init__(self, host: str, *, connections: int, read_timeout_s: float) -> None:
        super().__init__(f"https://{host}", connections=connections, read_timeout_s=read_timeout_s)
        self._namespaces: dict[str, Namespace] = {}
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Open the session; nothing is connected yet."""
        await super().__aenter__()
        self._pelican = PelicanFileSystem(
            f"pelican://{self.host}",
            asynchronous=True,
            skip_instance_cache=True,
            get_client=self._get_session,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session, and wait until its connections are closed."""
        HTTPFileSystem.clear_instance_cache()  # or the next federation here gets the closed session
        await super().__aexit__(*error)

    async def _get_session(self, **_: Any) -> aiohttp.ClientSession:
        return self.session

    async def namespace(self, path: str) -> Namespace:
        """Find who serves ``path``; the director is asked once per namespace; others wait for its answer.

        No token is sent along: a director copies it into the address that it answers with.
        """
        async with self._asking:
            known = self._known(path)
            if known is None:
                known = await self._served_by(self._pelican.get_director_headers, path)
                self._namespaces[known.prefix] = known
            return known

    async def servers_of(self, path: str) -> list[str]:
        """Ask who serves this very ``path``: in one namespace, files may be on different servers."""
        return (await self._served_by(self._pelican.get_director_headers, path)).servers

    async def collection(self, path: str) -> Namespace:
        """Find where a directory is listed: in its ``collections``, which are asked for anew each time."""
        # Not get_dirlist_url of pelicanfs, which waits for an answer for five seconds at most.
        space = await self._served_by(self._propfind, path)
        if not space.collections:
            raise TemporaryFailure(f"the director names no server that lists {path}", Failure.SERVER_BUSY)
        return space

    async def upload_url(self, path: str) -> str:
        """Find the origin's address for writing ``path``, or for reading it past all caches."""
        url, _ = await self._ask(lambda: self._pelican.get_origin_url(quote(path)), path)
        if not str(url).startswith("https://"):
            raise SourceError(
                f"{path}: the director names an origin that is not https; the token is not sent; report it "
                "to the site"
            )
        return str(url)

    async def _served_by(self, question: Callable[[str], Awaitable[Any]], path: str) -> Namespace:
        headers = await self._ask(lambda: question(quote(path)), path)
        return read_namespace(headers, headers.getall("Link", []), path)

    async def _propfind(self, quoted: str) -> Any:
        url = urljoin(self._pelican.director_url, quoted)
        async with self.session.request("PROPFIND", url, allow_redirects=False) as answer:
            return answer.headers

    async def _discover(self) -> None:
        """Find the director; pelicanfs would take whatever the answer holds."""
        if self._pelican.director_url:
            return
        async with self.session.get(f"https://{self.host}/{DISCOVERY}") as answer:
            body = b""
            while len(body) <= DISCOVERY_BYTES and (piece := await answer.content.readany()):
                body += piece
            if not all(one.url.scheme == "https" for one in (*answer.history, answer)):
                raise ValueError(f"{DISCOVERY} is redirected to an address that is not https")
        discovery = json.loads(body) if len(body) <= DISCOVERY_BYTES else None
        director = discovery.get("director_endpoint") if isinstance(discovery, dict) else None
        if not isinstance(director, str) or not director.startswith("https://"):
            raise ValueError(f"{DISCOVERY} names no director with an https address")
        self._pelican.director_url = director.rstrip("/") + "/"

    def _known(self, path: str) -> Namespace | None:
        fresh = time.monotonic() - ANSWER_S
        spaces = [
            space
            for prefix, space in self._namespaces.items()
            if f"{path}/".startswith(f"{prefix}/") and space.asked > fresh
        ]
        return max(spaces, key=lambda space: len(space.prefix), default=None)

    async def _ask(self, question: Callable[[], Awaitable[Any]], path: str) -> Any:
        """Ask the director, after discovery; both have to answer within the read timeout or twice that."""
        where = f"federation {self.host}"
        try:
            async with asyncio.timeout(self._answer_s):
                await self._discover()
                return await question()
        except aiohttp.ClientResponseError as error:
            if error.status in NOT_FOUND and self._pelican.director_url:
                # A director that has just been started does not know all servers yet.
                raise TemporaryFailure(
                    f"{where}: nobody serves {path} (status {error.status}); check source.uri",
                    Failure.NOT_SERVED,
                ) from error
            is_away = error.status >= 500 or error.status in BUSY  # noqa: PLR2004
            who = "the director" if self._pelican.director_url else "discovery"
            raise TemporaryFailure(
                f"{where}: {who} answers {error.status}",
                Failure.FEDERATION_AWAY if is_away else Failure.SERVER_BUSY,
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            is_away = not isinstance(error, (*_LASTING, aiohttp.InvalidURL))
            raise TemporaryFailure(
                f"{where}: out of reach ({cause(error)})",
                Failure.FEDERATION_AWAY if is_away else Failure.SERVER_BUSY,
            ) from error
        except (PelicanException, ValueError, RecursionError) as error:
            raise TemporaryFailure(
                f"{where}: the answer cannot be understood ({cause(error)})", Failure.SERVER_BUSY
            ) from error


def cause(error: BaseException) -> str:
    """Describe a network error in a few words, without secrets."""
    reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "")
    if reason:
        return reason
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        problem = error.certificate_error
        if getattr(problem, "verify_code", 0) in _UNKNOWN_AUTHORITY:
            return "its certificate is not trusted; name its authority in SSL_CERT_FILE"
        return f"its certificate is refused: {getattr(problem, 'verify_message', problem)}".rstrip(".")
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.errno).lower() if error.errno else redact(error.strerror or "no connection")
    text = " ".join(redact(str(error)).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
