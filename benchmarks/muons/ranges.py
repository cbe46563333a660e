"""How the loader's speed and memory depend on the number of ranges in one link."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.muons.events import BATCH, generate
from benchmarks.muons.readers import write_shard
from benchmarks.runner import Side, take_turns
from benchmarks.table import show
from crpipe.loading.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.runner import Run

LEAST = 10  # times the events of a range are read at least: one range is read several times


def side(folder: str, ranges: int, epochs: int) -> Callable[[], dict[str, float]]:
    """Prepare an epoch or more over the first ``ranges`` folders."""
    pa.set_cpu_count(1)
    folders = sorted(Path(folder).iterdir())[:ranges]

    def work() -> dict[str, float]:
        before, begin = open_files(), time.perf_counter()
        loader = Loader(folders, "train", batch_events=BATCH, seed=(1,), epochs=epochs)
        opened, events, files = time.perf_counter() - begin, 0, 0
        with closing(loader.batches()) as stream:
            for batch, _ in stream:
                events += len(batch)
                files = max(files, open_files() - before)
        return {"events": events, "files": files, "opened": opened}

    return work


def open_files() -> int:
    """Count the open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def ranges(
    run: Run, *, counts: tuple[int, ...] = (1, 10, 100), rounds: int = 5, events: int = 1 << 18
) -> None:
    """Compare links of so many ranges of so many events each (four row groups)."""
    first, folder = run.folder / "first", run.folder / "ranges"
    first.mkdir()
    write_shard(first, generate(events))
    for number in range(max(counts)):  # hard links to the shards of the first
        target = folder / f"{number:07}"
        target.mkdir(parents=True)
        for path in first.iterdir():
            os.link(path, target / path.name)
    sides = [
        Side(
            f"{count}",
            f"{__name__}:side",
            {"folder": folder, "ranges": count, "epochs": -(-LEAST // count)},
            fresh=True,
        )
        for count in counts
    ]
    take_turns(sides, rounds, warm=False)
    rows = []
    for each in sides:
        read = each.turns[0].answer["events"]
        pairs = list(zip(each.turns, sides[0].turns, strict=True))
        memory = statistics.median(one.mib / first.mib for one, first in pairs)
        speeds = [read / each.median(what) / 1000 for what in ("wall", "cpu")]
        files, opened = (
            statistics.median(turn.answer[what] for turn in each.turns) for what in ("files", "opened")
        )
        rows.append([each.name, *speeds, each.median("mib"), memory, files, opened])
    head = ["ranges", "thousand events/s", "of CPU", "MiB", "ratio", "files open", "s to open"]
    show(f"{events:,} events in each range, {rounds} rounds", head, rows)
