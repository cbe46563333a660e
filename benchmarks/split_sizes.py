"""What the split of a range costs from 0.25 to 10 GB, where its time goes, and what bounds each step.

One command: ``python benchmarks/split_sizes.py --sizes 0.25 1 4 --figure split-size.svg``. One worker splits
each size in a process of its own; raw files are not in the page cache. They are those of
``benchmarks/data.py``; beyond the first 20, the muons of one of these under ids of their own.
``--peer PATH``: another checkout of crpipe, which splits the same files in turn.
``--folder``: where to generate, on the disk that is measured; files that are there are used again.
``--runs FILE`` adds each size to those measured before, where a command may not run long.
``--steps``: where the time goes at the first size, one run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import FLUSH, ONE_THREAD, floor, split_staged, staged_split, write_file
from peak import peak_mib
from side_by_side import print_facts, spread

import crpipe.split.split
from crpipe.campaign import readers
from crpipe.core import files
from crpipe.events import shard_manifest, shard_writer
from crpipe.split import gather, scatter, spill

if TYPE_CHECKING:
    from collections.abc import Callable

GB = 10**9
DRAWN = 20
EVENT_BYTES, ITEM_BYTES = 44, 12  # before they are encoded
OURS, PEER = "crpipe", "peer"
Run = dict[str, Any]
Results = dict[float, list[tuple[str, Run]]]


def generate(folder: Path, size: float) -> list[Path]:
    """Write raw files until they hold ``size`` bytes; return those that do."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    drawn: list[pa.Table] = []
    while size > 0:
        seed = len(paths)
        path = folder / f"{seed:07d}.parquet"
        if not path.exists() and seed < DRAWN:
            write_file(path, seed)
        elif not path.exists():
            drawn = drawn or [pq.read_table(each) for each in paths[:DRAWN]]
            table = drawn[seed % DRAWN]
            ids = pa.array(np.full(len(table), seed + 2**40, np.uint64))
            pq.write_table(table.set_column(0, table.schema.field(0), ids), path, row_group_size=FLUSH)
        paths.append(path)
        size -= path.stat().st_size
    return paths


class Clock:
    """CPU seconds of named steps, each without those inside it; of all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = threading.local()

    def wrap(self, place: Any, name: str, step: str) -> None:
        """Count the time of a function, or of each turn of a generator function."""
        function = getattr(place, name)

        def timed(*words: Any, **options: Any) -> Any:
            found = self.call(step, function, *words, **options)
            return self._each(step, found) if hasattr(found, "__next__") else found

        setattr(place, name, timed)

    def call(self, step: str, function: Callable[..., Any], *words: Any, **options: Any) -> Any:
        """Call a function and add its time to a step."""
        outer = getattr(self._inside, "seconds", 0.0)
        self._inside.seconds = 0.0
        begin = time.thread_time()
        try:
            return function(*words, **options)
        finally:
            spent = time.thread_time() - begin
            self.seconds[step] += spent - self._inside.seconds
            self._inside.seconds = outer + spent

    def _each(self, step: str, items: Any) -> Any:
        while (item := self.call(step, next, items, None)) is not None:
            yield item


def clock_steps() -> Clock:
    """Replace the functions that make up a split by timed ones."""
    clock = Clock()
    clock.wrap(readers.CheckedReader, "rows", "decode")
    clock.wrap(readers.CheckedReader, "totals", "read footers")
    clock.wrap(scatter, "_scatter_file", "check, scatter")
    clock.wrap(scatter, "forget_cached", "drop raw files from the page cache")
    clock.wrap(spill.SpanFile, "put", "write temporary files")
    clock.wrap(crpipe.split.split, "count_repeated", "look for repeated events")
    clock.wrap(spill.SpillReader, "read", "read temporary files")
    clock.wrap(gather, "gather", "shuffle")
    clock.wrap(shard_writer.ShardWriter, "append", "encode, write shards")
    clock.wrap(shard_writer, "_hashes", "sha256, crc32c of shards")
    clock.wrap(shard_manifest, "_check_hash", "read shards back, crc32c")
    clock.wrap(files, "sync", "fsync")
    clock.wrap(crpipe.split.split, "_record", "multiplicity table, record")
    return clock


def split_alone(folder: Path, *, steps: bool) -> None:
    """Split a folder of raw files in this process; print what it took as JSON."""
    staged = staged_split(folder)
    clock = clock_steps() if steps else Clock()
    begin, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    events, items = clock.call("the rest", split_staged, staged)
    wall, end = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    mib, found = peak_mib(), hashlib.sha256()
    made = sorted((folder.parent / "results").rglob("*.parquet"))
    for path in made:
        found.update(f"{path.name} {files.sha256(path)}".encode())
    taken = {
        "user": end.ru_utime - begin.ru_utime,
        "system": end.ru_stime - begin.ru_stime,
        "wall": wall,
        "mib": mib,
        "digest": found.hexdigest(),
        "steps": clock.seconds,
        "shards": sum(path.stat().st_size for path in made if path.stem.count(".")),
        "plain": events * EVENT_BYTES + items * ITEM_BYTES,
    }
    print(json.dumps(taken))


def run(paths: list[Path], source: Path, *more: str) -> Run:
    """Split raw files in a process of its own, with the crpipe of the checkout ``source``."""
    with tempfile.TemporaryDirectory(dir=paths[0].parent.parent) as name:
        folder = Path(name) / "raw"
        folder.mkdir()
        for path in paths:
            files.forget_cached(path)
            (folder / path.name).hardlink_to(path)
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(source / "src")}
        command = [sys.executable, __file__, "--alone", str(folder), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            sys.exit(done.stderr)
        taken: Run = json.loads(done.stdout.splitlines()[-1])
    return taken


def cpu(taken: Run) -> float:
    """Give the CPU seconds of a run."""
    return float(taken["user"] + taken["system"])


def compare(sizes: list[float], rounds: int, folder: Path, peer: Path | None) -> Results:
    """Split each size in turns; print a line for each side, and the ratio."""
    results: Results = {}
    sides = {OURS: Path(__file__).parents[1]} | ({PEER: peer} if peer else {})
    for gigabytes in sizes:
        paths = generate(folder, gigabytes * GB)
        size = sum(path.stat().st_size for path in paths)
        runs = [(name, run(paths, source)) for _ in range(rounds) for name, source in sides.items()]
        results[gigabytes] = runs
        taken = {name: [each for who, each in runs if who == name] for name in sides}
        for name, own in taken.items():
            middle = {key: statistics.median(each[key] for each in own) for key in ("user", "system", "wall")}
            rates = [size / cpu(each) / 1e6 for each in own]
            print(
                f"{gigabytes:5g} GB {name:7}{spread(rates)} MB/s per core, {size / middle['wall'] / 1e6:.0f} "
                f"by the clock; user {middle['user']:.2f} s, system {middle['system']:.2f} s; "
                f"{max(each['mib'] for each in own):.0f} MiB",
                flush=True,
            )
        if peer:
            ratios = [cpu(theirs) / cpu(ours) for ours, theirs in zip(taken[OURS], taken[PEER], strict=True)]
            same = "the same" if len({each["digest"] for _, each in runs}) == 1 else "NOT the same"
            print(f"         faster by {spread(ratios)}; all files are {same}", flush=True)
    return results


def limits(folder: Path, paths: list[Path]) -> dict[str, float]:
    """Measure what no step can be faster than, in bytes per CPU second; the disk in bytes per second."""
    size = 1 << 27
    floats = np.random.default_rng(1).lognormal(5, 1.3, size // 4).astype(np.float32)
    split = np.ascontiguousarray(floats.view(np.uint8).reshape(-1, 4).T)
    zstd, target, path = pa.Codec("zstd", 1), np.zeros_like(floats), folder / "disk"
    few = folder / "few"
    few.mkdir()
    for each in paths:
        (few / each.name).hardlink_to(each)

    def rate(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
        found = []
        for _ in range(3):
            begin = clock()
            work()
            found.append(clock() - begin)
        return size / statistics.median(found)

    def flush() -> None:
        path.write_bytes(split.data)
        files.sync(path)

    def read() -> None:
        files.forget_cached(path)
        path.read_bytes()

    raw, data = sum(each.stat().st_size for each in paths), split.tobytes()
    found = {
        "memcpy": rate(lambda: np.copyto(target, floats)),
        "decompress": rate(lambda: floor(few)) * raw / size,
        "zstd-1": rate(lambda: zstd.compress(split)),
        "sha256": rate(lambda: hashlib.sha256(split.data)),
        "crc32c": rate(lambda: google_crc32c.value(data)),
        "write to the page cache": rate(lambda: path.write_bytes(split.data)),
        "disk: write and flush, by the clock": rate(flush, time.perf_counter),
        "disk: read, by the clock": rate(read, time.perf_counter),
    }
    path.unlink()
    return found


def print_steps(paths: list[Path], folder: Path) -> None:
    """Print the share of each step, one run, beside its limit on this machine."""
    taken = run(paths, Path(__file__).parents[1], "--steps")
    size, whole = sum(path.stat().st_size for path in paths), cpu(taken)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        rates = limits(Path(name), paths[:DRAWN])
    plain, shards = taken["plain"], taken["shards"]
    bounds = {
        "decode": (size / rates["decompress"], "decompress the raw files"),
        "check, scatter": (plain / rates["memcpy"], "copy the plain bytes"),
        "write temporary files": (plain / rates["write to the page cache"], "plain bytes to the page cache"),
        "read temporary files": (plain / rates["memcpy"], "copy the plain bytes"),
        "shuffle": (plain / rates["memcpy"], "copy the plain bytes"),
        "encode, write shards": (plain / rates["zstd-1"], "zstd-1 of split bytes"),
        "sha256, crc32c of shards": (shards / rates["sha256"] + shards / rates["crc32c"], "both sums"),
        "read shards back, crc32c": (shards / rates["crc32c"], "crc32c"),
    }
    print(f"{size / GB:.2f} GB, {plain / GB:.2f} plain, {shards / GB:.2f} of shards; {whole:.2f} s of CPU")
    for step, spent in sorted(taken["steps"].items(), key=lambda each: -each[1]):
        bound, why = bounds.get(step, (0.0, ""))
        least = f"{bound * GB / size:8.2f} ({why})" if why else ""
        print(f"  {step:36}{100 * spent / whole:4.0f} %{spent * GB / size:8.2f} s/GB{least}")
    for title, value in rates.items():
        print(f"  limit: {title:36}{value / 1e6:8.0f} MB/s")


def save_figure(results: Results, path: Path) -> None:
    """Plot throughput, its lowest and highest, and memory over the size."""
    from crpipe.report.figure_context import FigureContext, figures_of  # noqa: PLC0415 - 0.5 s
    from crpipe.report.figure_style import COLOURS, new_figure, save, style  # noqa: PLC0415

    with style(), figures_of(FigureContext(copies=False)):
        figure = new_figure(3.0)
        speed, memory = figure.subplots(1, 2)
        names = sorted({name for runs in results.values() for name, _ in runs})
        for name, colour in zip(names, COLOURS, strict=False):
            own = {
                size: [taken for who, taken in runs if who == name]
                for size, runs in results.items()
                if any(who == name for who, _ in runs)
            }
            rates = {size: [size * 1e3 / cpu(each) for each in runs] for size, runs in own.items()}
            label = "before" if name == PEER else name
            middle = [statistics.median(each) for each in rates.values()]
            ends = [[min(each) for each in rates.values()], [max(each) for each in rates.values()]]
            speed.plot(list(rates), middle, "o-", color=colour, label=label)
            speed.vlines(list(rates), *ends, color=colour, lw=1)
            memory.plot(
                list(own), [max(each["mib"] for each in runs) for runs in own.values()], "o-", color=colour
            )
        for axes, title in ((speed, "MB/s of raw files per core"), (memory, "peak memory [MiB]")):
            axes.set(xscale="log", xlabel="raw files of the range [GB]", ylabel=title, ylim=(0, None))
            axes.set_xticks(list(results), [f"{size:g}" for size in results], minor=False)
            axes.minorticks_off()
        if len(names) > 1:
            speed.legend()
        save(figure, path)


def main() -> None:
    """Generate, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 1, 4], help="GB of raw files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to generate; default: a temporary directory")
    parser.add_argument("--peer", type=Path, help="another checkout of crpipe")
    parser.add_argument("--figure", type=Path, help="where to write the figure")
    parser.add_argument("--runs", type=Path, help="JSON file to which each size's runs are added")
    parser.add_argument("--steps", action="store_true", help="print where the time goes at the first size")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        split_alone(given.alone, steps=given.steps)
        return
    print_facts("peer", given.peer)
    with tempfile.TemporaryDirectory() as name:
        folder = (given.folder or Path(name)) / "raw"
        known = json.loads(given.runs.read_text()) if given.runs and given.runs.exists() else []
        results: Results = {float(size): runs for size, runs in known}
        results |= compare(given.sizes, given.rounds, folder, given.peer) if given.rounds else {}
        results = dict(sorted(results.items()))
        if given.runs:
            given.runs.write_text(json.dumps(list(results.items())))
        if given.steps:
            print_steps(generate(folder, given.sizes[0] * GB), folder.parent)
    if given.figure:
        save_figure(results, given.figure)


if __name__ == "__main__":
    main()
