"""A Pelican federation on loopback that misbehaves on request: discovery, director, two caches, an origin.

Real sockets, with TLS; every request is answered well unless a rule says otherwise.
"""

import asyncio
import base64
import contextlib
import json
import re
import socket
import ssl
import threading
import zlib
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import google_crc32c

NAMESPACE = "/ns"
ROLES = ("director", "near", "far", "origin", "clear")
DATA = ("near", "far", "origin")
REASONS = {200: "OK", 206: "Partial Content", 207: "Multi-Status", 307: "Temporary Redirect"}
TIME = "Sat, 21 Nov 2026 03:34:57 GMT"


@dataclass
class Rule:
    """Requests of these roles and methods, with this ending of the path, meet ``fault``, ``times`` times."""

    roles: tuple[str, ...]
    methods: tuple[str, ...]
    ending: str
    fault: object
    times: float = float("inf")
    seen: int = 0

    def takes(self, request):
        fits = request.role in self.roles and request.method in self.methods
        if not fits or not request.path.endswith(self.ending) or self.seen >= self.times:
            return False
        self.seen += 1
        return True


@dataclass
class Reply:
    """The good answer to a request, which a fault may change before it is sent."""

    status: int
    headers: dict = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Request:
    """One request: who was asked, for what, and the stream that leads back."""

    role: str
    method: str
    path: str
    headers: dict
    writer: object
    federation: object

    async def send(self, reply, body=None):
        """Send an answer whose length fits it, unless it names one."""
        headers = {"Content-Length": str(len(reply.body)), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'X')}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        await self.raw("\r\n".join([*lines, "", ""]).encode())
        if self.method != "HEAD":
            await self.raw(reply.body if body is None else body)

    async def raw(self, data):
        if self.writer.transport.is_closing():
            raise ConnectionError
        self.writer.write(data)
        await self.writer.drain()


class MisbehavingFederation:
    """The servers, in a thread of their own; ``files`` are served by each data server."""

    def __init__(self, keys, files, rules=(), *, guarded=False, digests=DATA, links=None, escape=quote):
        self.files = dict(files)
        self.rules = list(rules)
        self.guarded = guarded
        self.digests = digests  # roles that name checksums
        self.escape = escape  # how hrefs are written
        self.asked = []
        self._links = links
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(keys / "host.pem", keys / "host.key")

    def url(self, role):
        return f"{'http' if role == 'clear' else 'https'}://localhost:{self.ports[role]}"

    @property
    def uri(self):
        return f"pelican://localhost:{self.ports['director']}{NAMESPACE}/{{range}}/*.parquet"

    def count(self, role, method, ending=""):
        return sum(
            1 for one in self.asked if (one.role, one.method) == (role, method) and one.path.endswith(ending)
        )

    def __enter__(self):
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)))
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _main(self, ready):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._tasks, self._sockets, self.ports, listeners = set(), [], {}, []
        for role in ROLES:
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            listeners.append(listener)
            self.ports[role] = listener.getsockname()[1]
            self._loop.add_reader(listener, self._accept, role, listener)
        ready.set()
        await self._stop.wait()
        for listener in listeners:
            self._loop.remove_reader(listener)
            listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.02)  # lets aborted connections close before their loop does
        for connection in self._sockets:
            connection.close()

    def _accept(self, role, listener):
        """Serve the next connection, known before its handshake: none outlives the server."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._sockets.append(connection)
            self._tasks.add(self._loop.create_task(self._connection(role, connection)))

    async def _connection(self, role, connection):
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        broken = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError)
        with contextlib.suppress(*broken):
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=None if role == "clear" else self._context
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            with contextlib.suppress(*broken):
                while True:
                    await self._answer(role, reader, writer)
            transport.abort()
        self._tasks.discard(asyncio.current_task())

    async def _answer(self, role, reader, writer):
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        request = Request(role, method, unquote(target.partition("?")[0]), headers, writer, self)
        self.asked.append(request)
        rule = next((rule for rule in self.rules if rule.takes(request)), None)
        reply = self.director(request) if role == "director" else self.data(request)
        if rule is None:
            await request.send(reply)
        else:
            await rule.fault(request, reply)

    def director(self, request):
        """Answer as discovery and director do."""
        if request.path.endswith("/pelican-configuration"):
            found = {"director_endpoint": self.url("director"), "jwks_uri": self.url("director")}
            return Reply(200, {}, json.dumps(found).encode())
        path = request.path.removeprefix("/api/v1.0/director/origin")
        if path != request.path:
            return Reply(307, {"Location": self.url("origin") + quote(path)})
        named = self._links or "".join(
            f'<{self.url(role)}{quote(path)}>; rel="duplicate"; pri={rank}, '
            for rank, role in enumerate(("near", "far"), 1)
        ).rstrip(", ")
        about = f"namespace={NAMESPACE}, require-token={str(self.guarded).lower()}"
        return Reply(
            307,
            {
                "Location": self.url("near") + quote(path),
                "Link": named,
                "X-Pelican-Namespace": f"{about}, collections-url={self.url('origin')}",
                "X-Pelican-Token-Generation": f"issuer={self.url('director')}, base-path={NAMESPACE}",
            },
        )

    def data(self, request):
        """Answer as a cache or an origin does; the server without TLS would be a good one, but for that."""
        if request.path.endswith("/pelican-configuration"):
            return self.director(request)
        if request.method == "PROPFIND":
            return Reply(207, {"Content-Type": "text/xml"}, self.listing(request.path))
        name = request.path.rpartition("/")[2]
        if name not in self.files:
            return Reply(404, {}, b"not here")
        return self.file(request, self.files[name])

    def file(self, request, content):
        """Answer with a file, or with the part of it that was asked for."""
        headers = {}
        if "want-digest" in request.headers and request.role in self.digests:
            headers["Digest"] = digest(content)
        if request.method == "HEAD":
            return Reply(200, {**headers, "Content-Length": str(len(content))})
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if not asked:
            return Reply(200, headers, content)
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        if first > last:
            return Reply(416, headers, b"")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return Reply(206, headers, content[first : last + 1])

    def listing(self, folder, names=None, depth=""):
        """The WebDAV listing of all files, as if they were in ``folder``."""
        entries = [
            entry(self.escape(f"{folder.rstrip('/')}/"), "<D:resourcetype><D:collection/></D:resourcetype>")
        ]
        for name in self.files if names is None else names:
            size = len(self.files.get(name, b"x"))
            about = f"<D:getcontentlength>{size}</D:getcontentlength>"
            about += f"<D:getlastmodified>{TIME}</D:getlastmodified>"
            entries.append(entry(self.escape(f"{folder.rstrip('/')}/{depth}{name}"), about))
        return whole("".join(entries))


def digest(content):
    """The Digest header of a content, as XRootD 5.5 writes it."""
    value = google_crc32c.value(content).to_bytes(4, "big")
    return f"crc32c={base64.b64encode(value).decode()},adler32={zlib.adler32(content):08x}"


def entry(href, about):
    """One entry of a WebDAV listing."""
    text = href.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f"<D:response><D:href>{text}</D:href><D:propstat><D:prop>{about}</D:prop>"
        "<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
    )


def whole(entries):
    """A whole WebDAV listing of these entries."""
    return f'<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">{entries}</D:multistatus>'.encode()
