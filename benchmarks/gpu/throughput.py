"""Events/s of the training step of MuonGan on the device, and what bounds it.

The settings are those of ``training``. The loader's figures are of a training as `crpipe train` does it, on
shards of as many events as some twenty batches hold.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # it is in no list of exports
from torch.profiler import ProfilerActivity, profile

from benchmarks.muons import training
from benchmarks.steppers import stepper_of, write_shard
from crpipe.events.batch import Cursor
from crpipe.loading.loader import Loader
from crpipe.train.meter import GpuSampler
from crpipe.train.ranks import World
from crpipe.train.step import compile_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.muons.training import Setting
    from benchmarks.runner import Run
    from crpipe.train.step import Stepper

PRECISIONS = ("float32", "TF32", "bfloat16", "float16")
SHAPES = 12  # batches that take turns, each with its own number of muons
BATCHES = 20  # of an epoch of the loader's points
PROFILED = 10
LOGGED = 20  # steps between readings of the metrics: each waits for the device


def setting_of(name: str, *, small: bool) -> Setting:
    """Find a setting by the beginning of its name; small: a fiftieth of its events."""
    found = next(each for each in training.SETTINGS if each.name.startswith(name))
    return dataclasses.replace(found, events=max(found.events // (50 if small else 1), 100))


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Return the seconds of one call, after one that is not counted."""
    work()
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(repeat):
        work()
    synchronise(device)
    return (time.perf_counter() - begun) / repeat


def ready_step(
    setting: Setting, device: torch.device, precision: str = "float32", *, compiles: bool = False
) -> Callable[[], None]:
    """Prepare a step of crpipe on batches that are collated: in training threads do that ahead."""
    tree = training.tree_of(setting, device, precision.replace("TF32", "float32"))
    _, stepper = stepper_of(tree, device)
    groups = [(training.make_events(setting, seed), Cursor(0, seed)) for seed in range(1, 1 + SHAPES)]
    ready = {group[1]: stepper.collate_ahead(group, (1,))[2] for group in groups}
    if compiles:
        compile_modules(stepper.state.model, functools.partial(stepper.probe, groups[0][0], (1, 0, 1)), print)
    turns = itertools.cycle(groups)

    def step() -> None:
        torch.backends.cuda.matmul.allow_tf32 = precision == "TF32"  # as `train.tf32` does
        stepper.step([next(turns)], (1,), 1.0, ready=ready)
        stepper.state.counters.step += 1
        if stepper.state.counters.step % LOGGED == 0:
            stepper.meter.read(stepper.world)

    return step


def seconds_of(
    contest: dict[str, Callable[[], None]], rounds: int, repeat: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the seconds of a step of each, rounds of all in turn; the first one, for memory, not."""
    found: dict[str, list[float]] = {name: [] for name in contest}
    for number in range(rounds):
        for name, step in contest.items():
            seconds = timed(step, device, repeat)
            if number:
                found[name].append(seconds)
    return found


def steps(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Events/s of whole steps in four precisions, and beside the earlier system's own step."""
    place = torch.device(device)
    rounds, repeat = (3, 1) if small else (7, SHAPES)
    clone = run.peer("cr_muons")
    for base in training.SETTINGS:
        setting = setting_of(base.name, small=small)
        events = training.make_events(setting)
        name = setting.name.partition(":")[0]
        contest = {precision: ready_step(setting, place, precision) for precision in PRECISIONS}
        contest["float32, collating too"] = training.ours(setting, "float32", World(0, 1, place))
        found = seconds_of(contest, rounds, repeat, place)
        for what, times in found.items():
            seconds = statistics.median(times)
            run.note(f"{name}: training, {what}", len(events) / seconds, "events/s")
            run.note(f"{name}: training, {what}", len(events.items) / seconds, "muons/s")
        if clone is None:
            continue
        pair = {"cr_muons": training.theirs(setting, clone, World(0, 1, place))}
        pair["crpipe"] = contest["float32"]  # the last one leaves TF32 off for the next
        pair["crpipe"]()
        found = seconds_of(pair, 3 if small else 6, 1, place)
        run.note(f"{name}: cr_muons, float32", len(events) / statistics.median(found["cr_muons"]), "events/s")
        ratios = [other / one for other, one in zip(found["cr_muons"], found["crpipe"], strict=True)]
        run.compared(f"training step on {device}, {name}", "cr_muons, float32", ratios)


def shards(folder: Path, setting: Setting) -> Path:
    """Write the shards of an epoch, unless they are there."""
    target = folder / f"shards-{setting.events}-{setting.mean_muons:g}"
    if not (target / "manifest.json").exists():
        target.mkdir(parents=True, exist_ok=True)
        parts = (training.make_events(setting, seed) for seed in range(1, 1 + BATCHES))
        write_shard(target, parts)
    return target


class Fed:
    """Training fed by the loader, with the time that it waited for batches."""

    def __init__(self, stepper: Stepper, stream: Iterator[Any]) -> None:
        self.stepper, self.stream = stepper, stream
        self.waited = 0.0
        self.events = self.items = self.steps = 0

    def step(self, *, log: bool = True) -> None:
        """Train one step; ``log``: read the metrics where it is due."""
        begun = time.perf_counter()
        events, cursor, micro = next(self.stream)
        self.waited += time.perf_counter() - begun
        self.stepper.step([(events, cursor)], (1,), 1.0, ready={cursor: micro})
        self.stepper.state.counters.step += 1
        self.events += len(events)
        self.items += len(events.items)
        self.steps += 1
        if log and self.stepper.state.counters.step % LOGGED == 0:
            self.stepper.meter.read(self.stepper.world)


def loader(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Train a minute from the loader: how busy the GPU is, the share of waiting; then profile some steps."""
    for name in ("README", "launcher"):
        fed_by_loader(run, setting_of(name, small=small), torch.device(device), small=small)


def fed_by_loader(run: Run, chosen: Setting, device: torch.device, *, small: bool) -> None:
    """Train a while, and profile."""
    name = chosen.name.partition(":")[0]
    config, stepper = stepper_of(training.tree_of(chosen, device), device)
    shard_folder = shards(run.folder, chosen)
    source = Loader(
        shard_folder,
        "train",
        batch_events=chosen.events,
        seed=(1,),
        epochs=1 << 20,
        prefetch=config.load.prefetch,
    )
    collate = functools.partial(stepper.collate_ahead, seed=(1,))
    seconds = 2.0 if small else min(60.0, run.left() / 2 - 25.0)
    with closing(source.prepared_batches(collate, workers=config.load.collate_workers)) as stream:
        warm = Fed(stepper, stream)
        for _ in range(3 if small else BATCHES):
            warm.step()
        synchronise(device)
        fed = Fed(stepper, stream)
        with GpuSampler(device) as sampler:
            begun = time.perf_counter()
            while time.perf_counter() - begun < seconds:
                fed.step()
            synchronise(device)
            elapsed = time.perf_counter() - begun
            sampled = sampler.read()
        run.note(f"{name}: float32, with the loader", fed.events / elapsed, "events/s")
        run.note(f"{name}: float32, with the loader", fed.items / elapsed, "muons/s")
        run.note(f"{name}: share of waiting for data", 100 * fed.waited / elapsed, "%")
        busy = sampled.get("gpu/utilisation_percent", "not run: no NVML (pip install crpipe[gpu])")
        run.note(f"{name}: busy by NVML", busy if device.type == "cuda" else "not run: no NVIDIA GPU", "%")
        _profile(run, name, fed, elapsed / fed.steps, device)


def _profile(run: Run, name: str, fed: Fed, wall: float, device: torch.device) -> None:
    """Profile some steps: kernels, launches, and the host's own time; ``wall``: seconds of a step before."""
    queued = 0.0
    for _ in range(PROFILED):
        synchronise(device)
        begun = time.perf_counter()
        fed.step(log=False)
        queued += (time.perf_counter() - begun) / PROFILED
    run.note(f"{name}: host, to queue a step", 1000 * queued, "ms")
    run.note(f"{name}: whole step", 1000 * wall, "ms")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities) as found:
        for _ in range(PROFILED):
            fed.step()
        synchronise(device)
    averages = found.key_averages()
    if device.type != "cuda":
        run.note(f"{name}: busy by the profiler", "not run: no NVIDIA GPU", "%")
        return
    launches = sum(each.count for each in averages if "LaunchKernel" in each.key) / PROFILED
    on_gpu = [each for each in averages if each.device_type == DeviceType.CUDA]
    on_gpu = [each for each in on_gpu if not getattr(each, "is_user_annotation", False)]
    kernels = sum(each.self_device_time_total for each in on_gpu) / 1e6 / PROFILED
    run.note(f"{name}: launches in a step", launches)
    run.note(f"{name}: kernels of a step", 1000 * kernels, "ms")
    run.note(f"{name}: busy by the profiler: kernels ÷ whole step", 100 * kernels / wall, "%")
    run.note(f"{name}: bound by launches", "yes" if kernels < 0.9 * wall and queued > 0.9 * wall else "no")
