"""The xenon detector: loading, memory, a training step and scale, beside xec-ml-wl.

One command: ``python benchmarks/xec.py --peer PATH`` (a clone of weiyuanli-icepp/xec-ml-wl; its loader and
networks need torch, uproot and psutil). Both read the same simulated events: xec-ml-wl its ROOT files, crpipe
shards that the real split made of them, at a price that is printed too. Every loader is a process of its own
that stays; they take turns, and the tables show medians over the rounds, with the least and greatest ratio
of a round. The first turn of each is not reported: it fills caches, starts workers, and chooses the fastest
of its settings. All epochs check the number of events and the sum of their ids.
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

import torch
import xec_data as data
from side_by_side import compared, print_facts, spread

HERE = Path(__file__).parent
SECTIONS = ("loader", "memory", "step", "scale")
CHUNK = 2_000  # events that xec-ml-wl reads at once: 76 MB of two float32 for each sensor
HANDS_OUT = {
    "raw": "4 raw columns, shuffled",
    "normalised": "2 normalised, shuffled",
    "xec-ml-wl": "2 normalised, file order",
}
LEAST = 2.0  # s of a turn: whole epochs until they are over


@dataclass
class Contestant:
    """One way to read all events. Times are (wall, CPU) of an event in s, workers included."""

    name: str
    arguments: list[str]
    path: str = ""
    times: list[tuple[float, float]] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    memory: tuple[float, float] = (0.0, 0.0)

    def turn(self, expected: tuple[int, int]) -> tuple[float, float]:
        """Let the process read for a while; give its times, and refuse wrong events."""
        if self.process is None:
            environment = os.environ | {"PYTHONPATH": f"{self.path}:{os.environ.get('PYTHONPATH', '')}"}
            if not self.path:
                environment["OMP_NUM_THREADS"] = "1"  # its threads work on batches of their own
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "xec_peers.py"), *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.name}: {' '.join(self.arguments)} ended with {self.process.wait()}")
        found = json.loads(answer)
        if (found["events"], found["ids"]) != tuple(found["epochs"] * each for each in expected):
            print(f"{self.name}: not each event once: {found} instead of {expected} an epoch")
        self.memory = found["before"], found["peak"]
        return found["wall"] / found["events"], found["cpu"] / found["events"]

    def end(self) -> None:
        """End the process."""
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()

    def medians(self) -> tuple[float, float]:
        """Give the median wall and CPU time of an event, in s."""
        wall, cpu = zip(*self.times, strict=True)
        return statistics.median(wall), statistics.median(cpu)


def ours(shards: list[Path], hands_out: str, batch: int, workers: int, least: float = LEAST) -> Contestant:
    """Describe the process that reads shards."""
    arguments = ["crpipe", *map(str, shards), "--hands-out", hands_out, *_common(batch, workers, least)]
    return Contestant(f"crpipe, {workers} threads that make tensors", arguments)


def theirs(
    given: argparse.Namespace,
    raw: Path,
    batch: int,
    workers: int = 0,
    threads: int = 1,
    chunk: int = 0,
    least: float = LEAST,
) -> Contestant:
    """Describe the process that reads ROOT files; chunk 0: with the defaults of get_dataloader."""
    name = f"xec-ml-wl, {workers} workers, {threads} threads, chunk {chunk:,}"
    arguments = ["xec-ml-wl", str(raw), "--threads", str(threads), "--chunk", str(chunk)]
    return Contestant(
        name if chunk else "xec-ml-wl, its defaults",
        [*arguments, *_common(batch, workers, least)],
        str(given.peer),
    )


def _common(batch: int, workers: int, least: float) -> list[str]:
    return ["--batch", str(batch), "--workers", str(workers), "--least", str(least)]


def rows_of(given: argparse.Namespace, raw: Path, batch: int) -> dict[tuple[str, str], list[Contestant]]:
    """Give the settings of each row of the table by (system, what it hands out)."""
    shards = data.shards(raw)
    found = {
        ("crpipe", kind): [ours(shards, kind, batch, workers) for workers in (0, 1, 2)]
        for kind in ("raw", "normalised")
    }
    if given.peer:
        settings = [(workers, threads) for workers in (0, 1, 2, 4) for threads in (1, 2)]
        found["xec-ml-wl", "xec-ml-wl"] = [theirs(given, raw, batch, *each, CHUNK) for each in settings]
        found["xec-ml-wl, defaults", "xec-ml-wl"] = [theirs(given, raw, batch)]
    return found


def measure_loaders(given: argparse.Namespace, folder: Path) -> None:
    """Compare the loaders at each size of a batch."""
    raw = data.root_files(folder, given.events, given.file_events)
    expected = data.ids(raw)
    found = alone(given, "split", raw)
    wall, cpu = (1e6 * each / found["events"] for each in found["split"])
    print(f"\nloader: {expected[0]:,} events in {len(data.paths_of(raw))} files; µs are of an event")
    print(f"split, once: {wall:.0f} µs, {cpu:.0f} µs of CPU; {found['bytes'] / found['events'] / 1e3:.1f} kB")
    head = f"{'batch':>5}  {'':45}{'hands out':26}{'events/s':>9}{'CPU µs':>8}"
    print(f"{head}  crpipe is faster by: raw, normalised")
    for batch in given.batches:
        with ExitStack() as stack:
            best = [chosen(rows, expected, stack) for rows in rows_of(given, raw, batch).values()]
            for _ in range(given.rounds):
                for row in best:
                    row.times.append(row.turn(expected))
        for row, (_, kind) in zip(best, rows_of(given, raw, batch), strict=True):
            wall, cpu = row.medians()
            shown = ", ".join(
                compared(
                    f"xenon, loader, batches of {batch}, {own_kind} columns",
                    row.name,
                    [each[0] / fast[0] for each, fast in zip(row.times, own.times, strict=True)],
                    5.0 if own_kind == "raw" else None,
                )
                for own, own_kind in zip(best, ("raw", "normalised"), strict=False)
                if kind == "xec-ml-wl"
            )
            line = f"{batch:5}  {row.name:45}{HANDS_OUT[kind]:26}"
            print(f"{line}{1 / wall:9,.0f}{1e6 * cpu:8.0f}  {shown}", flush=True)
    print("crpipe reads shards and normalises in its model; xec-ml-wl reads the ROOT files themselves")
    if not given.peer:
        print("xec-ml-wl: not run; see --peer")


def chosen(rows: list[Contestant], expected: tuple[int, int], stack: ExitStack) -> Contestant:
    """Let each take a turn, and keep the fastest."""
    times = []
    for row in rows:
        stack.callback(row.end)
        row.turn(expected)  # starts workers and fills caches
        times.append(row.turn(expected)[0] if len(rows) > 1 else 0.0)
    best = rows[times.index(min(times))]
    for row in rows:
        if row is not best:
            row.end()
    return best


def alone(given: argparse.Namespace, what: str, raw: Path, *more: str) -> dict[str, Any]:
    """Run a measurement of xec_step.py in a process of its own."""
    peer = f"{given.peer}:" if given.peer else ""
    environment = os.environ | {"PYTHONPATH": f"{peer}{os.environ.get('PYTHONPATH', '')}"}
    environment["OMP_NUM_THREADS"] = str(given.threads)
    command = [sys.executable, str(HERE / "xec_step.py"), what, str(raw), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_memory(given: argparse.Namespace, folder: Path) -> None:
    """Compare the memory that reading one large file takes."""
    small = data.root_files(folder, given.file_events, given.file_events)
    raw = data.enlarged(folder, small, given.large)
    expected = data.ids(raw)
    print(f"\nmemory: one file of {expected[0]:,} events; MB above the process before, in one process")
    found = alone(given, "split", raw)
    show_memory("crpipe split", found["before"], found["peak"])
    rows = [ours(data.shards(raw), kind, 1024, 0, 0.0) for kind in ("raw", "normalised")]
    for row, kind in zip(rows, ("raw", "normalised"), strict=True):
        row.name = f"crpipe loader, {HANDS_OUT[kind]}"
    if given.peer:
        rows += [theirs(given, raw, 1024, 0, 1, chunk, 0.0) for chunk in (CHUNK, given.large)]
        rows[-1].name += " (the whole file; so is their default chunk of 256,000)"
    for row in rows:
        row.turn(expected)
        row.end()
        show_memory(row.name, *row.memory)
    if not given.peer:
        print("xec-ml-wl: not run; see --peer")


def show_memory(name: str, before: float, peak: float) -> None:
    """Print a row; MiB come in."""
    print(f"{(peak - before) * 1.048576:7,.0f} MB above {before * 1.048576:4.0f} MB  {name}", flush=True)


def measure_steps(given: argparse.Namespace, folder: Path) -> None:
    """Compare training steps."""
    raw = data.root_files(folder, min(given.events, given.file_events), given.file_events)
    data.shards(raw)
    print(f"\nstep: energy and position, float32, {given.threads} threads; a step of equal batches")
    print(
        f"{'':32}{'weights':>11}{'batch':>7}{'events/s':>10}{'CPU ms/event':>14}{'crpipe is faster by':>26}"
    )
    for size, batch in zip(given.sizes, given.step_batches, strict=True):
        # A round of the small network takes about as long as one of the large one.
        more = ["--size", size, "--batch", str(batch), "--rounds", str(given.rounds)]
        more += ["--steps", "1" if size == "29 M" else "4", *(["--peer"] if given.peer else [])]
        found = alone(given, "step", raw, *more)
        for name, each in found.items():
            wall, cpu = (statistics.median(column) for column in zip(*each["times"], strict=True))
            pairs = zip(each["times"], found["crpipe"]["times"], strict=True)
            ratios = [theirs[0] / own[0] for theirs, own in pairs]
            shown = ""
            if name != "crpipe":
                shown = compared(f"xenon, training step, {size} weights", name, ratios, 1.3)
            row = f"{name + ', ' + size:32}{each['weights']:11,}{batch:7}{batch / wall:10.1f}"
            print(f"{row}{1e3 * cpu / batch:14.2f}{shown:>26}", flush=True)
            if abs(each["weights"] / found["crpipe"]["weights"] - 1) > 0.01:
                print("the networks do not have the same number of weights within 1 %")
            if "built" in each:
                print(f"{'':32}{each['built']:11,} with the heads that are built and not used")
    if not given.peer:
        print("xec-ml-wl: not run; see --peer")


def measure_scale(given: argparse.Namespace, folder: Path) -> None:
    """Compare the cost of an event in small and large sets."""
    originals = data.root_files(folder, given.events, given.file_events)
    counts = sorted({max(1, round(count / given.file_events)) for count in given.scale})
    turns: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for number in range(given.rounds):
        for count in counts:
            if number < max(1, min(given.rounds, counts[-1] // count // 2)):  # large sets once
                raw = data.linked(folder, originals, count)
                found = alone(given, "split", raw, "--forget")
                if (found["events"], found["ids"]) != data.ids(raw):
                    print(f"{count} files: {found['events']} events, or not each once")
                turns[count].append(found)
    print(f"\nscale: split and an epoch, one process, batches of 1,024; ranges of {data.RANGE_FILES} files")
    print(f"{'events':>9}{'kB/event':>10}{'split µs':>10}{'epoch µs':>10}{'CPU of both':>13}", end="")
    print(f"{'ratio to the first':>26}{'MB':>8}")
    first = statistics.median(cost(found) for found in turns[counts[0]])
    for each in turns.values():
        events = each[0]["events"]
        walls = [
            1e6 * statistics.median(found[key][0] for found in each) / events for key in ("split", "load")
        ]
        cpu = 1e6 * statistics.median(cost(found) for found in each)
        ratio = spread([cost(found) / first for found in each])
        memory = max((found["peak"] - found["before"]) * 1.048576 for found in each)
        row = f"{events:9,}{each[0]['bytes'] / events / 1e3:10.1f}{walls[0]:10.0f}{walls[1]:10.0f}"
        print(f"{row}{cpu:13.0f}{ratio:>26}{memory:8,.0f}", flush=True)


def cost(found: dict[str, Any]) -> float:
    """CPU time of an event, split and read once, in s."""
    return float(found["split"][1] + found["load"][1]) / int(found["events"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="clone of weiyuanli-icepp/xec-ml-wl")
    parser.add_argument("--section", choices=SECTIONS, nargs="+", default=SECTIONS)
    parser.add_argument("--events", type=int, default=20_000, help="events for the loaders")
    parser.add_argument("--file-events", type=int, default=5_000, help="events in a file")
    parser.add_argument("--batches", type=int, nargs="+", default=[1024, 256], help="of the loaders")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=40_000, help="events in the file for the memory")
    parser.add_argument("--sizes", nargs="+", default=["0.65 M", "29 M"], help="networks of the step")
    parser.add_argument("--step-batches", type=int, nargs="+", default=[64, 8], help="of those networks")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch in the step")
    parser.add_argument("--scale", type=int, nargs="+", default=[10_000, 100_000, 300_000])
    parser.add_argument("--folder", type=Path, help="where events are kept; default: a temporary directory")
    given = parser.parse_args()
    print_facts("xec-ml-wl", given.peer)
    measures = {
        "loader": measure_loaders,
        "memory": measure_memory,
        "step": measure_steps,
        "scale": measure_scale,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for section in given.section:
            measures[section](given, folder)


if __name__ == "__main__":
    main()
