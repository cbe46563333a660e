"""Is this checkout as fast as another one? Split, loader, staging and training step, in turn.

    git worktree add /tmp/before COMMIT
    python benchmarks/against.py /tmp/before [--only split loader] [--rounds 25]

Each checkout does the same work in a process of its own that stays alive; the two take turns. A row ends when
the 95 % interval of the median ratio of their CPU times is narrower than ``--width``, or after ``--rounds``.
A ratio above 1 means that this checkout needs more time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
LEAST_ROUNDS = 5


def split(folder: Path) -> Callable[[], None]:
    """Split 48 raw files of 12,700 events with one worker, ledger and all."""
    from data import split_crpipe, write_file  # noqa: PLC0415 - of the checkout that is measured

    raw = folder / "raw"
    raw.mkdir()
    for seed in range(48):
        write_file(raw / f"{seed}.parquet", seed)
    return lambda: split_crpipe(raw)


def loader(folder: Path) -> Callable[[], None]:
    """Read an epoch of 2,000,000 events in batches of 4,096, shuffled, checksums verified."""
    import peers  # noqa: PLC0415
    from events import generate  # noqa: PLC0415

    peers.write_shard(folder, generate(2_000_000))

    def epoch() -> None:
        for _ in peers.read_crpipe(folder):
            pass

    return epoch


def staging(folder: Path) -> Callable[[], None]:
    """List and stage 300 local files."""
    from data import write_file  # noqa: PLC0415

    from crpipe.campaign.campaign import Campaign  # noqa: PLC0415
    from crpipe.config.loading import load_config  # noqa: PLC0415
    from crpipe.core.text import Silent  # noqa: PLC0415
    from crpipe.source.listing import list_range  # noqa: PLC0415
    from crpipe.source.stage import stage_range  # noqa: PLC0415

    raw, results, name = folder / "raw", folder / "results", "0000000-0000299"
    raw.mkdir()
    for seed in range(300):
        write_file(raw / f"{seed:07}.parquet", seed)
    reader = "source.reader=crpipe.workloads.muons.reading.parquet:Bundles"
    config = load_config((), (f"results={results}", f"source.uri={raw}/*.parquet", "ranges.last=299", reader))

    def work() -> None:
        shutil.rmtree(results, ignore_errors=True)
        list_range(Campaign.open(config), name, Silent())
        stage_range(Campaign.open(config), name, Silent())

    return work


def training(_: Path) -> Callable[[], None]:
    """Train MuonGan for two steps of 48,000 events (the setting of the earlier system's README)."""
    import torch  # noqa: PLC0415
    from training import SETTINGS, ours  # noqa: PLC0415

    from crpipe.train.ranks import World  # noqa: PLC0415

    step = ours(SETTINGS[0], [], World(0, 1, torch.device("cpu")))
    return lambda: [step() for _ in range(2)] and None


WORKS = {each.__name__: each for each in (split, loader, staging, training)}


def cpu_seconds() -> float:
    """CPU time of this process and of the children that it waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def serve() -> None:
    """Do the work that each line names, and answer with its CPU seconds."""
    ready: dict[str, Callable[[], None]] = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the work prints is no answer
    with tempfile.TemporaryDirectory(dir=os.environ.get("AGAINST_DIR")) as folder:
        for line in sys.stdin:
            name = line.strip()
            if name not in ready:
                (own := Path(folder) / name).mkdir()
                ready[name] = WORKS[name](own)
                ready[name]()
            before = cpu_seconds()
            ready[name]()
            print(json.dumps(cpu_seconds() - before), file=answers, flush=True)


class Server:
    """A process that works with one checkout."""

    def __init__(self, checkout: Path) -> None:
        paths = [str(checkout / "src"), str(checkout / "benchmarks")]
        environment = os.environ | {
            "PYTHONPATH": ":".join(paths),
            "OMP_NUM_THREADS": "1",
            "ARROW_IO_THREADS": "1",
        }
        own = checkout / "benchmarks" / Path(__file__).name
        script = own if own.exists() else Path(__file__)
        run = f"runpy.run_path({str(script)!r}, run_name='__main__')"
        code = f"import runpy, sys; sys.argv[1:] = ['--serve']; {run}"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)

    def seconds(self, name: str) -> float:
        """Do one piece of work; its CPU seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{name}: the process ended with {self.process.wait()}")
        return float(json.loads(line))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def interval(ratios: list[float]) -> tuple[float, float]:
    """Interval of the median by resampling, 95 %."""
    random = np.random.default_rng(1)
    medians = np.median(random.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def compare(name: str, servers: tuple[Server, Server], rounds: int, width: float) -> None:
    """Print one row; (this checkout, the other one) take turns, each first in every second round."""
    ratios: list[float] = []
    times: list[float] = []
    low, high = 0.0, float("inf")
    while len(ratios) < rounds and (len(ratios) < LEAST_ROUNDS or high - low >= width):
        order = servers if len(ratios) % 2 else servers[::-1]
        taken = {id(server): server.seconds(name) for server in order}
        ours, theirs = (taken[id(server)] for server in servers)
        ratios.append(ours / theirs)
        times.append(ours)
        low, high = interval(ratios)
    row = f"{statistics.median(ratios):.3f} ({low:.3f}..{high:.3f})  {len(ratios)} rounds"
    print(f"{name:10}{statistics.median(times):8.2f} s  {row}", flush=True)


def main() -> None:
    """Measure each piece of work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, nargs="?", help="a checkout of crpipe")
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--width", type=float, default=0.02)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.other is None:
        parser.error("name the other checkout")
    print(f"{time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}; CPU time, ratio, interval, rounds")
    for name in options.only:
        servers = Server(ROOT), Server(options.other.resolve())
        compare(name, servers, options.rounds, options.width)
        for server in servers:
            server.close()


if __name__ == "__main__":
    main()
