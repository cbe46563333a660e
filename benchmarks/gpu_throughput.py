"""Points 3, 4 and 7 of benchmarks/gpu.py: events/s of the training step of MuonGan, and what bounds it.

The settings are those of benchmarks/training.py. The loader's points train as `crpipe train` does, on shards
of as many events as some twenty batches hold.
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
import training
from gpu_rows import NO_GPU
from side_by_side import spread
from steppers import stepper_of
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # it is in no list of exports
from torch.profiler import ProfilerActivity, profile

from crpipe.events.batch import Cursor
from crpipe.events.shard_records import ShardManifest
from crpipe.events.shard_writer import write_shard
from crpipe.loading.loader import Loader
from crpipe.train.meter import GpuSampler
from crpipe.train.ranks import World
from crpipe.train.step import compile_modules
from crpipe.workloads.muons.layout import BUNDLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpu_rows import Given
    from training import Setting

    from crpipe.train.step import Stepper

PRECISIONS = ("float32", "TF32", "bfloat16")
SHAPES = 12  # batches that take turns, each with its own number of muons
BATCHES = 20  # of an epoch of the loader's points
PROFILED = 10
LOGGED = 20  # steps between readings of the metrics: each waits for the device


def setting_of(given: Given, name: str) -> Setting:
    """Find a setting by the beginning of its name; small: a fiftieth of its events."""
    found = next(each for each in training.SETTINGS if each.name.startswith(name))
    return dataclasses.replace(found, events=max(found.events // (50 if given.small else 1), 100))


def tree_of(setting: Setting, device: torch.device, precision: str = "float32") -> dict[str, Any]:
    """Spell a setting as a configuration of crpipe."""
    model: dict[str, Any] = {"critic_steps": setting.critic_steps, "optimizer": setting.optimizer}
    model |= {"max_muons": 0, "penalty": "none"}
    if setting.gp_every:
        pairs = round(setting.gp_max_pairs / setting.mean_muons)
        model |= {"penalty": "gradient", "gp_every": setting.gp_every, "gp_max_pairs": pairs}
    load = {"batch_events": setting.events, "budget_items": training.BUDGET[device.type]}
    return {"model": model, "load": load, "train": {"fresh_batches": False, "precision": precision}}


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Give the seconds of one call, after one that is not counted."""
    work()
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(repeat):
        work()
    synchronise(device)
    return (time.perf_counter() - begun) / repeat


def peak_mib(device: torch.device) -> float | str:
    """Give the largest memory that torch gave out since the last call."""
    if device.type != "cuda":
        return NO_GPU
    peak = torch.cuda.max_memory_allocated(device) / 2**20
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def ready_step(
    setting: Setting, device: torch.device, precision: str = "float32", *, compiles: bool = False
) -> Callable[[], None]:
    """Prepare a step of crpipe on batches that are collated: in training threads do that ahead."""
    _, stepper = stepper_of(tree_of(setting, device, precision.replace("TF32", "float32")), device)
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


def steps(given: Given) -> None:
    """Events/s of whole steps in three precisions, and beside the earlier system's own step."""
    device = torch.device(given.device)
    rounds, repeat = (3, 1) if given.small else (7, SHAPES)
    for base in training.SETTINGS:
        setting = setting_of(given, base.name)
        events = training.make_events(setting)
        name = setting.name.partition(":")[0]
        peak_mib(device)
        contest = {precision: ready_step(setting, device, precision) for precision in PRECISIONS}
        contest["float32, collating too"] = training.ours(setting, [], World(0, 1, device))
        found = training.measure(contest, rounds, repeat, device, time.perf_counter)
        for what, times in found.items():
            seconds = statistics.median(times[1:])  # the allocator has met every batch in the first round
            given.note(f"{name}: training, {what}", len(events) / seconds, "events/s")
            given.note(f"{name}: training, {what}", len(events.items) / seconds, "muons/s")
        given.note(f"{name}: largest memory given out", peak_mib(device), "MiB")
        if given.cr_muons is None:
            given.note(f"{name}: beside cr_muons", "not run: give its clone with --cr-muons PATH")
            continue
        pair = {"cr_muons": training.theirs(setting, given.cr_muons, World(0, 1, device))}
        pair["crpipe"] = contest["float32"]  # the last one leaves TF32 off for the next
        pair["crpipe"]()
        found = training.measure(pair, 3 if given.small else 6, 1, device, time.perf_counter)
        theirs, own = found["cr_muons"][1:], found["crpipe"][1:]
        given.note(f"{name}: cr_muons, float32", len(events) / statistics.median(theirs), "events/s")
        ratios = [other / one for other, one in zip(theirs, own, strict=True)]
        given.note(f"{name}: crpipe is faster by, float32, in turns", spread(ratios))


def shards(folder: Path, setting: Setting) -> Path:
    """Write the shards of an epoch, unless they are there."""
    target = folder / f"shards-{setting.events}-{setting.mean_muons:g}"
    if not (target / "manifest.json").exists():
        target.mkdir(parents=True, exist_ok=True)
        parts = (training.make_events(setting, seed) for seed in range(1, 1 + BATCHES))
        entry = write_shard(target, "train-00000", "train", BUNDLES, parts)
        manifest = ShardManifest(range="", data="", threshold=0, layout=BUNDLES.describe(), shards=(entry,))
        manifest.write(target / "manifest.json")
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


def loader(given: Given, setting: str) -> None:
    """Train a minute from the loader: how busy the GPU is, the share of waiting; then profile some steps."""
    device = torch.device(given.device)
    chosen = setting_of(given, setting)
    config, stepper = stepper_of(tree_of(chosen, device), device)
    shard_folder = shards(given.folder, chosen)
    source = Loader(
        shard_folder,
        "train",
        batch_events=chosen.events,
        seed=(1,),
        epochs=1 << 20,
        prefetch=config.load.prefetch,
    )
    collate = functools.partial(stepper.collate_ahead, seed=(1,))
    seconds = 2.0 if given.small else min(60.0, given.left() - 25.0)
    with closing(source.made(collate, workers=config.load.collate_workers)) as stream:
        warm = Fed(stepper, stream)
        for _ in range(3 if given.small else BATCHES):
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
        given.note("float32, with the loader", fed.events / elapsed, "events/s")
        given.note("float32, with the loader", fed.items / elapsed, "muons/s")
        given.note("share of waiting for data", 100 * fed.waited / elapsed, "%")
        busy = sampled.get("gpu/utilisation_percent", "not run: no NVML (pip install crpipe[gpu])")
        given.note("busy by NVML", busy if device.type == "cuda" else NO_GPU, "%")
        _profile(given, fed, elapsed / fed.steps, device)


def _profile(given: Given, fed: Fed, wall: float, device: torch.device) -> None:
    """Profile some steps: kernels, launches, and the host's own time; ``wall``: seconds of a step before."""
    queued = 0.0
    for _ in range(PROFILED):
        synchronise(device)
        begun = time.perf_counter()
        fed.step(log=False)
        queued += (time.perf_counter() - begun) / PROFILED
    given.note("host, to queue a step", 1000 * queued, "ms")
    given.note("whole step", 1000 * wall, "ms")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities) as found:
        for _ in range(PROFILED):
            fed.step()
        synchronise(device)
    found.export_chrome_trace(str(given.folder / f"trace-{given.point.rpartition(' ')[2]}.json.gz"))
    averages = found.key_averages()
    order = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(averages.table(sort_by=order, row_limit=30))
    operators = sum(each.count for each in averages if each.key.startswith("aten::")) / PROFILED
    given.note("operators in a step", operators)
    if device.type != "cuda":
        given.note("busy by the profiler", NO_GPU, "%")
        return
    launches = sum(each.count for each in averages if "LaunchKernel" in each.key) / PROFILED
    on_gpu = [each for each in averages if each.device_type == DeviceType.CUDA]
    on_gpu = [each for each in on_gpu if not getattr(each, "is_user_annotation", False)]
    kernels = sum(each.self_device_time_total for each in on_gpu) / 1e6 / PROFILED
    given.note("launches in a step", launches)
    given.note("kernels of a step", 1000 * kernels, "ms")
    given.note("busy by the profiler: kernels ÷ whole step", 100 * kernels / wall, "%")
    given.note("bound by launches", "yes" if kernels < 0.9 * wall and queued > 0.9 * wall else "no")
