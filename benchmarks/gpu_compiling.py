"""Points 4 and 7 of benchmarks/gpu.py: torch.compile, and whether runs repeat bit for bit."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
import training
from gpu_throughput import SHAPES, ready_step, setting_of, synchronise, tree_of
from side_by_side import spread
from steppers import stepper_of

from crpipe.events.batch import Cursor, Events
from crpipe.train.step import compile_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_rows import Given
    from training import Setting

    from crpipe.train.step import Stepper


def compiled(given: Given, setting: str, mode: str = "") -> None:
    """Events/s of eager and compiled steps in turns, in bfloat16, and how far their losses are apart."""
    device = torch.device(given.device)
    chosen = setting_of(given, setting)
    if given.small:  # traced only: a processor compiles for minutes
        torch.compile = functools.partial(torch.compile, backend="aot_eager")
    if mode:
        for key, value in torch._inductor.list_mode_options(mode).items():  # noqa: SLF001 - it is documented
            _set_option(key, value)
    events = training.make_events(chosen)
    begun = time.perf_counter()
    contest = {"compiled": ready_step(chosen, device, "bfloat16", compiles=True)}
    contest["compiled"]()
    synchronise(device)
    given.note("until the first compiled step has ended", time.perf_counter() - begun, "s")
    contest["eager"] = ready_step(chosen, device, "bfloat16")
    rounds, repeat = (3, 1) if given.small else (7, SHAPES)
    found = training.measure(contest, rounds, repeat, device, time.perf_counter)
    for name, times in found.items():
        given.note(f"bfloat16, {name}", len(events) / statistics.median(times[1:]), "events/s")
    pairs = zip(found["eager"][1:], found["compiled"][1:], strict=True)
    given.note("compiled is faster by", spread([eager / one for eager, one in pairs]))
    if not mode:
        _loss_curves(given, chosen, events, device)


def _set_option(key: str, value: Any) -> None:
    """Set an option of inductor, whose name may have a point in it."""
    place = torch._inductor.config  # noqa: SLF001 - the documented place of its options
    *groups, name = key.split(".")
    for group in groups:
        place = getattr(place, group)
    setattr(place, name, value)


def _loss_curves(given: Given, setting: Setting, events: Events, device: torch.device) -> None:
    """Train the same steps eager and by train.compile; compare the losses of every step."""
    batches = [events, *(training.make_events(setting, seed) for seed in (2, 3))]
    curves = []
    for compiles in (False, True):
        _, stepper = stepper_of(tree_of(setting, device), device)
        if compiles:
            probe = functools.partial(stepper.probe, events, (1, 0, 0))
            works = compile_modules(stepper.state.model, probe, print)
            given.note("train.compile", "works" if works else "does not work here: eager")
        curves.append(curve(stepper, itertools.islice(itertools.cycle(batches), 4)))
    eager, other = (torch.tensor(each) for each in curves)
    far = ((eager - other).abs() / eager.abs().amax(dim=0)).max().item()  # later steps amplify the rounding
    given.note("losses of 4 steps, float32: most difference from eager ÷ largest loss", far)


def curve(stepper: Stepper, batches: Iterator[Events]) -> list[list[float]]:
    """Train a step on each batch; give the losses of each step, sorted by name."""
    losses = []
    for number, events in enumerate(batches):
        stepper.step([(events, Cursor(0, number + 1))], (1,), 1.0)
        stepper.state.counters.step += 1
        values = stepper.meter.read(stepper.world)
        losses.append([values[name] for name in sorted(values) if name.endswith("/loss")])
    return losses


def determinism(given: Given) -> None:
    """Two runs with one seed, and a resumed one: bit-identical or how far apart; then by torch's own rule."""
    device = torch.device(given.device)
    for base in training.SETTINGS:
        setting = setting_of(given, base.name)
        batches = [training.make_events(setting, seed) for seed in range(1, 7)]
        name = setting.name.partition(":")[0]
        first, second = (_weights(setting, batches, device) for _ in range(2))
        given.note(f"{name}: weights of two runs, one seed", _difference(first, second))
        resumed = _weights(setting, batches, device, cut=3)
        given.note(f"{name}: weights of a resumed run", _difference(first, resumed))
        if device.type == "cuda" and not _same(first, second):
            torch.use_deterministic_algorithms(True, warn_only=True)
            first, second = (_weights(setting, batches, device) for _ in range(2))
            given.note(f"{name}: two runs, deterministic algorithms", _difference(first, second))
            torch.use_deterministic_algorithms(False)


def _weights(
    setting: Setting, batches: list[Events], device: torch.device, cut: int = 0
) -> dict[str, torch.Tensor]:
    """Train one step on each batch; with ``cut`` a new process's state takes over after so many."""
    config, stepper = stepper_of(tree_of(setting, device), device)
    for number, events in enumerate(batches):
        if cut and number == cut:
            saved = stepper.state.state({})
            config, stepper = stepper_of(tree_of(setting, device), device, seed=config.seed)
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
