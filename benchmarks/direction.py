"""Directions of neutrinos: loading, a training step and memory, beside iceaggr and GraphNeT.

One command: ``python benchmarks/direction.py --peer PATH`` (a clone of timinar/iceaggr; it needs torch,
pyarrow and yaml), and ``--graphnet PYTHON`` (a Python that imports GraphNeT). All read the same simulated
events, in Kaggle's files, in shards by the real split, or in GraphNeT's Parquet files. Every contestant is a
process of its own that stays; they take turns, and the tables show medians over the rounds, with the least
and greatest ratio of a round. The first epoch of each is not timed: it fills caches and starts workers. All
epochs check the number of events and the sum of their ids.

With --events 20000 there is one file of Kaggle's, which iceaggr decodes once and keeps; crpipe reads its
shards in every epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import direction_data as data
import pyarrow.parquet as pq
import torch
from side_by_side import compared, print_facts, spread

HERE = Path(__file__).parent
BUDGETS = (2_000_000, 10_000)  # sensors in a micro-batch: more than any batch has, and few
SECTIONS = ("loader", "step", "memory", "scale")
WORKERS = (0, 1, 2, 4)
GOALS = {"iceaggr": 5.0, "graphnet": 3.0}
COLLATES = ("flat", "variable")  # sensors with their first pulses, padded; or all pulses, end to end
FEW = 4_000  # events for GraphNeT, the slowest
GIANT = 178_000  # pulses of the largest public event


@dataclass
class Contestant:
    """One way to read all events: a row of the table. Times are (wall, CPU) in s, workers included."""

    name: str
    command: list[str]
    raw: Path
    path: str = ""
    times: list[tuple[float, float]] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None

    def epoch(self, stack: ExitStack) -> dict[str, Any]:
        """Let the process read an epoch."""
        if self.process is None:
            environment = os.environ | {"PYTHONPATH": f"{self.path}:{os.environ.get('PYTHONPATH', '')}"}
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if "graphnet" in self.name else None,
                text=True,
                env=environment,
            )
            stack.callback(_end, self.process)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("epoch", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            said = self.process.stderr.read()[-2000:] if self.process.stderr else ""
            sys.exit(f"{said}{self.name}: {' '.join(self.command)} ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def ids(self) -> tuple[int, int]:
        """Give the number of events that it has to read, and the sum of their ids."""
        ids = pq.read_table(self.raw / "train_meta.parquet", columns=["event_id"])["event_id"].to_numpy()
        return len(ids), int(ids.sum())

    @property
    def wall(self) -> float:
        """Median wall time of an event, in s."""
        return statistics.median(wall for wall, _ in self.times)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


def contestant(system: str, folder: Path, raw: Path, python: str, collate: str, workers: int) -> Contestant:
    """Describe the process that reads ``folder``."""
    script = [python, str(HERE / "direction_peers.py"), system, str(folder), str(raw / "sensor_geometry.csv")]
    return Contestant(f"{system}, {collate}, {workers} workers", [*script, collate, str(workers)], raw)


def loaders(given: argparse.Namespace, raw: Path) -> dict[str, list[Contestant]]:
    """Give all contestants by system and what they hand out, crpipe before its peers."""
    shards, found = data.shards(raw), {}
    for collate in COLLATES:
        found[f"crpipe, {collate}"] = [
            contestant("crpipe", shards, raw, sys.executable, collate, count) for count in (0, 1, 2)
        ]
    if given.peer:
        for collate in COLLATES:
            rows = [contestant("iceaggr", raw, raw, given.peer_python, collate, count) for count in WORKERS]
            for row in rows:
                row.path = str(given.peer / "src")
            found[f"iceaggr, {collate}"] = rows
    if given.graphnet:
        few = data.kaggle(raw.parent, FEW)
        folder = data.graphnet(few)
        found["graphnet, variable"] = [
            contestant("graphnet", folder, few, given.graphnet, "variable", count) for count in WORKERS
        ]
    return found


def measure_loaders(given: argparse.Namespace, raw: Path) -> None:
    """Compare the loaders."""
    systems = loaders(given, raw)
    reads = set()
    with ExitStack() as stack:
        for number in range(given.rounds + 1):
            for row in (row for rows in systems.values() for row in rows):
                found = row.epoch(stack)
                if (found["events"], found["ids"]) != row.ids():
                    print(f"{row.name}: {found['events']} events instead of {row.ids()[0]}, or not each once")
                reads.update(found["reads"])
                if number:
                    row.times.append((found["wall"] / found["events"], found["cpu"] / found["events"]))
    print(f"\nloader: {given.events:,} events, batches of 1,024 (graphnet: {FEW:,} events)")
    print(f"crpipe reads each row group so many times in an epoch: {sorted(reads)}")
    print(f"{'':34}{'events/s':>10}{'CPU µs/event':>14}{'best crpipe is faster by':>30}")
    best = {system: min(rows, key=lambda row: row.wall) for system, rows in systems.items()}
    for system, rows in systems.items():
        for row in rows:
            cpu = statistics.median(cpu for _, cpu in row.times) * 1e6
            shown = ""
            if row is best[system] and not system.startswith("crpipe"):
                own = best[f"crpipe, {system.split(', ')[1]}"]
                walls = zip(row.times, own.times, strict=True)
                ratios = [theirs[0] / ours[0] for theirs, ours in walls]
                peer, kind = system.split(", ")
                shown = compared(f"directions, loader, {kind}", peer, ratios, GOALS[peer])
            print(f"{row.name:34}{1 / row.wall:10,.0f}{cpu:14.1f}{shown:>30}", flush=True)
    for peer in ("peer", "graphnet"):
        if not getattr(given, peer):
            print(f"{peer}: not run; see --{peer}")


def alone(given: argparse.Namespace, what: str, raw: Path, size: str, number: int) -> dict[str, Any]:
    """Run a measurement of direction_step.py in a process of its own."""
    arguments = [what, str(data.shards(raw)), str(raw / "sensor_geometry.csv"), size, str(number)]
    peer = f"{given.peer / 'src'}:" if given.peer else ""
    environment = os.environ | {"PYTHONPATH": f"{peer}{os.environ.get('PYTHONPATH', '')}"}
    environment["OMP_NUM_THREADS"] = str(given.threads)
    command = [sys.executable, str(HERE / "direction_step.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_steps(given: argparse.Namespace, raw: Path) -> None:
    """Compare training steps."""
    if not given.peer:
        print("\nstep: not run; see --peer")
        return
    print(f"\nstep: batches of 256, float32, {given.threads} threads")
    print(f"{'':30}{'weights':>10}{'padding':>9}{'s/step':>8}{'CPU s':>7}{'crpipe is faster by':>30}")
    for size in given.sizes:
        found = alone(given, "step", raw, size, given.rounds)
        for name, each in found.items():
            wall, cpu = (statistics.median(column) for column in zip(*each["times"], strict=True))
            pairs = zip(each["times"], found["crpipe"]["times"], strict=True)
            ratios = [theirs[0] / ours[0] for theirs, ours in pairs]
            shown = ""
            if name != "crpipe":
                shown = compared(f"directions, training step, {size} weights", name, ratios, 1.5)
            row = f"{name + ', ' + size:30}{each['weights']:10,}{each['padding']:9.1%}"
            print(f"{row}{wall:8.3f}{cpu:7.3f}{shown:>30}", flush=True)
        if abs(found["crpipe"]["weights"] / found["iceaggr, dropout 0"]["weights"] - 1) > 0.01:
            print("the networks do not have the same number of weights within 1 %")


def measure_memory(given: argparse.Namespace, folder: Path) -> None:
    """Measure the memory of an event as large as the largest public one."""
    print(
        "\nmemory: an epoch of batches of 256, above that of Python, torch and model (goal: below 1,000 MB)"
    )
    for budget in BUDGETS:
        for raw in (data.with_giant(folder, GIANT), data.kaggle(folder, 4_000)):
            found = alone(given, "memory", raw, "0.5 M", budget)
            more, before = ((found["peak"] - found["before"]) * 1.048576, found["before"] * 1.048576)
            print(
                f"budget_items {budget:9,}, largest event {found['largest']:>9,} pulses: {more:5,.0f} MB "
                f"above {before:.0f} MB"
            )


def measure_scale(given: argparse.Namespace, folder: Path) -> None:
    """Compare the CPU time for an event in small and large sets."""
    counts = (10_000, 100_000, 1_000_000)[: 3 if given.long else 2]
    print(f"\nscale:\n{'events':>10}{'CPU µs/event':>14}{'ratio to the first':>30}")
    folders = [data.kaggle(folder, count) for count in counts]
    rows = [contestant("crpipe", data.shards(raw), raw, sys.executable, "flat", 1) for raw in folders]
    with ExitStack() as stack:
        for number in range(given.rounds + 1):
            for row, count in zip(rows, counts, strict=True):
                epochs = max(1, counts[1] // count)  # as many events in all: a short time says little
                seconds = [row.epoch(stack)["cpu"] / count for _ in range(epochs)]
                if number:
                    row.times.append((0.0, statistics.mean(seconds)))
    for row, count in zip(rows, counts, strict=True):
        cpus = [cpu for _, cpu in row.times]
        ratios = spread([cpu / first for cpu, (_, first) in zip(cpus, rows[0].times, strict=True)])
        print(f"{count:10,}{1e6 * statistics.median(cpus):14.1f}{ratios:>30}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="clone of timinar/iceaggr")
    parser.add_argument("--peer-python", default=sys.executable, help="Python for its loader")
    parser.add_argument("--graphnet", help="Python that imports GraphNeT")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=SECTIONS)
    parser.add_argument("--events", type=int, default=40_000, help="events for the loaders")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=["0.5 M"], help="networks of the step; also 5 M")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch in the step")
    parser.add_argument("--long", action="store_true", help="the loader at a million events, too")
    parser.add_argument("--folder", type=Path, help="where events are kept; default: a temporary directory")
    given = parser.parse_args()
    print_facts("iceaggr", given.peer)
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        raw = data.kaggle(folder, given.events)
        if "loader" in given.only:
            measure_loaders(given, raw)
        if "step" in given.only:
            measure_steps(given, raw)
        if "memory" in given.only:
            measure_memory(given, folder)
        if "scale" in given.only:
            measure_scale(given, folder)


if __name__ == "__main__":
    main()
