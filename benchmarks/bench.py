"""Every comparison with other systems, one after the other: ``make bench``, some twenty minutes, one table.

Peers of PyPI come from the environment that ``make bench`` makes (benchmarks/constraints.txt). Others are
given by their place: ``--peer cr_muons=PATH`` and so on (``make bench PEERS="cr_muons=PATH iceaggr=PATH"``).
Who is missing is named in the table, with the reason. The table and the ratios of all rounds go to a folder
(``--folder``); what each benchmark printed is beside them. Other work on the machine makes all of it worth
little: the load before and after each benchmark is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from side_by_side import RATIOS, print_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

HERE = Path(__file__).parent
LIBRARIES = ("numpy", "pyarrow", "polars", "duckdb", "datasets", "litdata", "torchdata", "webdataset")
PEERS = {
    "cr_muons": "briedel/cr_muons",
    "iceaggr": "timinar/iceaggr",
    "graphnet": "a Python that imports GraphNeT",
    "xec-ml-wl": "weiyuanli-icepp/xec-ml-wl",
}


@dataclass(frozen=True)
class Benchmark:
    """A script with its options; ``peers``: the options that name other systems; ``programs``: what it runs.

    alone: whether it still compares something without its peers. minutes: it is stopped after twice as long.
    """

    script: str
    options: Sequence[str] = ()
    peers: Mapping[str, str] = field(default_factory=dict)
    programs: Sequence[str] = ()
    alone: bool = True
    minutes: float = 3.0

    @property
    def name(self) -> str:
        """The command, as one types it."""
        return " ".join([self.script, *self.options])


BENCHMARKS = (
    Benchmark(
        "training.py", ("--rounds", "5", "--threads", "2"), {"cr_muons": "--cr-muons"}, alone=False, minutes=3
    ),
    Benchmark(
        "loader.py",
        ("--rounds", "5", "--events", "1000000", "--few", "20000"),
        {"cr_muons": "--cr-muons"},
        minutes=3,
    ),
    Benchmark("data.py", ("--rounds", "5", "--files", "30"), minutes=2),
    Benchmark(
        "direction.py",
        ("--only", "loader", "step", "--events", "10000", "--rounds", "5"),
        {"iceaggr": "--peer", "graphnet": "--graphnet"},
        alone=False,
        minutes=4,
    ),
    Benchmark(
        "xec.py",
        ("--section", "loader", "step", "--events", "4000", "--batches", "1024", "--rounds", "5"),
        {"xec-ml-wl": "--peer"},
        alone=False,
        minutes=4,
    ),
    Benchmark(
        "staging.py",
        ("--rounds", "5", "--round-trip-ms", "0"),
        programs=("xrootd", "curl"),
        minutes=4,
    ),
    Benchmark("startup.py", ("--only", "planning", "--rounds", "5", "--ranges", "100"), minutes=1),
    Benchmark(
        "verbs.py", ("--only", "generate", "predict", "--rounds", "5"), {"cr_muons": "--peer"}, minutes=6
    ),
    Benchmark("check.py", ("--rounds", "5", "--files", "30"), minutes=1),
)


@dataclass
class Outcome:
    """What came of a benchmark: its rows, or why there are none."""

    benchmark: Benchmark
    rows: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    trouble: str = ""
    seconds: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)


def missing_peers(benchmark: Benchmark, given: Mapping[str, str]) -> list[str]:
    """Say for each peer that was not given how to give it."""
    return [
        f"{peer}: not run; give {PEERS[peer]} with --peer {peer}=PATH"
        for peer in benchmark.peers
        if peer not in given
    ]


def own_programs() -> str:
    """Give the path on which crpipe and snakemake of this Python come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def run(benchmark: Benchmark, given: Mapping[str, str], folder: Path, where: Path = HERE) -> Outcome:
    """Run one benchmark in a process of its own; its output goes to ``folder``."""
    found = Outcome(benchmark, missing=missing_peers(benchmark, given))
    lacking = [program for program in benchmark.programs if shutil.which(program) is None]
    if lacking:
        found.trouble = f"not run: needs {' and '.join(lacking)}"
        return found
    if not benchmark.alone and len(found.missing) == len(benchmark.peers):
        found.trouble = "not run: all of its peers are missing"
        return found
    options = [*benchmark.options]
    for peer, option in benchmark.peers.items():
        if peer in given:
            options += [option, given[peer]]
    ratios = folder.resolve() / f"{Path(benchmark.script).stem}.jsonl"
    ratios.unlink(missing_ok=True)
    begin, load = time.perf_counter(), os.getloadavg()[0]
    with (folder / f"{Path(benchmark.script).stem}.txt").open("w", encoding="utf-8") as printed:
        try:
            done = subprocess.run(
                [sys.executable, str(where / benchmark.script), *options],
                env=os.environ | {RATIOS: str(ratios), "PATH": own_programs()},
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=120 * benchmark.minutes,
                check=False,
            )
            found.trouble = f"failed with {done.returncode}, see {printed.name}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            found.trouble = f"stopped after {2 * benchmark.minutes:g} minutes, see {printed.name}"
    found.seconds = time.perf_counter() - begin
    found.load = (load, os.getloadavg()[0])
    if ratios.exists():
        found.rows = [json.loads(line) for line in ratios.read_text(encoding="utf-8").splitlines()]
    return found


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Show all ratios as a Markdown table, and below it what was not run."""
    lines = [
        "| | compared with | crpipe is faster by | lowest to highest | rounds | goal |",
        "|---|---|---|---|---|---|",
    ]
    rest = []
    for found in outcomes:
        for row in found.rows:
            median = statistics.median(row["ratios"])
            met = "yes" if row["goal"] is None or median >= row["goal"] else "no"
            goal = "" if row["goal"] is None else f"{row['goal']:.3g}: {met}"
            ends = f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"
            lines.append(
                f"| {row['what']} | {row['peer']} | {median:.2f} | {ends} | {len(row['ratios'])} | {goal} |"
            )
        if found.trouble:
            rest.append(f"- {found.benchmark.name}: {found.trouble}")
        rest += [f"- {text}" for text in found.missing]
        if found.seconds:
            before, after = found.load
            rest.append(
                f"- {found.benchmark.name}: {found.seconds / 60:.1f} minutes, load {before:.1f}, {after:.1f}"
            )
    return [*lines, "", *rest]


def print_machine(given: Mapping[str, str]) -> None:
    """Print what the numbers depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    print(
        f"{platform.platform()}, {memory:.0f} GiB of memory, {len(os.sched_getaffinity(0))} cores to use, "
        f"{time.strftime('%Y-%m-%d')}"
    )
    print_facts("crpipe", HERE.parent)
    found = []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            found.append(f"{library} missing")
    print(", ".join(found))
    for peer, place in given.items():
        if (Path(place) / ".git").exists():
            git = ["git", "-C", place, "log", "-1", "--format=%h of %cs"]
            commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
            print(f"{peer} {commit}")
        else:
            print(f"{peer} at {place}")


def peer(text: str) -> tuple[str, str]:
    """Read NAME=PATH."""
    name, _, place = text.partition("=")
    if name not in PEERS or not place:
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=PATH with one of {', '.join(PEERS)}")
    if not Path(place).exists():
        raise argparse.ArgumentTypeError(f"{text}: {place} does not exist")
    return name, str(Path(place).absolute())


def main() -> None:
    """Run all of them, print the table; exit with 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer", type=peer, nargs="*", default=[], metavar="NAME=PATH", help=", ".join(PEERS)
    )
    parser.add_argument("--folder", type=Path, default=Path("results/bench"), help="for what is printed")
    parser.add_argument("--only", nargs="+", default=[], help="scripts whose names begin like this")
    given = parser.parse_args()
    peers = dict(given.peer)
    given.folder.mkdir(parents=True, exist_ok=True)
    print_machine(peers)
    outcomes = []
    for benchmark in BENCHMARKS:
        if not given.only or benchmark.script.startswith(tuple(given.only)):
            print(f"{time.strftime('%H:%M:%S')} {benchmark.name}", flush=True)
            outcomes.append(run(benchmark, peers, given.folder))
    lines = table(outcomes)
    (given.folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(["", *lines]))
    sys.exit(any(found.trouble and not found.trouble.startswith("not run") for found in outcomes))


if __name__ == "__main__":
    main()
