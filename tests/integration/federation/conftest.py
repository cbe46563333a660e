"""A real federation on loopback, and a proxy that puts faults between a client and its real servers."""

import asyncio
import gc
import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections import Counter, defaultdict
from pathlib import Path

import aiohttp
import pyarrow.parquet as pq
import pytest

from crpipe.campaign.raw_files import read_manifest
from crpipe.config.loading import validate
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range
from loopback import origin
from loopback.federation import LoopbackFederation
from loopback.topology import Topology
from opened import opened

TREE = "/icecube/wipac/data/sim/testing"
NAME = Range.parse("0000000-0000999")
FILES = 12
LARGE = "large.parquet"


@pytest.fixture(scope="session")
def federation():
    """Origin, director and issuer on free ports; one range of small files and one large file."""
    if not origin.is_installed():
        message = f"no xrootd here: {origin.INSTALL}"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    # Not below pytest's own directory: the server runs as another user, who may not look into that.
    folder = Path(tempfile.mkdtemp(prefix="crpipe-federation-"))
    folder.chmod(0o755)
    loopback = LoopbackFederation(folder)
    data = loopback.data / TREE.lstrip("/") / str(NAME)
    data.mkdir(parents=True)
    for index in range(FILES):
        (data / f"part-{index:04d}.parquet").write_bytes(like_parquet(20_000 + index))
    (data / LARGE).write_bytes(like_parquet(8_000_000))
    (data / "README.txt").write_text("not a data file")
    try:
        loopback.up()
        yield loopback
    finally:
        loopback.down()
        shutil.rmtree(folder)


def like_parquet(size):
    """Random bytes that begin and end as a Parquet file does."""
    return b"PAR1" + os.urandom(size - 8) + b"PAR1"


class FaultProxy:
    """Forwards HTTPS requests to a real server; scripted ones meet a fault instead of the plain answer."""

    def __init__(self, keys, upstream):
        self.upstream = upstream
        self._keys = keys
        self._scripts = defaultdict(list)
        self.seen = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"https://localhost:{self.port}"

    def script(self, method, ending, *faults, always=None):
        """Make the next requests for paths with this ending meet ``faults`` in order, then ``always``."""
        self._scripts[method, ending] = [list(faults), always]

    def count(self, method, ending=""):
        return sum(1 for verb, path, _ in self.seen if verb == method and path.endswith(ending))

    def __enter__(self):
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._keys / "host.pem", self._keys / "host.key")
        trusted = ssl.create_default_context(cafile=self._keys / "ca.pem")
        self._connections = set()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusted), auto_decompress=False
        ) as self._session:
            server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, ssl=context)
            self._ready.set()
            await self._stop.wait()
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await asyncio.sleep(0.05)  # lets aborted connections close before their loop does

    async def _connection(self, reader, writer):
        self._connections.add(asyncio.current_task())
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            self._connections.discard(asyncio.current_task())
            writer.transport.abort()

    async def _request(self, reader, writer):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        sent = dict(line.split(": ", 1) for line in lines[1:] if line)
        length = int(sent.get("Content-Length", 0))
        body = await reader.readexactly(length) if length else None
        self.seen.append((method, path.partition("?")[0], sent))
        kept = {"Authorization", "Range", "Want-Digest", "Depth"}
        passed = {name: value for name, value in sent.items() if name in kept}
        async with self._session.request(
            method, self.upstream + path, headers=passed, data=body, allow_redirects=False
        ) as answer:
            content = await answer.read()
        head = {
            name: value
            for name, value in answer.headers.items()
            if name not in {"Connection", "Transfer-Encoding", "Content-Length"}
        }
        size = answer.headers["Content-Length"] if method == "HEAD" else len(content)
        head["Content-Length"] = str(size)
        return await self._fault(method, path)(Answer(writer, method, answer.status, head, content))

    def _fault(self, method, path):
        for (verb, ending), script in self._scripts.items():
            if verb == method and path.partition("?")[0].endswith(ending):
                faults, always = script
                return faults.pop(0) if faults else (always or plain)
        return plain


class Answer:
    """The real server's answer, on its way to the client."""

    def __init__(self, writer, method, status, head, content):
        self.writer, self.method = writer, method
        self.status, self.head, self.content = status, head, content

    def part(self, share):
        return self.content[: int(len(self.content) * share)]

    def replace(self, content):
        """Take another body, with the length that fits it."""
        self.content = content
        self.head["Content-Length"] = str(len(content))

    async def send(self, content=None):
        """Send head and body; the connection serves on."""
        lines = [f"HTTP/1.1 {self.status} X", *(f"{name}: {value}" for name, value in self.head.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        if self.method != "HEAD":
            self.writer.write(self.content if content is None else content)
        await self.writer.drain()
        return True

    async def send_and_break(self, content):
        """Send head and body, then break the connection."""
        await self.send(content)
        await asyncio.sleep(0.05)
        return False


async def plain(answer):
    return await answer.send()


class Faults:
    """What can go wrong on the way; each is a function of the real answer."""

    @staticmethod
    def cut(share):
        """Send a share of the body, then break the connection."""

        async def fault(answer):
            return await answer.send_and_break(answer.part(share))

        return fault

    @staticmethod
    def status(code):
        """Answer with an error."""

        async def fault(answer):
            answer.status, answer.head = code, {}
            answer.replace(b"injected")
            return await answer.send()

        return fault

    @staticmethod
    def stall(share):
        """Send a share of the body, then neither send nor read any more, with the connection open."""

        async def fault(answer):
            answer.writer.transport.pause_reading()
            await answer.send(answer.part(share))
            await asyncio.sleep(60)
            return False

        return fault

    @staticmethod
    def redirect(server, path):
        """Send the client on to another server."""

        async def fault(answer):
            answer.status, answer.head = 307, {"Location": server + path}
            answer.replace(b"")
            return await answer.send()

        return fault

    @staticmethod
    def trickle(pause_s, pieces):
        """Send the body in so many pieces, with a pause before each."""

        async def fault(answer):
            content, length = answer.content, -(-len(answer.content) // pieces)
            await answer.send(b"")
            for start in range(0, len(content), length):
                await asyncio.sleep(pause_s)
                answer.writer.write(content[start : start + length])
                await answer.writer.drain()
            return True

        return fault

    @staticmethod
    def header(name, value=None):
        """Answer with another value of one header, or without it."""

        async def fault(answer):
            answer.head.pop(name, None)
            answer.head |= {} if value is None else {name: value}
            return await answer.send()

        return fault


@pytest.fixture(scope="session")
def faults():
    return Faults


@pytest.fixture
def proxy(federation):
    """A proxy in front of the origin; the director sends readers to it alone until a test says otherwise."""
    topology = federation.topology
    with FaultProxy(federation.folder / "keys", topology.origin) as between:
        yield between


@pytest.fixture
def elsewhere(federation):
    """Another server in front of the same origin."""
    with FaultProxy(federation.folder / "keys", federation.topology.origin) as other:
        yield other


@pytest.fixture
def director_proxy(federation):
    with FaultProxy(federation.folder / "keys", f"https://localhost:{federation.topology.port}") as between:
        yield between


@pytest.fixture
def wire(federation):
    """Send clients through other servers than the real ones, for one test."""
    plain_topology = federation.topology

    def change(**addresses):
        here = plain_topology
        Topology(here.port, here.origin_port, **addresses).save(federation.folder)

    yield change
    plain_topology.save(federation.folder)


class Campaign:
    """List and stage the federation's range with a configuration of its own."""

    def __init__(self, federation, folder):
        self.federation = federation
        self.folder = folder
        self.token_file = folder / "token"
        self.lines = []
        self.source = {
            "uri": federation.uri(f"{TREE}/{{range}}/part-*.parquet"),
            "token_file": str(self.token_file),
            "concurrency": 4,
            "attempts": 4,
            "read_timeout_s": 1.0,
        }
        self.give_token()

    def give_token(self, scope="storage.read:/data/sim/testing", lifetime_s=3600):
        text = self.federation.token(scope, lifetime_s)
        self.token_file.write_text(text)
        return text

    def config(self, **source):
        tree = {"results": str(self.folder / "results"), "ranges": {"last": 999}}
        return validate({**tree, "source": {**self.source, **source}})

    def message(self, text):
        self.lines.append(text)

    def update(self, label, done, total, note=""):
        self.lines.append(f"{label} {done}/{total} {note}")

    def list(self, **source):
        config = self.config(**source)
        list_range(opened(config), str(NAME), self)
        return read_manifest(config.paths().manifest(str(NAME)))

    def stage(self, **source):
        config = self.config(**source)
        if not config.paths().manifest(str(NAME)).exists():
            list_range(opened(config), str(NAME), NullProgress())
        stage_range(opened(config), str(NAME), self)
        return pq.read_table(config.paths().staged(str(NAME))).to_pylist()

    @property
    def raw(self):
        return self.config().paths().raw(str(NAME))

    @property
    def truth(self):
        return self.federation.data / TREE.lstrip("/") / str(NAME)

    def assert_identical(self, rows):
        """Every staged file is byte for byte the origin's, and nothing half-done is left."""
        assert rows
        for row in rows:
            assert (self.raw / row["path"]).read_bytes() == (self.truth / row["path"]).read_bytes()
        assert not list(self.raw.glob("*.part"))

    def ways(self, rows):
        return Counter(row["verified"] for row in rows)


@pytest.fixture
def campaign(federation, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(federation.certificate))
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield Campaign(federation, tmp_path)
    gc.collect()
