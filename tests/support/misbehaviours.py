"""What a server does wrong: each is a function of a request and its good answer; see misbehaving.py."""

import asyncio
import os

from misbehaving import REASONS, Reply

LONG_S = 60.0  # longer than any limit of the tests


def content(size, mark=b"x"):
    """Return what begins and ends as a Parquet file does."""
    return b"PAR1" + os.urandom(size - 8 - len(mark)) + mark + b"PAR1"


FILES = {f"{letter}.parquet": content(3000 + rank) for rank, letter in enumerate("abcd")}
ONE = "b.parquet"
OTHER = content(len(FILES[ONE]), b"y")


def status(code, headers=None):
    """Answer with an error."""

    async def fault(request, _):
        await request.send(Reply(code, headers or {}, b"injected"))

    return fault


def cut(share, framing="length"):
    """Send a share of the body, then break the connection; framing: its length, a close, or chunks."""

    async def fault(request, reply):
        body = reply.body[: int(len(reply.body) * share)]
        if framing == "chunks":
            reply.headers |= {"Content-Length": None, "Transfer-Encoding": "chunked"}
            body = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
        elif framing == "close":
            reply.headers |= {"Content-Length": None, "Connection": "close"}
        await request.send(reply, body)
        await asyncio.sleep(0.02)
        raise ConnectionError

    return fault


def change(change_body):
    """Send another body, with the length that fits it."""

    async def fault(request, reply):
        reply.body = change_body(reply.body)
        await request.send(reply)

    return fault


def _one_bit(body):
    """Change one bit, not at the ends."""
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if body else body


flip = change(_one_bit)
# An error page that happens to have the right length.
web_page = change(lambda body: (b"<!DOCTYPE html><html>" + b" " * len(body))[: len(body)])
shorter = change(lambda body: body[:-9])
longer = change(lambda body: body + b"more")
half = change(lambda body: body[: len(body) // 2])


def swap(old, new):
    """Replace a part of the body."""
    return change(lambda body: body.replace(old.encode(), new.encode("latin1")))


def stall(share):
    """Send a share of the body, then nothing more, with the connection open."""

    async def fault(request, reply):
        await request.send(reply, reply.body[: int(len(reply.body) * share)])
        await asyncio.sleep(LONG_S)

    return fault


async def silence(_request, _reply):
    """Answer nothing at all, with the connection open."""
    await asyncio.sleep(LONG_S)


async def close(_request, _reply):
    """Close the connection instead of an answer."""
    raise ConnectionError


def trickle(pause_s):
    """Send the body one byte at a time, for ever slower than any limit, but never silent for long."""

    async def fault(request, reply):
        await request.send(reply, b"")
        for place in range(len(reply.body)):
            await request.raw(reply.body[place : place + 1])
            await asyncio.sleep(pause_s)

    return fault


def slow_headers(pause_s):
    """Send header lines one by one, and never the end of them."""

    async def fault(request, _):
        await request.raw(b"HTTP/1.1 200 OK\r\n")
        while True:
            await request.raw(b"X-More: yes\r\n")
            await asyncio.sleep(pause_s)

    return fault


async def continues(request, _reply):
    """Promise an answer again and again."""
    while True:
        await request.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asyncio.sleep(0.05)


def _endless(piece):
    """Send a body that never ends, as fast as it is read."""

    async def fault(request, reply):
        head = f"HTTP/1.1 {reply.status} {REASONS[reply.status]}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await request.raw(head.encode())
        while True:
            await request.raw(b"%x\r\n%s\r\n" % (len(piece), piece))
            await asyncio.sleep(0)  # a client that reads at once would have all the time of this loop

    return fault


endless = _endless(b"x" * 65536)
endless_comments = _endless(b"<!-- -->" * 8192)


def raw(data):
    """Send these bytes instead of an answer."""

    async def fault(request, _):
        await request.raw(data.encode())
        raise ConnectionError

    return fault


long_header = raw("HTTP/1.1 200 OK\r\nA: " + "x" * 100_000 + "\r\n\r\n")


def body(data, code=200):
    """Answer with this body."""

    async def fault(request, _):
        await request.send(Reply(code, {}, data.encode()))

    return fault


# A billion laughs.
entities = body(
    '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "'
    + "ha" * 50
    + '">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 50}">' for n in range(8))
    + ']><D:multistatus xmlns:D="DAV:">&i;</D:multistatus>',
    207,
)


def headers(values):
    """Answer with other values of headers, without those that are null; {near} is a server's address."""

    async def fault(request, reply):
        urls = {role: request.federation.url(role) for role in request.federation.ports}
        urls["clear_as_tls"] = urls["clear"].replace("http:", "https:")
        for name, value in values.items():
            reply.headers[name] = None if value is None else value.format(**urls)
        await request.send(reply)

    return fault


def redirect(role, path="{path}"):
    """Send the client on to another server."""

    async def fault(request, _):
        url = request.federation.url(role) if role in request.federation.ports else role
        await request.send(Reply(307, {"Location": url + path.format(path=request.path)}))

    return fault


def replaced(validators=None):
    """Serve the file and cut it; then serve another one of the same size.

    ``validators``: headers of the two, as pairs.
    """
    asked = 0

    async def fault(request, _):
        nonlocal asked
        asked += 1
        is_first = asked == 1
        reply = request.federation.file(request, FILES[ONE] if is_first else OTHER)
        for name, values in (validators or {}).items():
            reply.headers[name] = values[not is_first]
        if is_first:
            await request.send(reply, reply.body[: len(reply.body) // 2])
            raise ConnectionError
        await request.send(reply)

    return fault


async def outdated(request, _):
    """Serve other bytes, with the checksum that fits them, as a cache does that keeps an old file."""
    await request.send(request.federation.file(request, OTHER))


async def old_and_cut(request, reply):
    """Serve half of the old file."""
    reply.body = OTHER
    await cut(0.5)(request, reply)


async def tagged_cut(request, reply):
    """Serve half of a file that has an ETag."""
    reply.headers["ETag"] = '"1"'
    await cut(0.5)(request, reply)


def wait(seconds):
    """Answer well, but late."""

    async def fault(request, reply):
        await asyncio.sleep(seconds)
        await request.send(reply)

    return fault


def listing(change):
    """Answer with a listing of these ``names``, of ``more`` than there are, or of each ``step``-th file."""

    async def fault(request, _):
        there = [*request.federation.files, *change.get("more", ())][:: change.get("step", 1)]
        body = request.federation.listing(request.path, change.get("names", there))
        await request.send(Reply(207, {}, body))

    return fault


long_name = listing({"names": ["x" * 292 + ".parquet"]})
