"""What a server does wrong: each is a function of a request and its good answer; see misbehaving.py."""

import asyncio

from misbehaving import REASONS, Reply

LONG_S = 60.0  # longer than any limit of the tests


def status(code, **headers):
    """Answer with an error."""

    async def fault(request, _):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await request.send(Reply(code, named, b"injected"))

    return fault


def cut(share, *, length=True, chunked=False):
    """Send a share of the body, then break the connection."""

    async def fault(request, reply):
        body = reply.body[: int(len(reply.body) * share)]
        if chunked:
            reply.headers |= {"Content-Length": None, "Transfer-Encoding": "chunked"}
            body = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
        elif not length:
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


def flip(body):
    """Change one bit, not at the ends."""
    place = len(body) // 2
    return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :] if body else body


def web_page(body):
    """An error page that happens to have the right length."""
    return (b"<!DOCTYPE html><html>" + b" " * len(body))[: len(body)]


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


def endless(piece=b"x" * 65536):
    """Send a body that never ends, as fast as it is read."""

    async def fault(request, reply):
        head = f"HTTP/1.1 {reply.status} {REASONS[reply.status]}\r\nTransfer-Encoding: chunked\r\n\r\n"
        await request.raw(head.encode())
        while True:
            await request.raw(b"%x\r\n%s\r\n" % (len(piece), piece))
            await asyncio.sleep(0)  # a client that reads at once would have all the time of this loop

    return fault


def raw(data):
    """Send these bytes instead of an answer."""

    async def fault(request, _):
        await request.raw(data)
        raise ConnectionError

    return fault


def body(data, code=200, **headers):
    """Answer with this body."""

    async def fault(request, _):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await request.send(Reply(code, named, data))

    return fault


def header(name, value):
    """Answer with another value of one header, or without it."""

    async def fault(request, reply):
        given = value(request) if callable(value) else value
        reply.headers.pop(name, None)
        reply.headers |= {} if given is None else {name: given}
        await request.send(reply)

    return fault


def redirect(role, path="{path}"):
    """Send the client on to another server."""

    async def fault(request, _):
        url = request.federation.url(role) if role in request.federation.ports else role
        await request.send(Reply(307, {"Location": url + path.format(path=request.path)}))

    return fault


def replaced(first, then, **validators):
    """Serve one content at first and cut it; then serve another of the same size.

    ``validators``: headers of the two, as pairs.
    """
    state = {"asked": 0}

    async def fault(request, _):
        state["asked"] += 1
        content = first if state["asked"] == 1 else then
        reply = request.federation.file(request, content)
        for name, values in validators.items():
            reply.headers[name.replace("_", "-")] = values[state["asked"] > 1]
        if state["asked"] == 1:
            await request.send(reply, reply.body[: len(reply.body) // 2])
            raise ConnectionError
        await request.send(reply)

    return fault


def replaced_by(content):
    """Serve other bytes, with the checksum that fits them, as a cache does that keeps an old file."""

    async def fault(request, _):
        await request.send(request.federation.file(request, content))

    return fault


def wait(seconds):
    """Answer well, but late."""

    async def fault(request, reply):
        await asyncio.sleep(seconds)
        await request.send(reply)

    return fault


def listing(change_names, **options):
    """Answer with a listing of other names."""

    async def fault(request, _):
        names = change_names(list(request.federation.files))
        found = request.federation.listing(request.path, names, **options)
        await request.send(Reply(207, {}, found))

    return fault
