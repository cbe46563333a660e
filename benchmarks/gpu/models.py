"""Steps of direction and xec on the device, and the physics of MuonGan after minutes on it."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from benchmarks.direction import benchmark as direction_benchmark
from benchmarks.direction import data as direction_data
from benchmarks.direction.steps import GROUPS, SIZES
from benchmarks.muons import physics as muon_physics
from benchmarks.runner import Side, once, take_turns

if TYPE_CHECKING:
    from benchmarks.runner import Run

PRECISIONS = ("float32", "bfloat16", "float16")
JUDGING_S = 75.0  # what physics takes besides training: simulation and classifiers


def note_steps(run: Run, what: str, sides: list[Side], events: int) -> None:
    """Note the speed and memory of each system, and how much faster crpipe is."""
    for each in sides:
        run.note(f"{what}: {each.name}", events / each.median(), "events/s")
        if "mib" in each.turns[-1].answer:
            name = f"{what}: {each.name}, a step beside weights and optimizer"
            run.note(name, max(turn.answer["mib"] for turn in each.turns), "MiB")
        if each is not sides[0]:
            run.faster(what, sides[0], each)


def direction(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Measure both sizes of the flat transformer, at most 128 and 256 sensors, in three precisions."""
    clone = run.peer("iceaggr")
    raw = direction_data.kaggle(run.folder, 400 if small else 4096)
    batch = 16 if small else 1024
    for size, doms in itertools.product(list(SIZES)[: 1 if small else 2], (128, 256)):
        for precision in PRECISIONS:
            given: dict[str, Any] = {"device": device, "doms": doms, "precision": precision, "batch": batch}
            peer = clone if precision == "float32" else None
            sides = direction_benchmark.step_sides(peer, raw, size, **given)
            take_turns(sides, 1 if small else 5)
            what = f"{size} weights, at most {doms} sensors, {precision}"
            note_steps(run, what, sides, GROUPS * batch)


def xec(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Measure the network of 29 million weights, at a batch of 2,048 events."""
    from benchmarks.xec import benchmark, data  # noqa: PLC0415 - it needs an extra

    events = 128 if small else 4096
    raw = data.root_files(run.folder, events, events if small else 512)
    batch, size = (32, "0.65 M") if small else (2048, "29 M")
    clone = run.peer("xec-ml-wl")
    for precision in PRECISIONS:
        given: dict[str, Any] = {"device": device, "precision": precision, "batch": batch, "steps": 2}
        peer = clone if precision == "float32" else None
        sides = benchmark.step_sides(peer, raw, size, **given)
        take_turns(sides, 2 if small else 5)
        note_steps(run, f"{size} weights, batch of {batch}, {precision}", sides, 2 * batch)


def physics(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Train MuonGan in what time is left, with two sizes of a batch at the same time; judge both."""
    budget = 4.0 if small else max(min(600.0, run.left() - JUDGING_S), 30.0)
    given: dict[str, Any] = {"rows": 20_000, "validation": 8_000} if small else {}
    work = "benchmarks.muons.physics:side"
    more = given | {"system": "MuonGan", "budget": budget, "device": device}
    sides = [Side(f"batch of {batch}", work, more | {"batch": batch}) for batch in (640, 5120)]
    run.note("training of each, both at the same time", budget, "s")
    with ThreadPoolExecutor(len(sides)) as pool:
        answers = [turn.answer for turn in pool.map(Side.turn, sides)]
    answers.append(once(work, given | {"system": muon_physics.FLOOR}).answer)
    for name, answer in zip((*(each.name for each in sides), muon_physics.FLOOR), answers, strict=True):
        for key, title in muon_physics.COLUMNS.items():
            if key in answer:
                run.note(f"{name}: {title}", answer[key])
    for each in sides:
        each.end()
