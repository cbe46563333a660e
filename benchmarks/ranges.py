"""How the loader's speed and memory depend on the number of ranges in one link; used by loader.py --ranges.

Each measurement is a process of its own: ``python benchmarks/ranges.py FOLDER RANGES EPOCHS``.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from peak import peak_mib

from crpipe.loading.loader import Loader

EVENTS = 1 << 18  # of each range: four row groups
LEAST_EVENTS = 10 * EVENTS  # read at least: one range is read several times
BATCH = 4096


def link_ranges(folder: Path, first: Path, count: int) -> None:
    """Make ``count`` ranges with the same number of events: hard links to the shards of the first."""
    for number in range(count):
        target = folder / f"{number:07}"
        target.mkdir()
        for path in first.iterdir():
            os.link(path, target / path.name)


def read(folder: Path, ranges: int, epochs: int) -> dict[str, float]:
    """Read all batches of the first ``ranges`` folders; give speed, memory and open files."""
    pa.set_cpu_count(1)
    folders = sorted(folder.iterdir())[:ranges]
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now on
    start, before = peak_mib(), open_files()
    wall, cpu = time.perf_counter(), time.process_time()
    loader = Loader(folders, "train", batch_events=BATCH, seed=(1,), epochs=epochs)
    opened = time.perf_counter() - wall
    events, files = 0, 0
    with closing(loader.batches()) as stream:
        for batch, _ in stream:
            events += len(batch)
            files = max(files, open_files() - before)
    spent = time.process_time() - cpu
    return {
        "events_per_s": events / (time.perf_counter() - wall),
        "events_per_cpu_s": events / spent,
        "memory_mib": peak_mib() - start,
        "open_files": files,
        "open_s": opened,
    }


def open_files() -> int:
    """Count the open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def compare(folder: Path, counts: list[int], rounds: int) -> None:
    """Measure each number of ranges in turn, and print medians and their ratios to the first."""
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for _, count in itertools.product(range(rounds), counts):
        epochs = max(1, -(-LEAST_EVENTS // (count * EVENTS)))
        command = [sys.executable, __file__, str(folder), str(count), str(epochs)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[count].append(json.loads(done.stdout))
    heads = ("k events/s", "of CPU", "ratio", "MiB", "ratio", "files", "open s")
    print(f"{'ranges':>8}" + "".join(f"{head:>12}" for head in heads))
    for count in counts:
        row = {name: statistics.median(one[name] for one in found[count]) for name in found[count][0]}
        pairs = list(zip(found[count], found[counts[0]], strict=True))
        speed, memory = (
            statistics.median(one[name] / first[name] for one, first in pairs)
            for name in ("events_per_cpu_s", "memory_mib")
        )
        print(
            f"{count:8}{row['events_per_s'] / 1000:12.0f}{row['events_per_cpu_s'] / 1000:12.0f}{speed:12.2f}"
            f"{row['memory_mib']:12.0f}{memory:12.2f}{row['open_files']:12.0f}{row['open_s']:12.2f}"
        )
    print(f"load of the machine: {np.round(os.getloadavg(), 1).tolist()}")


if __name__ == "__main__":
    print(json.dumps(read(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
