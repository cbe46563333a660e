"""The xenon detector: loading and a training step, beside xec-ml-wl.

Both read the same simulated events: xec-ml-wl its ROOT files, crpipe shards that the real split made of them,
at a price that is printed too. The first turn of each is not counted: it fills caches and starts workers; a
second one chooses the fastest of its settings. All epochs check the number of events and the sum of their
ids.
"""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import steppers
from benchmarks.runner import Side, once, take_turns
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


def side(name: str, folders: list[Path], batch: int, workers: int, path: str = "", **more: Any) -> Side:
    """Describe the process that reads folders; threads of crpipe work on batches of their own."""
    given = {"folders": list(map(str, folders)), "batch": batch, "workers": workers, "least": LEAST}
    one = {} if path else {"OMP_NUM_THREADS": "1"}
    return Side(name, "benchmarks.xec.loaders:side", given | more, path=path, environment=one)


def choices_of(clone: Path | None, raw: Path, batch: int) -> dict[str, list[Side]]:
    """List the settings of each row of the table."""
    shards, found = data.shards(raw), {}
    for kind, title in HANDS_OUT.items():
        names = {workers: f"crpipe, {title}, {workers} threads that make tensors" for workers in (0, 1, 2)}
        found[kind] = [side(name, shards, batch, n, hands_out=kind) for n, name in names.items()]
    if clone:
        found[PEER] = [
            side(f"{PEER}, {n} workers, {m} threads, chunk {CHUNK:,}", [raw], batch, n, str(clone), **more)
            for n, m in itertools.product((0, 1, 2, 4), (1, 2))
            for more in ({"threads": m, "chunk": CHUNK},)
        ]
        found[f"{PEER}, its defaults"] = [side(f"{PEER}, its defaults", [raw], batch, 0, str(clone))]
    return found


def costs_of(side: Side, expected: tuple[int, int]) -> list[tuple[float, float]]:
    """Return wall and CPU time of an event in each turn; say so unless each event came once an epoch."""
    costs = []
    for turn in side.turns:
        found = turn.answer
        if [found["events"], found["ids"]] != [found["epochs"] * each for each in expected]:
            print(f"{side.name}: not each event once: {found} instead of {expected} an epoch")
        costs.append((turn.wall / found["events"], turn.cpu / found["events"]))
    return costs


def measure_loaders(run: Run, raw: Path, batches: tuple[int, ...], rounds: int) -> None:
    """Compare the loaders at each size of a batch, each with its best number of workers and threads."""
    expected, clone = data.ids(raw), run.peer(PEER)
    turn = once("benchmarks.xec.steps:split", {"raw": raw})
    cost, size = 1e6 * turn.cpu / expected[0], turn.answer / expected[0] / 1e3
    print(f"{expected[0]:,} events; the split, once: {cost:.0f} µs of CPU an event, {size:.1f} kB")
    for batch in batches:
        best = {}
        for name, sides in choices_of(clone, raw, batch).items():
            take_turns(sides, 1)
            best[name] = min(sides, key=lambda each: costs_of(each, expected))
            best[name].turns.clear()
        take_turns(list(best.values()), rounds)
        rows = []
        costs = {name: costs_of(each, expected) for name, each in best.items()}
        for name, each in best.items():
            faster = []
            for kind in HANDS_OUT if name not in HANDS_OUT else ():
                found = [one[0] / own[0] for one, own in zip(costs[name], costs[kind], strict=True)]
                what = f"xenon, loader, batches of {batch}, {kind} columns"
                faster.append(run.compared(what, each.name, found, GOALS[kind]))
            wall, cpu = (statistics.median(column) for column in zip(*costs[name], strict=True))
            rows.append([each.name, 1 / wall, 1e6 * cpu, ", ".join(faster)])
        head = ["", "events/s", "CPU µs an event", "crpipe is faster by: raw, normalised"]
        show(f"loader, batches of {batch}", head, rows)


def step_sides(clone: Path | None, raw: Path, size: str, *, threads: int = 0, **given: Any) -> list[Side]:
    """Describe the processes that train on the same batches."""
    data.shards(raw)
    place, dropouts = {"raw": raw, "size": size, **given}, {PEER: True, f"{PEER}, dropout 0": False}
    return steppers.step_sides("benchmarks.xec.steps:side", place, threads, clone, dropouts)


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
    run.known(only, SECTIONS)
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
