"""torch.compile beside eager steps, and whether runs repeat bit for bit."""

from __future__ import annotations

import functools
import statistics
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.throughput import SHAPES, ready_step, seconds_of, setting_of, synchronise
from benchmarks.muons import training
from benchmarks.steppers import stepper_of
from benchmarks.table import spread
from crpipe.events.batch import Cursor, Events
from crpipe.train.step import compile_modules

if TYPE_CHECKING:
    from benchmarks.muons.training import Setting
    from benchmarks.runner import Run


def compiled(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Compare compiled and eager steps in bfloat16, and the losses of float32."""
    if small:  # traced only: a processor compiles for minutes
        torch.compile = functools.partial(torch.compile, backend="aot_eager")
    place = torch.device(device)
    for name in ("README", "launcher"):
        setting = setting_of(name, small=small)
        _speed(run, f"{name}, compiled", setting, place, small=small)
        _loss_curves(run, name, setting, place)


def _speed(run: Run, what: str, setting: Setting, device: torch.device, *, small: bool) -> None:
    """Compare eager and compiled steps in turns."""
    begun = time.perf_counter()
    contest = {"compiled": ready_step(setting, device, "bfloat16", compiles=True)}
    contest["compiled"]()
    synchronise(device)
    run.note(f"{what}: until the first step has ended", time.perf_counter() - begun, "s")
    contest["eager"] = ready_step(setting, device, "bfloat16")
    rounds, repeat = (3, 1) if small else (7, SHAPES)
    found = seconds_of(contest, rounds, repeat, device)
    for name, times in found.items():
        run.note(f"{what}: bfloat16, {name}", setting.events / statistics.median(times), "events/s")
    pairs = zip(found["eager"], found["compiled"], strict=True)
    run.note(f"{what}: faster than eager by", spread([eager / one for eager, one in pairs]))


def _loss_curves(run: Run, name: str, setting: Setting, device: torch.device) -> None:
    """Train the same steps eager and by train.compile; compare the losses of every step."""
    batches = [training.make_events(setting, seed) for seed in (1, 2, 3)]
    curves = []
    for compiles in (False, True):
        _, stepper = stepper_of(training.tree_of(setting, device), device)
        if compiles:
            probe = functools.partial(stepper.probe, batches[0], (1, 0, 0))
            works = compile_modules(stepper.state.model, probe, print)
            run.note(f"{name}: train.compile", "works" if works else "does not work here: eager")
        losses = []
        for number, events in enumerate([*batches, batches[0]]):
            stepper.step([(events, Cursor(0, number + 1))], (1,), 1.0)
            stepper.state.counters.step += 1
            values = stepper.meter.read(stepper.world)
            losses.append([values[name] for name in sorted(values) if name.endswith("/loss")])
        curves.append(losses)
    eager, other = (torch.tensor(each) for each in curves)
    far = ((eager - other).abs() / eager.abs().amax(dim=0)).max().item()  # later steps amplify the rounding
    run.note(f"{name}: losses of 4 steps, float32: most difference from eager ÷ largest loss", far)


def determinism(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Two runs with one seed, and a resumed one: bit-identical or how far apart; then by torch's own rule."""
    place = torch.device(device)
    for base in training.SETTINGS:
        setting = setting_of(base.name, small=small)
        batches = [training.make_events(setting, seed) for seed in range(1, 7)]
        name = setting.name.partition(":")[0]
        first, second = (_weights(setting, batches, place) for _ in range(2))
        run.note(f"{name}: weights of two runs, one seed", _difference(first, second))
        resumed = _weights(setting, batches, place, cut=3)
        run.note(f"{name}: weights of a resumed run", _difference(first, resumed))
        if place.type == "cuda" and not _same(first, second):
            torch.use_deterministic_algorithms(True, warn_only=True)
            first, second = (_weights(setting, batches, place) for _ in range(2))
            run.note(f"{name}: two runs, deterministic algorithms", _difference(first, second))
            torch.use_deterministic_algorithms(False)


def _weights(
    setting: Setting, batches: list[Events], device: torch.device, cut: int = 0
) -> dict[str, torch.Tensor]:
    """Train one step on each batch; with ``cut`` a new process's state takes over after so many."""
    config, stepper = stepper_of(training.tree_of(setting, device), device)
    for number, events in enumerate(batches):
        if cut and number == cut:
            saved = stepper.state.state({})
            config, stepper = stepper_of(training.tree_of(setting, device), device, seed=config.seed)
            stepper.state.restore(saved)
        stepper.step([(events, Cursor(0, number + 1))], (1,), 1.0)
        stepper.state.counters.step += 1
    return {name: value.cpu() for name, value in stepper.state.model.state_dict().items()}


def _same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def _difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> str:
    if _same(first, second):
        return "bit-identical"
    far = max((first[name] - second[name]).abs().max().item() for name in first if first[name].numel())
    return f"differ by {far:.2g} at most"
