"""Staging against a loopback federation: ours, curl, pelicanfs and an open-and-copy loop, side by side.

Every contender copies the same files in turn, round after round, in an order that changes; medians are told.
crpipe's copies are on the disk when it ends, those of the others only where that is said. The fair peer of
its verified copies is the curl whose files are flushed and summed afterwards: ratios of each round come last.
The added round trip comes from a forwarding proxy in front of director and origin that holds every packet
back for half of it in each direction (it does not slow the TCP handshake itself). Client, proxy and servers
share this machine.

    python benchmarks/staging.py [--rounds 3] [--round-trip-ms 0 20] [--concurrency 16]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from peak import peak_mib
from pelicanfs import PelicanFileSystem
from side_by_side import compared, spread

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import Config, validate
from crpipe.core import checksums
from crpipe.core.files import sync
from crpipe.core.ranges import Range
from crpipe.core.text import Silent
from crpipe.source.listing import list_range
from crpipe.source.pelican import transfer
from crpipe.source.stage import stage_range

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from loopback.federation import LoopbackFederation
from loopback.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = Range.parse("0000000-0000999")
SETS = {"small": (1000, 200_000), "large": (20, 50_000_000)}
PEER = "curl -Z, flushed, summed"
LARGE = 10_000_000  # bytes
LOOP_FILES = {"small": 60, "large": 2}  # the loop takes minutes: it copies this many, rates are per file


class Contest:
    """One set of files and everything that can copy them."""

    def __init__(self, federation: LoopbackFederation, kind: str, scratch: Path, concurrency: int) -> None:
        self.federation = federation
        self.kind = kind
        self.scratch = scratch
        self.concurrency = concurrency
        self.files, self.size = SETS[kind]
        self.token = federation.token()
        self.folder = f"/icecube/wipac/{kind}/{NAME}"
        self.contenders: dict[str, Callable[[Path], int]] = {
            "open-and-copy loop": self.loop,
            "pelicanfs get": self.pelicanfs,
            "curl -Z": self.curl,
            "curl -Z, flushed": self.curl_flushed,
            PEER: self.curl_summed,
            "crpipe, sizes only": self.ours_unchecked,
            "crpipe, checksums": self.ours,
        }

    def names(self) -> list[str]:
        """Paths of all files."""
        return [f"{self.folder}/{index:05d}.parquet" for index in range(self.files)]

    def filesystem(self) -> PelicanFileSystem:
        """A fresh pelicanfs."""
        return PelicanFileSystem(
            f"pelican://{self.federation.topology.host}",
            headers={"Authorization": f"Bearer {self.token}"},
            skip_instance_cache=True,
        )

    def loop(self, out: Path) -> int:
        """Open each file and copy it, one after the other."""
        filesystem = self.filesystem()
        names = self.names()[: LOOP_FILES[self.kind]]
        for name in names:
            with filesystem.open(name, "rb") as source, (out / Path(name).name).open("wb") as copy:
                shutil.copyfileobj(source, copy)
        return len(names)

    def pelicanfs(self, out: Path) -> int:
        """Get all files in batches."""
        names = self.names()
        targets = [str(out / Path(name).name) for name in names]
        self.filesystem().get(names, targets, batch_size=self.concurrency)
        return len(names)

    def curl(self, out: Path) -> int:
        """Let curl copy all files in parallel, straight from the data server."""
        config = self.scratch / "curl.config"
        server = self.federation.topology.caches[0]
        lines = [
            f'header = "Authorization: Bearer {self.token}"',
            f'cacert = "{os.environ["SSL_CERT_FILE"]}"',
        ]
        for name in self.names():
            lines += [f'url = "{server}{name}"', f'output = "{out / Path(name).name}"']
        config.write_text("\n".join(lines))
        width = str(self.concurrency)
        command = ["curl", "-sS", "-f", "-Z", "--parallel-max", width, "-K", str(config)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return self.files

    def curl_flushed(self, out: Path) -> int:
        """The same, and then bring the copies to the disk, as fast as it takes them."""
        self.curl(out)
        with ThreadPoolExecutor(self.concurrency) as pool:
            list(pool.map(sync, out.iterdir()))
        return self.files

    def curl_summed(self, out: Path) -> int:
        """The same, and then compute the checksum that the server would name of every copy."""
        self.curl_flushed(out)
        with ThreadPoolExecutor(self.concurrency) as pool:
            list(pool.map(lambda file: checksums.of_file(file, checksums.OWN), out.iterdir()))
        return self.files

    def ours(self, out: Path) -> int:
        """Stage the range as a campaign does: verified, published, remembered."""
        stage_range(Campaign.open(self.config(out)), str(NAME), Silent())
        return self.files

    def ours_unchecked(self, out: Path) -> int:
        """The same, from servers that name no checksums."""

        async def none(*_: object) -> None:
            return None

        asked = transfer.Transfer._checksum  # noqa: SLF001 - what servers without checksums amount to
        transfer.Transfer._checksum = none  # noqa: SLF001
        try:
            return self.ours(out)
        finally:
            transfer.Transfer._checksum = asked  # noqa: SLF001

    def config(self, out: Path) -> Config:
        """A campaign of this set whose manifest stands."""
        token_file = self.scratch / "token"
        token_file.write_text(self.token)
        source = {
            "uri": self.federation.uri(f"/icecube/wipac/{self.kind}/{{range}}/*.parquet"),
            "token_file": str(token_file),
            "concurrency": self.concurrency,
        }
        config = validate({"results": str(out), "ranges": {"last": 999}, "source": source})
        manifest = config.paths().manifest(str(NAME))
        kept = self.scratch / f"{self.kind}.parquet"
        if not kept.exists():
            list_range(Campaign.open(config), str(NAME), Silent())
            shutil.copy(manifest, kept)
        manifest.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, manifest)
        return config

    def measure(self, name: str) -> tuple[float, float]:
        """Copy everything once with one contender; return files per second, and its CPU ms per file."""
        out = self.scratch / "out"
        out.mkdir()
        begin, spent = time.perf_counter(), cpu_s()
        files = self.contenders[name](out)
        rate = files / (time.perf_counter() - begin)
        cost = 1000 * (cpu_s() - spent) / files
        # Not deleted yet: for minutes ext4 walks past the inodes of deleted files for each new one.
        for file in out.rglob("*"):
            if file.is_file():
                os.truncate(file, 0)
        out.rename(Path(tempfile.mkdtemp(dir=self.scratch)) / "out")
        os.sync()
        return rate, cost


@contextlib.contextmanager
def round_trip(federation: LoopbackFederation, milliseconds: float) -> Iterator[None]:
    """Put the delaying proxy in front of director and origin."""
    here = federation.topology
    ports = [(here.port + 20_000) % 40_000 + 10_000, (here.origin_port + 20_000) % 40_000 + 10_000]
    pairs = [f"{port}:{target}" for port, target in zip(ports, (here.port, here.origin_port), strict=True)]
    command = [sys.executable, str(Path(__file__).with_name("delay.py")), str(milliseconds), *pairs]
    proxy = subprocess.Popen(command)
    try:
        director, server = (f"https://localhost:{port}" for port in ports)
        Topology(here.port, here.origin_port, director, server, [server]).save(federation.folder)
        time.sleep(1)
        yield
    finally:
        here.save(federation.folder)
        proxy.terminate()
        proxy.wait()


def main() -> None:
    """Measure and print one table per set and round trip."""
    options = parse()
    if options.folder is None:
        bring_up(options.sets, __file__)
        return
    federation = LoopbackFederation(options.folder / "federation")
    for milliseconds in options.round_trip_ms:
        scene = round_trip(federation, milliseconds) if milliseconds else contextlib.nullcontext()
        with scene:
            for kind in options.sets:
                contest = Contest(federation, kind, options.folder, options.concurrency)
                compare(contest, milliseconds, options.rounds)


def bring_up(kinds: list[str], script: str) -> None:
    """Bring the federation up and run ``script`` in a child: aiohttp reads SSL_CERT_FILE when imported."""
    folder = Path(tempfile.mkdtemp(prefix="crpipe-benchmark-"))
    folder.chmod(0o755)
    federation = LoopbackFederation(folder / "federation")
    try:
        fill(federation, kinds)
        federation.up()
        environment = {**os.environ, "SSL_CERT_FILE": str(federation.certificate)}
        command = [sys.executable, script, *sys.argv[1:], "--folder", str(folder)]
        subprocess.run(command, env=environment, check=True)
    finally:
        federation.down()
        shutil.rmtree(folder)


def fill(federation: LoopbackFederation, kinds: list[str]) -> None:
    """Write the files that are copied."""
    for kind in kinds:
        count, size = SETS[kind]
        target = federation.data / "icecube" / "wipac" / kind / str(NAME)
        target.mkdir(parents=True)
        for index in range(count):
            (target / f"{index:05d}.parquet").write_bytes(b"PAR1" + os.urandom(size - 8) + b"PAR1")


def cpu_s() -> float:
    """CPU seconds of this process and of the programs it ran."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def compare(contest: Contest, milliseconds: float, rounds: int) -> None:
    """Measure every contender in turn, round after round, and print the medians."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contest.contenders}
    for _ in range(rounds):
        for name in random.sample(list(found), len(found)):
            found[name].append(contest.measure(name))
    print(
        f"\n{contest.files} x {contest.size / 1e6:g} MB, {milliseconds:g} ms added round trip, "
        f"{contest.concurrency} at once, median of {rounds}; load {os.getloadavg()[0]:.1f}"
    )
    yardstick = statistics.median(rate for rate, _ in found["curl -Z"])
    for name, measured in found.items():
        rates, costs = zip(*measured, strict=True)
        rate = statistics.median(rates)
        print(
            f"  {name:24s}{rate:8.1f} files/s {rate * contest.size / 1e6:7.1f} MB/s  x{rate / yardstick:.2f} "
            f"curl {statistics.median(costs):7.2f} CPU ms/file  ({min(rates):.1f}..{max(rates):.1f})",
            flush=True,
        )
    ours = found["crpipe, checksums"]
    for peer, goal in ((PEER, 0.7 if contest.size < LARGE else 1.0), ("pelicanfs get", None)):
        pairs = zip(ours, found[peer], strict=True)
        files = f"staging, files of {contest.size / 1e6:g} MB, {milliseconds:g} ms"
        compared(files, peer, [rate / other for (rate, _), (other, _) in pairs], goal)
    for name in (PEER, "crpipe, sizes only", "crpipe, checksums"):
        print(f"  {name}: {versus(found[name], found['curl -Z'])} x curl -Z", end="; ")
        print(f"{versus(found[name], found[PEER])} x {PEER}")
    print(f"  peak memory of this process: {peak_mib():.0f} MiB")


def versus(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> str:
    """Show the ratios of the rates of each round."""
    return spread([rate / other for (rate, _), (other, _) in zip(ours, theirs, strict=True)])


def parse(description: str | None = __doc__) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-trip-ms", type=float, nargs="+", default=[0.0, 20.0])
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
