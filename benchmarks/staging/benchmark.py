"""Staging against a loopback federation: crpipe, curl, pelicanfs and an open-and-copy loop, side by side.

crpipe's copies are on the disk when it ends, those of the others only where that is said. The fair peer of
its verified copies is the curl whose files are flushed and summed afterwards. Client and servers share this
machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import campaigns
from benchmarks.runner import Side, ratios, take_turns
from benchmarks.table import show, spread
from crpipe.config.loading import validate
from crpipe.core import checksums
from crpipe.core.files import sync
from crpipe.core.ranges import Range

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from loopback.federation import LoopbackFederation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pelicanfs import PelicanFileSystem

    from benchmarks.runner import Run
    from crpipe.config.loading import Config

NAME = Range.parse("0000000-0000999")
SETS = {"small": (1000, 200_000), "large": (20, 50_000_000)}
CURL, FLUSHED, PEER = "curl -Z", "curl -Z, flushed", "curl -Z, flushed, summed"
LOOP, GET = "open and copy, as the earlier system", "pelicanfs get"
CHECKED = "crpipe, checksums"
CONTENDERS = (LOOP, GET, CURL, FLUSHED, PEER, CHECKED)
GOALS = {"small": 0.7, "large": 1.0}
LOOP_FILES = {"small": 60, "large": 2}  # the loop takes minutes: it copies this many, rates are per file


class Contest:
    """One set of files and everything that can copy them."""

    def __init__(self, folder: Path, kind: str, concurrency: int, divide: int) -> None:
        self.federation = LoopbackFederation(folder / "federation")
        self.kind, self.scratch, self.concurrency = kind, folder, concurrency
        self.files = SETS[kind][0] // divide
        self.token = self.federation.token()
        self.folder = f"/icecube/wipac/{kind}/{NAME}"

    def contender(self, name: str) -> Callable[[Path], int]:
        """Return what copies the files into a folder, and counts them."""
        functions = (self.loop, self.pelicanfs, self.curl, self.curl_flushed, self.curl_summed)
        return dict(zip(CONTENDERS, (*functions, self.ours), strict=True))[name]

    def names(self) -> list[str]:
        """Paths of all files."""
        return [f"{self.folder}/{index:05d}.parquet" for index in range(self.files)]

    def filesystem(self) -> PelicanFileSystem:
        """Return a fresh pelicanfs."""
        from pelicanfs import PelicanFileSystem  # noqa: PLC0415 - once SSL_CERT_FILE is set

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
        """Copy all files with curl, in parallel, straight from the data server."""
        config = self.scratch / "curl.config"
        server = self.federation.topology.origin
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
        campaigns.stage(self.config(out), str(NAME))
        return self.files

    def config(self, out: Path) -> Config:
        """A campaign of this set whose manifest stands."""
        token_file = self.scratch / "token"
        token_file.write_text(self.token)
        source = {
            "uri": self.federation.uri(f"/icecube/wipac/{self.kind}/{{range}}/*.parquet"),
            "token_file": str(token_file),
            "concurrency": self.concurrency,
            "reader": "crpipe.workloads.muons.reading.parquet:Bundles",  # to list the range
            "on_bad_file": "quarantine",  # the files are only copied, never read
        }
        config = validate({"results": str(out), "ranges": {"last": 999}, "source": source})
        manifest = config.paths().manifest(str(NAME))
        kept = self.scratch / f"{self.kind}.parquet"
        if not kept.exists():
            campaigns.list_files(config, str(NAME))
            shutil.copy(manifest, kept)
        manifest.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, manifest)
        return config


def side(
    name: str, folder: str, kind: str, concurrency: int, divide: int
) -> tuple[Callable[[], int], Callable[[], None]]:
    """Prepare a contender; its work copies everything once."""
    contest = Contest(Path(folder), kind, concurrency, divide)
    copy, out = contest.contender(name), contest.scratch / "out"
    if name == CHECKED:
        contest.config(out)  # lists the range, once
        shutil.rmtree(out)
    out.mkdir()

    def tidy() -> None:
        # Not deleted yet: for minutes ext4 walks past the inodes of deleted files for each new one.
        for file in out.rglob("*"):
            if file.is_file():
                os.truncate(file, 0)
        out.rename(Path(tempfile.mkdtemp(dir=contest.scratch)) / "out")
        os.sync()
        out.mkdir()

    return lambda: copy(out), tidy


def compare(run: Run, kind: str, given: dict[str, int], rounds: int) -> None:
    """Copy a set of files with every contender in turn."""
    folder, work = run.folder, f"{__name__}:side"
    certificate = str(LoopbackFederation(folder / "federation").certificate)
    sides = {}
    for name in CONTENDERS:
        own = folder / "contenders" / kind / name.replace(" ", "-")
        own.mkdir(parents=True, exist_ok=True)
        if not (own / "federation").exists():
            (own / "federation").symlink_to(folder / "federation")
        words = {"name": name, "folder": own, "kind": kind, **given}
        sides[name] = Side(name, work, words, environment={"SSL_CERT_FILE": certificate})
    take_turns(list(sides.values()), rounds, warm=False)
    rows = []
    for name, side in sides.items():
        files = side.turns[0].answer
        rates = spread([files / turn.wall for turn in side.turns], 1)
        cells = [name, rates, f"{1000 * side.median('cpu') / files:.2f}"]
        against = spread(ratios(sides[PEER], side)) if name in (PEER, CHECKED) else ""
        rows.append([*cells, f"{max(turn.peak for turn in side.turns):.0f}", against])
    count, size = SETS[kind][0] // given["divide"], SETS[kind][1]
    what = f"{count:,} files of {size / 1e6:g} MB"
    head = ["", "files/s", "CPU ms of the client for each", "peak memory, MiB", "compared with the peer"]
    show(f"{what}, {given['concurrency']} at once", head, rows)
    what = f"staging, files of {size / 1e6:g} MB"
    run.faster(what, sides[CHECKED], sides[PEER], goal=GOALS[kind])
    run.faster(what, sides[CHECKED], sides[GET])


def staging(
    run: Run,
    *,
    sets: tuple[str, ...] = tuple(SETS),
    rounds: int = 3,
    concurrency: int = 16,
    divide: int = 1,
) -> None:
    """Compare copies of each set; ``divide``: of the numbers of files."""
    run.folder.chmod(0o755)  # the origin runs as another user
    federation = LoopbackFederation(run.folder / "federation")
    for kind in sets:
        count, size = SETS[kind]
        target = federation.data / "icecube" / "wipac" / kind / str(NAME)
        target.mkdir(parents=True)
        for index in range(count // divide):
            (target / f"{index:05d}.parquet").write_bytes(b"PAR1" + os.urandom(size - 8) + b"PAR1")
    given = {"concurrency": concurrency, "divide": divide}
    try:
        federation.up()
        for kind in sets:
            compare(run, kind, given, rounds)
    finally:
        federation.down()
