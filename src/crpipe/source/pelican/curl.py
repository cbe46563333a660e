"""Many HTTP requests at once over libcurl, in the thread of the event loop that awaits them.

libcurl, because aiohttp, and with it pelicanfs, needs several times the CPU time for each file. All libcurl
sockets are registered in one private selector, which the event loop watches as a single file descriptor; no
extra thread is needed.
"""

from __future__ import annotations

import asyncio
import math
import os
import selectors
import ssl
from typing import TYPE_CHECKING

import pycurl

from crpipe.core.errors import CrpipeError
from crpipe.source.retries import CONNECT_S, Transient, redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    Write = Callable[[bytes], object]

NEVER = float("inf")
LOOKS = 10  # checks of every request during one read timeout
MOVES = 10  # redirects that are followed
PIECE = 1 << 18  # bytes that libcurl reads from a connection at once
_REASONS = {
    pycurl.E_COULDNT_RESOLVE_HOST: "the name of its host is not known",
    pycurl.E_OPERATION_TIMEDOUT: "no answer in time",
    pycurl.E_PEER_FAILED_VERIFICATION: (
        "its certificate is not trusted; name its authority in SSL_CERT_FILE"
    ),
    pycurl.E_PARTIAL_FILE: "the connection ended early",
    pycurl.E_GOT_NOTHING: "the connection ended early",
    pycurl.E_RECV_ERROR: "the connection ended early",
}
_UNREACHED = {
    pycurl.E_COULDNT_RESOLVE_HOST,
    pycurl.E_COULDNT_CONNECT,
    pycurl.E_OPERATION_TIMEDOUT,  # only connecting has a time limit of libcurl's
    pycurl.E_PEER_FAILED_VERIFICATION,
    pycurl.E_SSL_CACERT_BADFILE,
    pycurl.E_SSL_CONNECT_ERROR,
}


class CurlFailure(Exception):  # noqa: N818 - the caller decides what it means
    """The answer is missing or incomplete; the text says why, without secrets. ``outage``: no connection."""

    def __init__(self, reason: str, *, outage: bool = False) -> None:
        super().__init__(reason)
        self.outage = outage


class Answer:
    """Status and headers of an answer, the last one when redirects were followed."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self.status = int(lines[0].split(None, 2)[1])

    def header(self, name: str) -> str:
        """The value of a header, empty when there is none."""
        start = f"{name.lower()}:".encode()
        for line in self._lines:
            if line[: len(start)].lower() == start:
                return line[len(start) :].decode("latin-1").strip()
        return ""

    @property
    def length(self) -> int | None:
        """Length of the body by its header, in bytes; None when the server does not send it."""
        named = self.header("Content-Length")
        return int(named) if named.isdecimal() else None


class Curl:
    """At most ``connections`` requests at once; the connections are kept and used again.

    A request has no time limit, but one that moves nothing for ``read_timeout_s`` fails, and one that is not
    connected by then, or after CONNECT_S.
    """

    def __init__(self, *, connections: int, read_timeout_s: float) -> None:
        self._connections = connections
        self._look_s = read_timeout_s / LOOKS
        self._connect_s = min(CONNECT_S, read_timeout_s)
        self._free = asyncio.Semaphore(connections)
        self._active: dict[pycurl.Curl, _Exchange] = {}
        self._idle: list[pycurl.Curl] = []
        self._watched: set[int] = set()
        self._due = NEVER
        self._alarm: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Prepare; nothing is connected yet. SSL_CERT_FILE and SSL_CERT_DIR are read now."""
        self._trusted = ssl.get_default_verify_paths()
        self._loop = asyncio.get_running_loop()
        self._sockets = selectors.DefaultSelector()
        self._loop.add_reader(self._sockets, self._on_ready)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, self._connections)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)
        self._looking = self._loop.call_later(self._look_s, self._look)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        self._looking.cancel()
        self._loop.remove_reader(self._sockets)
        self._multi.close()
        for easy in self._idle:
            easy.close()
        if self._alarm:
            self._alarm.cancel()
        self._sockets.close()

    async def head(self, url: str, headers: Mapping[str, str]) -> Answer:
        """Ask for the headers alone; raise CurlFailure."""
        return await self._request(url, headers, None)

    async def get(self, url: str, headers: Mapping[str, str], receive: Callable[[Answer], Write]) -> Answer:
        """Pass the answer to ``receive`` and its body to what that returns; raise CurlFailure.

        What either of them raises (a CrpipeError, Transient, OSError) ends the request and is raised here.
        """
        return await self._request(url, headers, receive)

    async def _request(
        self, url: str, headers: Mapping[str, str], receive: Callable[[Answer], Write] | None
    ) -> Answer:
        async with self._free:
            easy = self._idle.pop() if self._idle else self._easy()
            exchange = _Exchange(self._loop.create_future(), receive)
            easy.setopt(pycurl.URL, url)
            easy.setopt(pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in headers.items()])
            easy.setopt(pycurl.NOBODY if receive is None else pycurl.HTTPGET, 1)
            easy.setopt(pycurl.HEADERFUNCTION, exchange.on_header)
            easy.setopt(pycurl.WRITEFUNCTION, exchange.on_body)
            self._active[easy] = exchange
            self._multi.add_handle(easy)
            try:
                return await exchange.done
            finally:
                del self._active[easy]
                self._multi.remove_handle(easy)
                self._idle.append(easy)

    def _easy(self) -> pycurl.Curl:
        easy = pycurl.Curl()
        easy.setopt(pycurl.NOSIGNAL, 1)
        easy.setopt(pycurl.USERAGENT, "crpipe")
        easy.setopt(pycurl.PROXY, "")
        easy.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        easy.setopt(pycurl.BUFFERSIZE, PIECE)
        easy.setopt(pycurl.CONNECTTIMEOUT_MS, math.ceil(self._connect_s * 1000))
        # libcurl never sends an Authorization header on to another host, port or protocol.
        easy.setopt(pycurl.FOLLOWLOCATION, 1)
        easy.setopt(pycurl.MAXREDIRS, MOVES)
        easy.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        easy.setopt(pycurl.REDIR_PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        easy.setopt(pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2)
        # The same trust as Python's: pycurl brings an OpenSSL with other places of its own.
        if self._trusted.cafile:
            easy.setopt(pycurl.CAINFO, self._trusted.cafile)
        if self._trusted.capath:
            easy.setopt(pycurl.CAPATH, self._trusted.capath)
        return easy

    def _on_socket(self, wanted: int, socket: int, *_: object) -> None:
        """Watch a socket as libcurl wants it watched."""
        watched = socket in self._watched
        if wanted == pycurl.POLL_REMOVE:
            if watched:
                self._watched.remove(socket)
                self._sockets.unregister(socket)
            return
        self._watched.add(socket)
        reading = selectors.EVENT_READ if wanted & pycurl.POLL_IN else 0
        writing = selectors.EVENT_WRITE if wanted & pycurl.POLL_OUT else 0
        change = self._sockets.modify if watched else self._sockets.register
        change(socket, reading | writing)

    def _on_timer(self, milliseconds: int) -> None:
        """Call libcurl after so many milliseconds; never, when the number is negative.

        libcurl changes this time several times for each request, so an alarm that is too early is kept.
        """
        self._due = self._loop.time() + milliseconds / 1000 if milliseconds >= 0 else NEVER
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._due == NEVER or (self._alarm and self._alarm.when() <= self._due):
            return
        if self._alarm:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(self._due, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        if self._loop.time() < self._due:
            self._set_alarm()
            return
        self._due = NEVER
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._settle()

    def _on_ready(self) -> None:
        for key, events in self._sockets.select(0):
            readable = pycurl.CSELECT_IN if events & selectors.EVENT_READ else 0
            writable = pycurl.CSELECT_OUT if events & selectors.EVENT_WRITE else 0
            self._multi.socket_action(key.fd, readable | writable)
        self._settle()

    def _settle(self) -> None:
        """End the exchanges whose requests are over."""
        left = 1
        while left:
            left, fine, failed = self._multi.info_read()
            for easy in fine:
                self._active[easy].end()
            for easy, code, message in failed:
                self._active[easy].end(_failure(easy, code, message))

    def _look(self) -> None:
        """Fail requests without data for LOOKS checks; not seconds: a slow disk may block the loop."""
        self._looking = self._loop.call_later(self._look_s, self._look)
        for easy, exchange in self._active.items():
            if exchange.is_stalled() and easy.getinfo(pycurl.PRETRANSFER_TIME):
                exchange.end(CurlFailure("no answer in time"))


class _Exchange:
    """One request: the part of its answer that arrived, and the future that waits for it."""

    def __init__(self, done: asyncio.Future[Answer], receive: Callable[[Answer], Write] | None) -> None:
        self.done = done
        self._receive = receive
        self._write: Write = self._begin
        self._error: Exception | None = None
        self._lines: list[bytes] = []
        self._moved = True
        self._looks = 0

    def on_header(self, line: bytes) -> None:
        self._moved = True
        if line.startswith(b"HTTP/"):  # of a redirect, or of an answer after one
            self._lines = []
        self._lines.append(line)

    def on_body(self, data: bytes) -> int | None:
        """Pass on a piece of the body; a number other than its length ends the request."""
        self._moved = True
        try:
            self._write(data)
        except (CrpipeError, Transient, OSError) as error:
            self._error = error
            return -1
        return None

    def _begin(self, data: bytes) -> None:
        if self._receive:
            self._write = self._receive(Answer(self._lines))
            self._write(data)

    def is_stalled(self) -> bool:
        """Return whether nothing arrived since LOOKS calls."""
        self._looks = 0 if self._moved else self._looks + 1
        self._moved = False
        return self._looks > LOOKS

    def end(self, failure: CurlFailure | None = None) -> None:
        """Resolve the future: with the answer, an error of this side, or an error of the connection."""
        if failure is None and self._write == self._begin:
            self.on_body(b"")  # a body without bytes
        if self.done.done():
            return
        error = self._error or failure
        if error:
            self.done.set_exception(error)
        else:
            self.done.set_result(Answer(self._lines))


def _failure(easy: pycurl.Curl, code: int, message: str) -> CurlFailure:
    number = easy.getinfo(pycurl.OS_ERRNO) if code == pycurl.E_COULDNT_CONNECT else 0
    reason = os.strerror(number).lower() if number else _REASONS.get(code) or redact(message)
    return CurlFailure(reason, outage=code in _UNREACHED)
