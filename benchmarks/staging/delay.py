"""Forward local ports, every packet some milliseconds later in each direction: a long line on one machine.

python benchmarks/delay.py MILLISECONDS PORT:TARGET [PORT:TARGET ...]
"""

from __future__ import annotations

import asyncio
import sys

LIMIT = 1 << 23  # bytes on the way after which reading pauses, like a full window


class Side(asyncio.Protocol):
    """One side of a forwarded connection: what comes in leaves at the other side ``delay_s`` later."""

    transport: asyncio.Transport

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.peer: Side | None = None
        self.early: list[bytes] = []
        self.on_the_way = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Let the bytes leave later."""
        self.on_the_way += len(data)
        if self.on_the_way > LIMIT:
            self.transport.pause_reading()
        asyncio.get_running_loop().call_later(self.delay_s, self.leave, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Close the other side once everything before has left."""
        asyncio.get_running_loop().call_later(self.delay_s, self.leave, b"")

    def leave(self, data: bytes) -> None:
        """Hand bytes to the other side; none at all close it."""
        self.on_the_way -= len(data)
        if self.on_the_way <= LIMIT and not self.transport.is_closing():
            self.transport.resume_reading()
        if self.peer is None:
            self.early.append(data)
        elif data:
            self.peer.transport.write(data)
        else:
            self.peer.transport.close()


class Client(Side):
    """The client's side: it opens the server's side for itself."""

    def __init__(self, delay_s: float, target: int) -> None:
        super().__init__(delay_s)
        self.target = target

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the server."""
        super().connection_made(transport)
        self.connecting = asyncio.ensure_future(self.connect())

    async def connect(self) -> None:
        """Pair the two sides, and let go what came too early."""
        _, there = await asyncio.get_running_loop().create_connection(
            lambda: Side(self.delay_s), "127.0.0.1", self.target
        )
        self.peer, there.peer = there, self
        for data in self.early:
            there.transport.write(data)


async def forward(delay_s: float, routes: list[tuple[int, int]]) -> None:
    """Forward (port, target) pairs until the process is stopped."""
    loop = asyncio.get_running_loop()
    for port, target in routes:
        await loop.create_server(lambda target=target: Client(delay_s, target), "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    pairs = [text.split(":") for text in sys.argv[2:]]
    asyncio.run(forward(float(sys.argv[1]) / 2000, [(int(port), int(target)) for port, target in pairs]))
