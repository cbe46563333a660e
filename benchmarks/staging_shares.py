"""Where the time of staging goes: one thing after the other is left out, and what that saves is printed.

Each measurement leaves out what those before it do, too; the last is aiohttp alone, which drops the bytes.

    python benchmarks/staging_shares.py [--rounds 5] [--sets small large] [--concurrency 16]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import statistics
from typing import TYPE_CHECKING
from unittest import mock

import aiohttp
from staging import Contest, bring_up, parse
from yarl import URL

from crpipe.source import retries
from crpipe.source.pelican import transfer
from crpipe.source.pelican.download import Part
from loopback.federation import LoopbackFederation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = (
    ("whole", "flush to the disk"),
    ("no flush", "ask the server for the checksum"),
    ("no request for the checksum", "read back, and sum"),
    ("nothing read back", "files, journal, retries, start"),
    ("aiohttp alone", "HTTP and TLS"),
)


class Parts(Contest):
    """The contest between crpipe and itself with less to do."""

    def __init__(self, federation: LoopbackFederation, kind: str, scratch: Path, concurrency: int) -> None:
        super().__init__(federation, kind, scratch, concurrency)
        names = [name for name, _ in STEPS]
        self.contenders = {names[-1]: self.bare}
        self.contenders |= {name: self.without(left_out) for left_out, name in enumerate(names[:-1])}

    def without(self, left_out: int) -> Callable[[Path], int]:
        """Stage without the first ``left_out`` steps."""

        async def none(*_: object) -> None:
            return None

        def skipped(_: Path) -> None:
            return

        def passed(part: Part) -> None:
            part._read = part._written  # noqa: SLF001 - nothing else leaves it out

        patches = (
            mock.patch.object(retries, "sync", skipped),
            mock.patch.object(transfer.Transfer, "_checksum", none),
            mock.patch.object(Part, "read_back", passed),
        )

        def stage(out: Path) -> int:
            with contextlib.ExitStack() as stack:
                for patch in patches[:left_out]:
                    stack.enter_context(patch)
                return self.ours(out)

        return stage

    def bare(self, out: Path) -> int:  # noqa: ARG002 - nothing is written
        """Get every file, and drop it."""
        asyncio.run(self.get())
        return self.files

    async def get(self) -> None:
        """Let workers take names in turn."""
        names = iter(self.names())
        server = self.federation.topology.caches[0]
        headers = {"Authorization": f"Bearer {self.token}"}
        connector = aiohttp.TCPConnector(limit=self.concurrency, ssl=ssl.create_default_context())
        async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 20) as session:

            async def worker() -> None:
                for name in names:
                    async with session.get(URL(server + name, encoded=True), headers=headers) as answer:
                        async for _ in answer.content.iter_any():
                            pass

            await asyncio.gather(*(worker() for _ in range(self.concurrency)))


def main() -> None:
    """Measure all rows in turn, round after round; print what each step takes."""
    options = parse(__doc__)
    if options.folder is None:
        bring_up(options.sets, __file__)
        return
    federation = LoopbackFederation(options.folder / "federation")
    for kind in options.sets:
        parts = Parts(federation, kind, options.folder, options.concurrency)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in STEPS}
        for _ in range(options.rounds):
            for name in random.sample(list(found), len(found)):
                found[name].append(parts.measure(name))
        print(f"\n{parts.files} x {parts.size / 1e6:g} MB, median of {options.rounds}; load", end=" ")
        print(f"{os.getloadavg()[0]:.1f}; ms for each file")
        wall = [1000 / statistics.median(rate for rate, _ in found[name]) for name, _ in STEPS]
        cpu = [statistics.median(cost for _, cost in found[name]) for name, _ in STEPS]
        print(f"  {'step':34s}{'wall':>8s}{'share':>7s}{'CPU':>8s}{'share':>7s}")
        for row, (_, step) in enumerate(STEPS):
            line = f"  {step:34s}"
            for column in (wall, cpu):
                spent = column[row] - (column[row + 1] if row + 1 < len(column) else 0.0)
                line += f"{spent:8.2f}{spent / column[0]:7.0%}"
            print(line)
        print(f"  {'together':34s}{wall[0]:8.2f}{1:7.0%}{cpu[0]:8.2f}{1:7.0%}", flush=True)


if __name__ == "__main__":
    main()
