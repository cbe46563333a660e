"""How fast batches come: this loader beside a plain copy, the earlier system's reader, and general loaders.

All read the same events and hand out the same batches, ready to train on: torch tensors of the primaries,
the multiplicities and the muons, 4,096 events end to end (the general loaders: ``make bench`` installs them).
A first epoch of each is compared event by event with what was written; it also tells how far events travel,
29 % of the epoch if all of it is shuffled. Then the readers take turns, each in a process of its own on one
thread, and their CPU time counts.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import torch

from benchmarks.muons import readers
from benchmarks.muons.events import Batch, compare, describe, generate, whole
from benchmarks.runner import ONE_THREAD, Side, take_turns
from benchmarks.table import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.runner import Run
    from crpipe.events.batch import Events

GOALS = {"earlier system, batch reader": 40.0}
PEER = "cr_muons"


@dataclass(frozen=True)
class Reader:
    """One row of the table.

    folder: name of its files, which readers may share; all: it reads all events, slow readers only the
    first.
    """

    shuffles: str
    folder: str
    prepare: Callable[[Path, Events], None]
    epoch: Callable[..., Iterator[Batch]]
    needs: str = ""
    all: bool = False


HF = "datasets"
OWN = "crpipe"
READERS = {
    "memcpy of arrays": Reader("no", "npy", readers.write_npy, readers.copy_arrays, all=True),
    OWN: Reader("yes", "shards", readers.write_shard, readers.read_crpipe, all=True),
    "pyarrow, the same row groups": Reader(
        "no", "shards", readers.write_shard, readers.read_row_groups, all=True
    ),
    "earlier system, batch reader": Reader("no", "raw", readers.write_raw, readers.read_cr_muons, PEER),
    "earlier system, HF reader": Reader(
        "no", "raw", readers.write_raw, partial(readers.read_cr_muons, per_event=True), PEER
    ),
    "HF datasets, Arrow tables": Reader(
        "files", "all", readers.write_lists, readers.read_datasets_arrow, HF, all=True
    ),
    "litdata": Reader("yes", "litdata", readers.write_litdata, readers.read_litdata, "litdata"),
}


def epochs(name: str, folder: Path, clone: str | Path | None) -> Callable[[], Iterator[Batch]]:
    """Return what reads an epoch with one of the readers."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")  # other people's deprecations
    pa.set_cpu_count(1)
    torch.set_num_threads(1)
    reader = READERS[name]
    more = (Path(clone),) if reader.needs == PEER and clone else ()
    return partial(reader.epoch, *more, folder / reader.folder)


def side(name: str, folder: str, clone: str | None) -> Callable[[], None]:
    """Prepare a reader; its work is an epoch."""
    read = epochs(name, Path(folder), clone)

    def work() -> None:
        for _ in read():
            pass

    return work


def present(name: str, clone: Path | None) -> bool:
    """Return whether a reader can run; print what it lacks if not."""
    needs = READERS[name].needs
    if needs == PEER:
        if clone is None:
            return False
        needs = HF  # its module imports them
    there = not needs or importlib.util.find_spec(needs) is not None
    if not there:
        print(f"{name}: not run; no module {needs}")
    return there


def loader(
    run: Run, *, events: int = 1_000_000, few: int = 100_000, rounds: int = 5, only: tuple[str, ...] = ("",)
) -> None:
    """Compare the readers; ``few``: events for slow ones, ``only``: beginnings of names, besides crpipe."""
    clone = run.peer(PEER)
    written = generate(events)
    part = written.part(0, few)
    names = [
        name for name in READERS if name == OWN or (name.startswith(tuple(only)) and present(name, clone))
    ]
    ways = {}
    for name in names:
        reader = READERS[name]
        mine, target = written if reader.all else part, run.folder / reader.folder
        if not target.exists():
            target.mkdir()
            reader.prepare(target, mine)
        same, ways[name] = compare(describe(epochs(name, run.folder, clone)()), describe(iter([whole(mine)])))
        if not same:
            print(f"{name}: hands out other events than it was given, or other muons with them")
    sides = {
        name: Side(
            name,
            f"{__name__}:side",
            {"name": name, "folder": run.folder, "clone": clone},
            environment=ONE_THREAD,
        )
        for name in names
    }
    take_turns(list(sides.values()), rounds)
    rows = []
    for name, each in sides.items():
        count = events if READERS[name].all else few
        faster = ""
        if name != OWN:  # as if it read all events
            pairs = zip(each.turns, sides[OWN].turns, strict=True)
            found = [events / count * theirs.cpu / own.cpu for theirs, own in pairs]
            faster = run.compared("loader, CPU", name, found, GOALS.get(name))
        rows.append(
            [name, READERS[name].shuffles, f"{ways[name]:.0%}", count / each.median("cpu") / 1000, faster]
        )
    title = f"{events:,} events with {len(written.items):,} muons; {few:,} events for the slow readers"
    show(title, ["reader", "shuffles", "way", "thousand events/s", "crpipe is faster by"], rows)
