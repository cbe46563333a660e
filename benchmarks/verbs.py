"""How fast trained models are used, beside the limit of each verb, and the memory that it takes.

One command: ``python benchmarks/verbs.py --folder DIR --only evaluate`` (or another part; all of them without
--only). The first call makes a campaign through the verbs; later ones with that folder use it again.
Contestants take turns, each in a fresh process of one thread; imports, the model and prepared inputs are left
out. The table shows medians; below a verb is what libraries alone take for its work. ``--peer PATH``: a clone
of the earlier system.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import verbs_work as work
from data import write_file
from peak import peak_mib, run_verb
from side_by_side import compared, print_facts, spread

from crpipe.config.loading import load_config

if TYPE_CHECKING:
    from crpipe.config.loading import Config

RANGE_FILES = 28
MUONS = {
    "source.uri": "raw/{range}/*.parquet",
    "source.reader": "crpipe.workloads.muons.reading.parquet:Bundles",
    "train.workload": "crpipe.workloads.muons:MuonGan",
    "ranges.step": RANGE_FILES,
    "split.threshold": 300,
    "split.validation_fraction": 0.8,
    "split.workers": 1,
    "load.batch_events": 512,
    "model.multiplicity_learning_rate": 0.01,
}
DIRECTION = {
    "source.uri": "synthetic://",
    "source.reader": "crpipe.workloads.direction.reading.kaggle:SimulatedFiles",
    "source.simulator": "crpipe.workloads.direction.simulator.files:NeutrinoTelescope",
    "simulator.events_per_file": 2000,
    "train.workload": "crpipe.workloads.direction:DeepSet",
    "ranges.first": 1,
    "ranges.last": 2,
    "ranges.step": 1,
    "split.threshold": 1_000_000,
    "split.validation_fraction": 0.8,
    "load.batch_events": 64,
}
ALL = {"train.device": "cpu", "train.threads": 1, "train.epochs": 1, "train.validate_steps": 0}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}


def make(folder: Path, settings: dict[str, object]) -> Config:
    """Bring a campaign through its verbs as far as the first link's evaluation, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    words = [f"{key}={value}" for key, value in settings.items()]
    config = load_config((), tuple(words))
    names = list(map(str, config.all_ranges()))
    if (config.paths().evaluation(names[0]) / "metrics.json").exists():
        return config
    if config.simulates():
        run_verb(words, ["tables"], folder)
    for name in names:
        if not config.simulates():
            write_range(folder / "raw" / name)
        for verb in ("list", "stage", "split"):
            run_verb(words, [verb, name], folder)
    if not config.simulates():
        run_verb(words, ["consolidate"], folder)
    run_verb(words, ["train", names[0]], folder, **ONE_THREAD)
    run_verb([*words, "evaluate.events=2000"], ["evaluate", names[0]], folder)
    return config


def write_range(folder: Path) -> None:
    """Write the raw files of one range."""
    first, last = map(int, folder.name.split("-"))
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, last + 1):
        write_file(folder / f"{number:07d}.parquet", number)


@dataclass(frozen=True)
class Taken:
    """What a turn took; ``mib`` is the peak above the memory before the work."""

    events: int
    wall: float
    cpu: float
    mib: float


@dataclass(frozen=True)
class Part:
    """A verb and the limits beside it: names in ``WORK``; ``unit`` is what is counted."""

    size: int
    contestants: tuple[str, ...]
    unit: str = "event"
    campaign: str = "muons"


WORK = {
    "evaluate": work.evaluation,
    "the loader alone": work.reading,
    "the networks alone": work.network,
    "scikit-learn alone": work.classifiers,
    "matplotlib alone": work.evaluation_figures,
    "all numbers but the AUCs": work.numbers,
    "numpy's sorts alone": work.sorting,
    "figures": work.campaign_figures,
    "matplotlib alone, campaign": work.bare_figures,
    "report": work.page,
    "consolidate": work.merging,
    "decode, encode and sha256 alone": work.merging_bare,
    "memcpy": work.merging_copy,
    "shards export": work.exporting,
    "decode and encode lists alone": work.exporting_bare,
    "predict": work.predicting,
    "the reader alone": work.predicting_reader,
    "the networks alone, raw files": work.predicting_network,
    "generate": work.generating,
    "the networks alone, table": work.generating_network,
    "earlier system": work.generating_peer,
    "direction: predict": work.directions,
    "direction: the network alone": work.directions_network,
    "direction: the line fit alone": work.directions_fit,
}
PARTS = {
    "evaluate": Part(40_000, tuple(WORK)[:5]),
    "numbers": Part(40_000, ("all numbers but the AUCs", "numpy's sorts alone")),
    "figures": Part(0, ("figures", "matplotlib alone, campaign"), "figure"),
    "report": Part(0, ("report",), "page"),
    "consolidate": Part(0, ("consolidate", "decode, encode and sha256 alone", "memcpy"), "muon"),
    "export": Part(0, ("shards export", "decode and encode lists alone")),
    "predict": Part(100_000, ("predict", "the reader alone", "the networks alone, raw files")),
    "generate": Part(100_000, ("generate", "the networks alone, table", "earlier system")),
    "direction": Part(2000, tuple(WORK)[-3:], campaign="direction"),
}
MANY_RANGES = 100
SIZES = (10_000, 100_000, 1_000_000)


def work_alone(name: str, config: Config, given: argparse.Namespace) -> None:
    """Prepare and do one contestant's work in this process, and print what it took as JSON."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        do = WORK[name](work.Case(config, given.size, Path(scratch), given.peer, given.ranges))
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before, wall, cpu = peak_mib(), time.perf_counter(), time.process_time()
        events = do()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        taken = Taken(events, wall, cpu, peak_mib() - before)
    print(json.dumps(asdict(taken)))


def turn(name: str, given: argparse.Namespace, campaign: str, size: int, ranges: int = 1) -> Taken:
    """Run a contestant in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(given.folder), "--alone", name, campaign]
    command += ["--size", str(size), "--ranges", str(ranges), "--files", str(given.files)]
    command += ["--peer", str(given.peer)] if given.peer else []
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | ONE_THREAD)
    if run.returncode:
        raise SystemExit(f"{name}: {run.stderr}")
    return Taken(**json.loads(run.stdout.splitlines()[-1]))


def measure(part: Part, given: argparse.Namespace) -> None:
    """Let the contestants of a part take turns, and print a table: medians, and ratios of CPU time."""
    names = [name for name in part.contestants if given.peer or name != "earlier system"]
    found: dict[str, list[Taken]] = {name: [] for name in names}
    for _ in range(given.rounds):
        for name in names:
            found[name].append(turn(name, given, part.campaign, given.size or part.size))
    each = part.unit
    print(f"\n| {given.rounds} rounds | {each}s | {each}s/s | CPU us a {each} | peak MiB above | verb ÷ it |")
    print("|---|---|---|---|---|---|")
    verb = found[names[0]]
    for name, taken in found.items():
        count = taken[0].events
        speed = statistics.median(one.events / one.wall for one in taken)
        cost = 1e6 * statistics.median(one.cpu / one.events for one in taken)
        pairs = zip(verb, taken, strict=True)
        ratios = [mine.cpu / mine.events / (one.cpu / one.events) for mine, one in pairs]
        ratio = spread(ratios)
        if taken is not verb:
            compared(f"{names[0]}, CPU", name, [1 / each for each in ratios])
        row = f"| {name} | {count:,} | {speed:,.4g} | {cost:,.4g} | {max(one.mib for one in taken):,.0f} |"
        print(f"{row} {'' if taken is verb else ratio} |")
    for name in part.contestants:
        if name not in found:
            print(f"| {name} | not run: give --peer |")
    sys.stdout.flush()


def memory(given: argparse.Namespace) -> None:
    """Print the peak of verbs above Python, torch and the model, for growing numbers of events."""
    print("\n| events | ranges | evaluate | predict | generate |\n|---|---|---|---|---|")
    last = given.files // RANGE_FILES
    for size, ranges in ((SIZES[0], 1), (SIZES[0], MANY_RANGES), *((size, last) for size in SIZES)):
        verbs = ("evaluate", "predict", "generate") if ranges == last else ("evaluate",)
        cells = [
            f"{taken.mib:,.0f} ({taken.events:,})"
            for taken in (turn(v, given, "muons", size, ranges) for v in verbs)
        ]
        print(f"| {size:,} | {ranges} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Make the campaigns, measure the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="where the campaigns are made, or are; default: a temporary directory"
    )
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "memory", "making"], default=[*PARTS, "memory"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=112, help=f"raw files, {RANGE_FILES} in each range")
    parser.add_argument("--size", type=int, default=0, help="about so many events, in place of each part's")
    parser.add_argument("--peer", type=Path, help="clone of the earlier system (cr_muons)")
    parser.add_argument("--ranges", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is None:
        with tempfile.TemporaryDirectory(prefix="crpipe-benchmark-") as folder:
            given.folder = Path(folder)
            compare(given)
        return
    given.folder = given.folder.resolve()
    compare(given)


def compare(given: argparse.Namespace) -> None:
    """Make the campaigns in a folder; measure there."""
    given.peer = given.peer.resolve() if given.peer else None
    muons = MUONS | {"ranges.last": given.files - 1}
    campaigns = {"muons": muons, "direction": DIRECTION}
    wanted = (
        [given.alone[1]]
        if given.alone
        else [name for name in campaigns if name == "muons" or "direction" in given.only]
    )
    made = {name: make(given.folder / name, ALL | campaigns[name]) for name in wanted}
    if given.alone:
        work_alone(given.alone[0], made[given.alone[1]], given)
        return
    print_facts("earlier system", given.peer)
    for name in given.only:
        if name in PARTS:
            print(f"\n{name}", end="")
            measure(PARTS[name], given)
    if "memory" in given.only:
        memory(given)


if __name__ == "__main__":
    main()
