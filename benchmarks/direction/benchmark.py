"""Directions of neutrinos: loading and a training step, beside iceaggr.

All read the same simulated events, in Kaggle's files or in shards by the real split. The first epoch of each
is not counted: it fills caches and starts workers. All epochs check the number of events and the sum of their
ids. With 20,000 events there is one file of Kaggle's, which iceaggr decodes once and keeps; crpipe reads its
shards in every epoch.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import steppers
from benchmarks.direction import data
from benchmarks.direction.loaders import BATCH
from benchmarks.direction.steps import GROUPS
from benchmarks.runner import Side, ratios, take_turns
from benchmarks.table import show

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.runner import Run

SECTIONS = ("loader", "step")
WORKERS = (0, 1, 2, 4)
GOAL = 5.0  # times as many events/s
COLLATES = ("flat", "variable")  # sensors with their first pulses, padded; or all pulses, end to end


def side(system: str, folder: Path, raw: Path, collate: str, workers: int, **more: Any) -> Side:
    """Describe the process that reads ``folder``."""
    given = {"system": system, "folder": folder, "geometry": raw / "sensor_geometry.csv", "collate": collate}
    name = f"{system}, {collate}, {workers} workers"
    return Side(name, "benchmarks.direction.loaders:side", given | {"workers": workers}, **more)


def loaders(run: Run, raw: Path) -> dict[tuple[str, str], list[Side]]:
    """List all sides by system and what they hand out, crpipe before its peers."""
    shards = data.shards(raw)
    sides = {
        ("crpipe", collate): [side("crpipe", shards, raw, collate, count) for count in (0, 1, 2)]
        for collate in COLLATES
    }
    if clone := run.peer("iceaggr"):
        path = {"path": str(clone / "src")}
        for collate in COLLATES:
            sides["iceaggr", collate] = [side("iceaggr", raw, raw, collate, n, **path) for n in WORKERS]
    return sides


def measure_loaders(run: Run, raw: Path, rounds: int) -> None:
    """Compare the loaders, each at its best number of workers."""
    systems = loaders(run, raw)
    take_turns([each for sides in systems.values() for each in sides], rounds)
    expected, rows = data.ids(raw), []
    for each in (each for sides in systems.values() for each in sides):
        if any(turn.answer != list(expected) for turn in each.turns):
            print(f"{each.name}: not each of {expected[0]} events once")
    best = {key: min(sides, key=Side.median) for key, sides in systems.items()}
    for key, sides in systems.items():
        system, collate = key
        for each in sides:
            faster = ""
            if each is best[key] and system != "crpipe":
                own = best["crpipe", collate]
                faster = run.compared(f"directions, loader, {collate}", system, ratios(each, own), GOAL)
                faster += f", in CPU time {statistics.median(ratios(each, own, 'cpu')):.1f}"
            cost = 1e6 * each.median("cpu") / expected[0]
            rows.append([each.name, expected[0] / each.median(), cost, faster])
    title = f"loader: {expected[0]:,} events, batches of {BATCH:,}"
    show(title, ["", "events/s", "CPU µs an event", "best crpipe is faster by"], rows)


def step_sides(clone: Path | None, raw: Path, size: str, *, threads: int = 0, **given: Any) -> list[Side]:
    """Describe the processes that train on the same batches."""
    place = {"shards": data.shards(raw), "geometry": raw / "sensor_geometry.csv", "size": size, **given}
    dropouts = {f"iceaggr, dropout {dropout:g}": dropout for dropout in (0.0, 0.1)}
    path = clone / "src" if clone else None
    return steppers.step_sides("benchmarks.direction.steps:side", place, threads, path, dropouts)


def direction(
    run: Run,
    *,
    only: tuple[str, ...] = SECTIONS,
    events: int = 40_000,
    rounds: int = 3,
    sizes: tuple[str, ...] = ("0.5 M",),
    batch: int = 256,
    threads: int = torch.get_num_threads(),
) -> None:
    """Measure the sections ``only``: loader, step.

    events: for the loaders. sizes: networks of the step, also "5 M". threads: of torch in
    the step.
    """
    run.known(only, SECTIONS)
    raw = data.kaggle(run.folder, events)
    if "loader" in only:
        measure_loaders(run, raw, rounds)
    if "step" in only:
        for size in sizes:
            sides = step_sides(run.peer("iceaggr"), raw, size, threads=threads, batch=batch)
            take_turns(sides, rounds)
            steppers.step_table(run, f"directions, training step, {size} weights", sides, batch, GROUPS, 1.5)
