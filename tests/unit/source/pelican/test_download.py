"""Downloads from small servers on this machine that answer with raw bytes."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time

import pytest

from crpipe.core import checksums
from crpipe.core.errors import DiskError
from crpipe.source.pelican.director import Director
from crpipe.source.pelican.download import PIECE, DownloadError, Downloads, PartialFile
from crpipe.source.retries import TemporaryFailure
from loopback import credentials

BODY = b"0123456789" * 1000
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


class Server:
    """Sends each request the raw answer of ``script``, in a thread of its own; remembers what was asked."""

    def __init__(self, script, context=None, greeting=b""):
        self.script = script
        self.greeting = greeting
        self.context = context
        self.asked = []
        self.connections = 0

    def __enter__(self):
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _main(self):
        self._loop, self._stop, self._tasks = asyncio.get_running_loop(), asyncio.Event(), set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self.context else 'http'}://localhost:{port}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.05)  # lets aborted connections close before their loop does

    async def _serve(self, reader, writer):
        self.connections += 1
        writer.write(self.greeting)
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
                await self.script(writer)
        writer.transport.abort()


def sending(*pieces, pause_s=0.0):
    """A script that sends these pieces, and closes the connection after the word ``close``."""

    async def script(writer):
        for piece in pieces:
            if piece == "close":
                raise ConnectionError
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return script


def redirect(url):
    return sending(f"HTTP/1.1 307 X\r\nContent-Length: 0\r\nLocation: {url}\r\n\r\n".encode())


async def got(url, read_timeout_s=5.0, headers=None, write=None):
    """Download one file; return its answer and its body."""
    pieces = []
    async with Director("unused", connections=2, read_timeout_s=read_timeout_s) as director:
        downloads = Downloads(director.session)
        answer = await downloads.get(url, headers or {}, lambda _: write or pieces.append)
    return answer, b"".join(pieces)


async def failure(url, **options):
    with pytest.raises(DownloadError) as caught:
        await got(url, **options)
    return str(caught.value), caught.value.outage


def test_an_answer_names_the_server_that_a_redirect_led_to():
    with (
        Server(sending(b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n")) as other,
        Server(redirect(f"{other.url}/x")) as one,
    ):
        answer, _ = asyncio.run(got(f"{one.url}/x"))
    assert (answer.status, answer.elsewhere) == (401, other.url)


@pytest.fixture
def context(tmp_path, monkeypatch):
    credentials.write_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "host.pem", tmp_path / "host.key")
    return context


def run(test, script, context=None):
    """Run the coroutine ``test`` of a server."""
    with Server(script, context) as server:
        return asyncio.run(test(server))


def test_headers_come_first_and_then_the_body():
    answer, body = run(lambda server: got(server.url), sending(WHOLE + BODY))
    assert (answer.status, answer.length, answer.header("content-LENGTH")) == (200, 10000, "10000")
    assert answer.header("Digest") == ""
    assert body == BODY


def test_an_answer_without_a_body_is_received_too():
    received = []

    async def test(server):
        async with Director("unused", connections=1, read_timeout_s=5.0) as director:
            await Downloads(director.session).get(server.url, {}, received.append)

    run(test, sending(EMPTY))
    assert [answer.status for answer in received] == [204]


def test_a_connection_is_used_again():
    async def test(server):
        async with Director("unused", connections=1, read_timeout_s=5.0) as director:
            downloads = Downloads(director.session)
            for _ in range(3):
                await downloads.head(server.url, {})
        return server

    server = run(test, sending(WHOLE))
    assert len(server.asked) == 3
    assert server.connections == 1


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ((WHOLE, BODY[:50], "close"), "the connection ended early"),
        ((b"220 mail server\r\n",), "the answer is not HTTP"),
        ((WHOLE, BODY[:50]), "no answer in time"),
    ],
)
def test_a_bad_answer_is_no_outage(pieces, reason):
    found, outage = run(lambda server: failure(server.url, read_timeout_s=0.3), sending(*pieces))
    assert reason in found
    assert not outage


@pytest.mark.parametrize(
    "garbage", [b"nonsense\r\n\r\n", b"5" * 200_000, b"0\r\n" + b"x" * 100_000 + b"\r\n"]
)
def test_a_body_with_a_bad_chunk_ends(garbage):
    """aiohttp alone would wait for the rest of it for ever."""
    pieces = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\n01234\r\n", garbage]
    found, outage = run(
        lambda server: failure(server.url, read_timeout_s=0.5), sending(*pieces, pause_s=0.05)
    )
    assert found in {"no answer in time", "less than 1 kB/s came", "the connection ended early"}
    assert not outage


def test_a_slow_body_is_no_stall():
    pieces = [WHOLE, *(BODY[start : start + 1250] for start in range(0, 10000, 1250))]
    _, body = run(lambda server: got(server.url, read_timeout_s=0.4), sending(*pieces, pause_s=0.1))
    assert body == BODY


def test_a_disk_that_stops_the_loop_is_no_stall():
    """While nothing is read, other connections get no turn either: their bytes wait in the kernel."""

    async def test(server):
        def write(_):
            time.sleep(0.3)

        return await asyncio.gather(*(got(server.url, read_timeout_s=0.2, write=write) for _ in range(3)))

    pieces = [WHOLE, *(BODY[start : start + 2500] for start in range(0, 10000, 2500))]
    assert len(run(test, sending(*pieces, pause_s=0.05))) == 3


def test_what_the_receiver_raises_ends_the_request():
    def write(_):
        raise DiskError("full")

    with pytest.raises(DiskError, match="full"):
        run(lambda server: got(server.url, write=write), sending(WHOLE + BODY))


def test_a_server_out_of_reach_is_an_outage(monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert asyncio.run(failure(url)) == ("connection refused", True)

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert asyncio.run(failure("https://nowhere.invalid")) == ("the name of its host is not known", True)


@pytest.mark.parametrize("url", ["https://[bad", "https://"])
def test_what_is_not_an_address_is_an_outage(url):
    assert asyncio.run(failure(url))[1]


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [(b"", "no answer in time"), (b"220 mail server\r\n", "a TLS connection cannot be set up")],
)
def test_a_server_that_speaks_no_tls_is_an_outage(context, greeting, reason):
    with Server(sending(), greeting=greeting) as server:
        assert asyncio.run(failure(server.url.replace("http:", "https:"), read_timeout_s=0.5)) == (
            reason,
            True,
        )


def test_only_the_named_authority_is_trusted(context, tmp_path, monkeypatch):
    assert run(lambda server: got(server.url), sending(WHOLE + BODY), context)[1] == BODY
    monkeypatch.delenv("SSL_CERT_FILE")
    reason, outage = run(lambda server: failure(server.url), sending(WHOLE + BODY), context)
    assert reason == "its certificate is not trusted; name its authority in SSL_CERT_FILE"
    assert outage


def test_a_certificate_that_has_expired_needs_no_other_authority(request, monkeypatch):
    monkeypatch.setattr(credentials, "DAYS", -1 / 48)
    context = request.getfixturevalue("context")
    reason, _ = run(lambda server: failure(server.url), sending(WHOLE + BODY), context)
    assert reason == "its certificate is refused: certificate has expired"


TOKEN = {"Authorization": "Bearer secret"}


def test_a_redirect_is_followed_with_the_token_on_its_own_server_only(context):
    async def test(elsewhere):
        with Server(redirect(elsewhere.url), context) as server:
            _, body = await got(server.url, headers=TOKEN)
            return body, server.asked, elsewhere.asked

    body, asked, onwards = run(test, sending(WHOLE + BODY), context)
    assert body == BODY
    assert "secret" in asked[0]
    assert len(onwards) == 1
    assert "secret" not in onwards[0]


def test_a_redirect_from_https_to_http_is_refused(context):
    async def test(elsewhere):
        with Server(redirect(elsewhere.url), context) as server:
            return await failure(server.url), elsewhere

    (reason, outage), elsewhere = run(test, sending(WHOLE + BODY))
    assert reason == f"redirects from https to {elsewhere.url}"
    assert not outage
    assert not elsewhere.asked


def test_a_token_is_never_sent_in_the_clear():
    async def test(server):
        return await failure(server.url, headers=TOKEN), server.asked

    (reason, outage), asked = run(test, sending(WHOLE + BODY))
    assert reason == "the token is not sent, because the address is not https"
    assert outage
    assert not asked


@pytest.mark.parametrize("where", ["", "ftp://localhost/f", "https://[bad", "https://me:secret@localhost/f"])
def test_a_redirect_to_nonsense_is_an_error(where):
    async def script(writer):
        await redirect(where or "/again")(writer)

    reason, _ = run(lambda server: failure(server.url), script)
    assert "secret" not in reason
    assert ("too many redirects" in reason) == (where == "")


def test_nothing_of_the_environment_leads_to_a_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert run(lambda server: got(server.url), sending(WHOLE + BODY))[1] == BODY


def copy(path, content, sizes, found=b""):
    """Write ``content`` in chunks of these sizes, the last one to the end, after what was found."""
    path.write_bytes(found)
    with PartialFile(path, len(content), "adler32") as part:
        part.read_back()
        at = part.kept
        for size in [*sizes, len(content)]:
            part.write(content[at : at + size])
            at = min(at + size, len(content))
        return part.checksum(), part.position


@pytest.mark.parametrize("sizes", [[], [0], [1] * 1034, [PIECE, PIECE - 1, 2], [16_384] * 100])
@pytest.mark.parametrize("found", [0, 1000])
def test_what_stands_in_the_file_is_what_came(tmp_path, sizes, found):
    content = os.urandom(2_000_000)
    checksum, position = copy(tmp_path / "part", content, sizes, content[:found])
    assert (tmp_path / "part").read_bytes() == content
    assert (checksum, position) == (checksums.of_file(tmp_path / "part", "adler32"), len(content))


def test_an_empty_file_is_made(tmp_path):
    assert copy(tmp_path / "part", b"", []) == ("00000001", 0)
    assert (tmp_path / "part").read_bytes() == b""


def test_what_an_earlier_try_left_damaged_is_seen_in_the_checksum(tmp_path):
    content = os.urandom(10_000)
    whole, _ = copy(tmp_path / "part", content, [])
    damaged, _ = copy(tmp_path / "part", content, [], b"\0" * 5000)
    assert damaged != whole


def test_more_than_the_file_holds_is_begun_again(tmp_path):
    content = os.urandom(10_000)
    assert copy(tmp_path / "part", content, [], content + b"more") == copy(tmp_path / "part", content, [])


@pytest.mark.parametrize("found", [0, 9000])
def test_more_bytes_than_belong_there_never_reach_the_file(tmp_path, found):
    path = tmp_path / "part"
    path.write_bytes(bytes(found))
    with (
        PartialFile(path, 10_000, "crc32c") as part,
        pytest.raises(TemporaryFailure, match="more bytes than the 10000"),
    ):
        part.write(bytes(10_001 - found))
    assert path.stat().st_size == found


def test_what_came_stays_when_the_try_fails(tmp_path):
    path = tmp_path / "part"
    with pytest.raises(ZeroDivisionError), PartialFile(path, 10_000, "crc32c") as part:
        fail_after(part.write(b"some"))
    assert path.read_bytes() == b"some"


def fail_after(_):
    raise ZeroDivisionError
