"""The xenon detector: loading and a training step, beside xec-ml-wl.

Both read the same simulated events: xec-ml-wl its ROOT files, crpipe shards that the real split made of them,
at a price that is printed too. The first turn of each is not counted: it fills caches and starts workers; a
second one chooses the fastest of its settings. All epochs check the number of events and the sum of their
ids.
"""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import steppers
from benchmarks.runner import Side, Turn, once, take_turns
from benchmarks.table import show
from benchmarks.xec import data

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.runner import Run

PEER = "xec-ml-wl"
SECTIONS = ("loader", "step")
CHUNK = 2_000  # events that xec-ml-wl reads at once: 76 MB of two float32 for each sensor
HANDS_OUT = {"raw": "4 raw columns, shuffled", "normalised": "2 normalised, shuffled"}
LEAST = 2.0  # s of a turn: whole epochs until they are over
GOALS = {"raw": 5.0, "normalised": None}


def ours(shards: list[Path], hands_out: str, batch: int, workers: int, least: float = LEAST) -> Side:
    """Describe the process that reads shards; its threads work on batches of their own."""
    given = {"folders": list(map(str, shards)), "hands_out": hands_out, "batch": batch, "workers": workers}
    name = f"crpipe, {HANDS_OUT[hands_out]}, {workers} threads that make tensors"
    one = {"OMP_NUM_THREADS": "1"}
    return Side(name, "benchmarks.xec.loaders:side", given | {"least": least}, environment=one)


def theirs(
    clone: Path,
    raw: Path,
    batch: int,
    workers: int = 0,
    threads: int = 1,
    chunk: int = 0,
    least: float = LEAST,
) -> Side:
    """Describe the process that reads ROOT files; chunk 0: with the defaults of get_dataloader."""
    given = {"folders": [str(raw)], "batch": batch, "workers": workers, "least": least}
    name = (
        f"{PEER}, {workers} workers, {threads} threads, chunk {chunk:,}" if chunk else f"{PEER}, its defaults"
    )
    given |= {"threads": threads, "chunk": chunk}
    return Side(name, "benchmarks.xec.loaders:side", given, path=str(clone))


def events_of(turn: Turn, expected: tuple[int, int]) -> int:
    """Return the events of a turn; say so unless each came once an epoch."""
    found = turn.answer
    if [found["events"], found["ids"]] != [found.get("epochs", 1) * each for each in expected]:
        print(f"not each event once: {found} instead of {expected} an epoch")
    return int(found["events"])


def measure_loaders(run: Run, raw: Path, batches: tuple[int, ...], rounds: int) -> None:
    """Compare the loaders at each size of a batch, each with its best number of workers and threads."""
    expected, clone = data.ids(raw), run.peer(PEER)
    turn = once("benchmarks.xec.steps:split", {"raw": raw})
    cost, size = 1e6 * turn.cpu / expected[0], turn.answer / expected[0] / 1e3
    print(f"{expected[0]:,} events; the split, once: {cost:.0f} µs of CPU an event, {size:.1f} kB")
    shards = data.shards(raw)
    for batch in batches:
        choices = {kind: [ours(shards, kind, batch, workers) for workers in (0, 1, 2)] for kind in HANDS_OUT}
        if clone:
            settings = [(workers, threads) for workers in (0, 1, 2, 4) for threads in (1, 2)]
            choices[PEER] = [theirs(clone, raw, batch, *each, CHUNK) for each in settings]
            choices[f"{PEER}, its defaults"] = [theirs(clone, raw, batch)]
        best = {}
        for name, sides in choices.items():
            if len(sides) > 1:
                take_turns(sides, 1)
            best[name] = min(
                sides,
                key=lambda side: side.median() / events_of(side.turns[0], expected) if side.turns else 0,
            )
        for side in best.values():
            side.turns.clear()
        take_turns(list(best.values()), rounds)
        rows = []
        for name, side in best.items():
            costs = [
                (turn.wall / count, turn.cpu / count)
                for turn in side.turns
                if (count := events_of(turn, expected))
            ]
            faster = []
            for kind in HANDS_OUT if name not in HANDS_OUT else ():
                pairs = zip(side.turns, best[kind].turns, strict=True)
                found = [
                    one.wall / one.answer["events"] / (own.wall / own.answer["events"]) for one, own in pairs
                ]
                what = f"xenon, loader, batches of {batch}, {kind} columns"
                faster.append(run.compared(what, side.name, found, GOALS[kind]))
            wall, cpu = (statistics.median(each) for each in zip(*costs, strict=True))
            rows.append([side.name, 1 / wall, 1e6 * cpu, ", ".join(faster)])
        head = ["", "events/s", "CPU µs an event", "crpipe is faster by: raw, normalised"]
        show(f"loader, batches of {batch}", head, rows)


def step_sides(
    clone: Path | None, raw: Path, size: str, *, threads: int = 0, peer: bool = True, **given: Any
) -> list[Side]:
    """Describe the processes that train on the same batches."""
    data.shards(raw)
    more = {"environment": {"OMP_NUM_THREADS": str(threads)} if threads else {}}
    work, place = "benchmarks.xec.steps:side", {"raw": raw, "size": size, **given}
    sides = [Side("crpipe", work, place, **more)]
    for name, dropout in ((PEER, True), (f"{PEER}, dropout 0", False)) if clone and peer else ():
        sides.append(Side(name, work, place | {"dropout": dropout}, path=str(clone), **more))
    return sides


def xec(
    run: Run,
    *,
    only: tuple[str, ...] = SECTIONS,
    events: int = 20_000,
    file_events: int = 5_000,
    batches: tuple[int, ...] = (1024, 256),
    rounds: int = 3,
    sizes: tuple[str, ...] = ("0.65 M", "29 M"),
    step_batches: tuple[int, ...] = (64, 8),
    threads: int = torch.get_num_threads(),
) -> None:
    """Measure the sections ``only``: loader, step.

    events: for the loaders, in files of ``file_events``; batches: theirs. sizes, step_batches: networks of
    the step and their batches. threads: of torch in the step.
    """
    if unknown := set(only) - set(SECTIONS):
        sys.exit(f"{', '.join(unknown)}: expected some of {', '.join(SECTIONS)}")
    raw = data.root_files(run.folder, events, file_events)
    small = data.root_files(run.folder, min(events, file_events), file_events)
    if "loader" in only:
        measure_loaders(run, raw, batches, rounds)
    for size, batch in zip(sizes, step_batches, strict=True) if "step" in only else ():
        # A round of the small network takes about as long as one of the large one.
        steps = 1 if size == "29 M" else 4
        sides = step_sides(run.peer(PEER), small, size, threads=threads, batch=batch, steps=steps)
        take_turns(sides, rounds)
        steppers.step_table(run, f"xenon, training step, {size} weights", sides, batch, steps, 1.3)
