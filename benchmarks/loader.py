"""How fast batches come: this loader beside a plain copy, the earlier system's reader, and general loaders.

One command: ``python benchmarks/loader.py`` (``--cr-muons PATH`` for the earlier system's clone; the others
come with ``pip install -c constraints.txt -e .[bench]``; MosaicML streaming needs numpy below 2.2 and so an
environment of its own). All read the same generated events and hand out the same batches, ready to train
on: torch tensors of the primaries, the multiplicities and the muons, 4,096 events end to end. Each reader's
first epoch is not timed but compared event by event with what was generated; it also tells how far events
travel: 29 % of the epoch if all of it is shuffled. Then the readers take turns, and the table shows the
median of their CPU time: the speed on one core, whatever else the machine does.

``python benchmarks/loader.py --ranges 1 10 100`` compares links of so many ranges instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import peers
import pyarrow as pa
import torch
from events import Batch, compare, describe, generate, whole
from peak import peak_mib
from ranges import EVENTS, link_ranges
from ranges import compare as compare_ranges
from side_by_side import compared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crpipe.events.batch import Events

GOALS = {"cr_muons, batch reader": 40.0}


@dataclass
class Reader:
    """One row of the table.

    folder: name of its files, which readers may share; few: read only the first events, for slow readers;
    way: how far events travel, as a share of the epoch; times: (CPU s, wall s) of each epoch.
    """

    name: str
    shuffles: str
    folder: str
    prepare: Callable[[Path, Events], None]
    epoch: Callable[[Path], Iterator[Batch]]
    needs: str = ""
    few: bool = True
    way: float = 0.0
    times: list[tuple[float, float]] = field(default_factory=list)


def readers(cr_muons: Path | None) -> list[Reader]:
    """All rows of the table, the yardstick first."""
    rows = [
        Reader("memcpy of .npy, in order", "no", "npy", peers.write_npy, peers.copy_arrays, few=False),
        Reader("crpipe", "yes", "shards", peers.write_shard, peers.read_crpipe, few=False),
        Reader(
            "HF, tables", "files", "all", peers.write_lists, peers.read_datasets_arrow, "datasets", few=False
        ),
        Reader("HF, events", "buffer", "lists", peers.write_lists, peers.read_datasets, "datasets"),
        Reader("litdata", "yes", "litdata", peers.write_litdata, peers.read_litdata, "litdata"),
        Reader("MosaicML streaming", "yes", "mosaic", peers.write_mosaic, peers.read_mosaic, "streaming"),
        Reader("StatefulDataLoader", "yes", "mapped", peers.write_npy, peers.read_torchdata, "torchdata"),
        Reader("webdataset", "buffer", "tar", peers.write_webdataset, peers.read_webdataset, "webdataset"),
    ]
    if cr_muons is None:
        print("cr_muons: skipped; name its clone with --cr-muons PATH")
        return rows
    batches, events = peers.read_cr_muons(cr_muons), peers.read_cr_muons(cr_muons, per_event=True)
    rows.insert(2, Reader("cr_muons, batch reader", "no", "raw", peers.write_raw, batches))
    rows.insert(3, Reader("cr_muons, HF reader", "no", "raw", peers.write_raw, events, "datasets"))
    return rows


def present(reader: Reader) -> bool:
    """Tell whether a reader's package is installed, and say how to get it if not."""
    found = not reader.needs or importlib.util.find_spec(reader.needs) is not None
    if not found:
        print(f"{reader.name}: skipped; no module {reader.needs}")
    return found


def prepare(rows: list[Reader], folder: Path, events: Events, few: Events) -> None:
    """Write each reader's files once."""
    for reader in rows:
        target = folder / reader.folder
        if not target.exists():
            target.mkdir(parents=True)
            reader.prepare(target, few if reader.few else events)


def check(reader: Reader, folder: Path, events: Events) -> None:
    """Read an epoch; say so if not every event comes once with its own muons."""
    same, reader.way = compare(
        describe(reader.epoch(folder / reader.folder)), describe(iter([whole(events)]))
    )
    if not same:
        print(f"{reader.name}: hands out other events than it was given, or other muons with them")


def measure(reader: Reader, folder: Path) -> None:
    """Read one epoch."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in reader.epoch(folder / reader.folder):
        pass
    reader.times.append((time.process_time() - cpu, time.perf_counter() - wall))


def table(rows: list[Reader], events: int, few: int) -> None:
    """Print the medians, and how many times faster crpipe is."""
    rates = {
        reader.name: (few if reader.few else events) / statistics.median(cpu for cpu, _ in reader.times)
        for reader in rows
    }
    print(f"\n{'reader':28}{'shuffles':>10}{'way':>8}{'k events/s of CPU':>20}{'crpipe is faster by':>26}")
    own = next(reader for reader in rows if reader.name == "crpipe")
    for reader in rows:
        shown = ""
        if reader is not own:
            less = events / (few if reader.few else events)  # as if it read all of them
            pairs = zip(reader.times, own.times, strict=True)
            ratios = [less * theirs[0] / ours[0] for theirs, ours in pairs]
            shown = compared("loader, CPU", reader.name, ratios, GOALS.get(reader.name))
        rate = rates[reader.name] / 1000
        print(f"{reader.name:28}{reader.shuffles:>10}{reader.way:8.1%}{rate:20.1f}{shown:>26}")
    print(f"largest memory of this process: {peak_mib():.0f} MiB")


def measure_ranges(counts: list[int], rounds: int) -> None:
    """Compare links of several numbers of ranges, all with the same number of events."""
    with tempfile.TemporaryDirectory() as name:
        first, folder = Path(name) / "first", Path(name) / "ranges"
        first.mkdir()
        folder.mkdir()
        peers.write_shard(first, generate(EVENTS))
        link_ranges(folder, first, max(counts))
        compare_ranges(folder, counts, rounds)


def main() -> None:
    """Generate, measure in turns, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="events for the fast readers")
    parser.add_argument("--few", type=int, default=100_000, help="events for the slow ones")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each reader")
    parser.add_argument("--cr-muons", type=Path, help="clone of the earlier system")
    parser.add_argument("--only", default="", help="measure only readers whose name holds this, and crpipe")
    parser.add_argument("--ranges", type=int, nargs="+", help="compare links of so many ranges")
    options = parser.parse_args()
    if options.ranges:
        measure_ranges(options.ranges, options.rounds)
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")  # other people's deprecations
    pa.set_cpu_count(1)
    torch.set_num_threads(1)
    events = generate(options.events)
    few = events.part(0, options.few)
    rows = [
        row
        for row in readers(options.cr_muons)
        if (options.only in row.name or row.name == "crpipe") and present(row)
    ]
    with tempfile.TemporaryDirectory() as name:
        prepare(rows, Path(name), events, few)
        for reader in rows:
            check(reader, Path(name), few if reader.few else events)
        for _, reader in itertools.product(range(options.rounds), rows):
            measure(reader, Path(name))
    print(f"{len(events)} events with {len(events.items)} muons; {len(few)} events for the slow readers")
    table(rows, len(events), len(few))


if __name__ == "__main__":
    main()
