"""Train on one batch again and again (``crpipe plan --probe``): whether the loss falls, and the times.

The model, its optimizers and the steps are those of the training; nothing is written.
"""

from __future__ import annotations

import math
import resource
import textwrap
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.campaign.readers import open_reader
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.ranges import pick
from crpipe.core.text import Column, NullProgress, Progress, counted, measured, number, table
from crpipe.events.batch import Cursor, Events, regroup
from crpipe.events.histograms import Histogram, count_columns, read_histograms
from crpipe.events.shard_manifest import open_manifest
from crpipe.inference.inputs import RawInput
from crpipe.loading.loader import sample
from crpipe.report.run_time import Rate
from crpipe.train.answers import model_of, phases_of
from crpipe.train.meter import Meter, Profiler
from crpipe.train.ranks import World, find_device, refuse_slow_precision, use_threads
from crpipe.train.state import TrainState
from crpipe.train.step import Micro, Stepper, named_out_of_memory
from crpipe.train.workload import Batch, Loss, Phase, give_histograms, open_workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.records import Tables
    from crpipe.config.loading import Config

_WARM_UP = 3  # steps that are not timed: the first ones allocate and compile
_LAST_SHARE = 20  # the loss afterwards is the mean over the last 1/20 of the steps
_MEASURED_STEPS, _MEASURED_ITEMS, _MEASURED_S = 4, 200_000, 10.0  # of a measurement before a run
_PROFILED = 10  # steps of a profile
_CLEAR = 0.05  # a fall by a smaller share of the loss is called small
_WIDTH = 120
_OTHER = "other"
_ADVICE = (
    "what to look at: the learning rate (try a tenth and ten times of it); whether collate gives inputs and "
    "targets of order one that belong together; whether phases() names the parameters that the loss depends "
    "on; whether they are frozen. The loss of an adversarial phase may rise while the model learns."
)


@dataclass(frozen=True, slots=True)
class ProbeBatch:
    """The events that are trained on, and where they come from.

    histograms: those of split.histograms, of the range or, from raw files, of the batch itself. tables: side
    tables, where they are not the campaign's copies.
    """

    events: Events
    source: str
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    tables: Tables | None = None


@dataclass(frozen=True, slots=True)
class PhaseLoss:
    """The loss of one phase in the first step, and its mean over the last ones."""

    phase: str
    before: float
    after: float

    def verdict(self) -> str:
        """Describe what happened to it."""
        if not self.after < self.before:
            return "did not fall"
        return "fell a little" if self.before - self.after < _CLEAR * abs(self.before) else "fell"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was seen: losses, milliseconds of each part of a step, skipped steps, peak memory in MiB.

    events: of one step, each as often as it is drawn.
    """

    steps: int
    events: int
    losses: tuple[PhaseLoss, ...]
    parts_ms: Mapping[str, float]
    skipped: int
    host_mib: float
    gpu_mib: float | None


class StepClock:
    """Divides the time of steps into named parts: each mark ends the part before it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.seconds: dict[str, float] = defaultdict(float)
        self._part, self._since = "", 0.0

    def mark(self, part: str) -> None:
        """Begin a part; an empty name ends the last one."""
        if self._cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._part:
            self.seconds[self._part] += now - self._since
        self._part, self._since = part, now

    def milliseconds(self, steps: int) -> dict[str, float]:
        """Return the mean of each part over the steps; what has no name of its own is the last."""
        ordered = sorted(self.seconds, key=_OTHER.__eq__)
        return {part: 1000 * self.seconds[part] / steps for part in ordered}


class TimedStepper(Stepper):
    """A Stepper that marks what it is doing; the time between the marks is nobody else's."""

    clock: StepClock

    def _micro(self, events: Events, seed: tuple[int, ...]) -> Iterator[Micro]:
        self.clock.mark("collate")
        batches = [*super()._micro(events, seed)]
        self.clock.mark(_OTHER)
        yield from batches

    def _on_device(self, batch: Batch) -> Batch:
        self.clock.mark("copy to the device")
        moved = super()._on_device(batch)
        self.clock.mark(_OTHER)
        return moved

    def _take(self, phase: Phase, bad: Tensor) -> None:
        self.clock.mark(f"{phase.name}: optimizer")
        super()._take(phase, bad)
        self.clock.mark(_OTHER)


def probe_batch(
    campaign: Campaign,
    batch: ProbeBatch,
    steps: int,
    progress: Progress,
    *,
    anomaly: bool = False,
    profile: Path | None = None,
    longest_s: float = math.inf,
) -> ProbeResult:
    """Train on one batch for some steps; raise TrainError at the first bad gradient with ``anomaly``.

    profile: file for a trace of the first steps. longest_s: after it, with the model built, one step is all.
    """
    config, begun = campaign.config, time.monotonic()
    train, load, seed = config.train, config.load, config.seed
    use_threads(train.threads)
    world = World(0, 1, find_device(train.device))
    refuse_slow_precision(train.precision, world.device)
    clock, meter = StepClock(world.device), Meter(world.device)
    tables = campaign.tables if batch.tables is None else batch.tables
    workload = open_workload(train.workload, config.options(), tables)
    give_histograms(workload, train.workload, batch.histograms)
    torch.manual_seed(seed)
    phases = [replace(phase, loss=_timed(phase, clock)) for phase in phases_of(workload)]
    state = TrainState(model_of(workload), phases, seed, world.device)
    stepper = TimedStepper(train, load, workload, state, world, meter, campaign.layout.weight)
    stepper.clock = clock
    repeats = max(phase.repeat for phase in phases) if train.fresh_batches else 1
    group = [(batch.events, Cursor(0, repeat)) for repeat in range(repeats)]
    profiler = Profiler(_PROFILED if profile else 0, profile or Path(), progress.message)
    first: dict[str, float] = {}
    skipped = 0
    tail = steps - max(1, steps // _LAST_SHARE)
    warm_up = min(_WARM_UP, steps - 1)
    remedy = f"lower load.max_items ({load.max_items:,}), or set train.precision: bfloat16"
    with profiler, torch.autograd.set_detect_anomaly(anomaly), named_out_of_memory(remedy):
        for step in range(steps):
            if step == warm_up:
                clock.seconds.clear()
            clock.mark(_OTHER)
            skipped += int(stepper.step(group, (seed,), 1.0))
            clock.mark("")
            state.counters.step += 1
            profiler.step()
            if step == 0:
                first = meter.read(world)
            elif step == tail - 1:
                meter.read(world)
            progress.update("probe", step + 1, steps)
            if step == 0 and time.monotonic() - begun >= longest_s:
                steps, warm_up = 1, 0
                break
    last = meter.read(world) or first
    return ProbeResult(
        steps,
        repeats * len(batch.events),
        tuple(
            PhaseLoss(name, first.get(f"{name}/loss", math.nan), last.get(f"{name}/loss", math.nan))
            for name in state.optimizers
        ),
        clock.milliseconds(steps - warm_up),
        skipped,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        torch.cuda.max_memory_allocated() / 2**20 if world.device.type == "cuda" else None,
    )


def measure_rate(campaign: Campaign, batch: ProbeBatch) -> Rate:
    """Train a step, and a few more where they take seconds, on so much of a batch; return events/s."""
    ends = batch.events.multiplicity.cumsum(dtype=np.int64)
    some = max(1, int(np.searchsorted(ends, _MEASURED_ITEMS, side="right")))
    part = replace(batch, events=batch.events.part(0, min(some, len(batch.events))).copy())
    result = probe_batch(campaign, part, _MEASURED_STEPS, NullProgress(), longest_s=_MEASURED_S)
    rate = campaign.config.train.ranks * result.events / (sum(result.parts_ms.values()) / 1000)
    return Rate(rate, f"{counted(result.steps, 'step')} on this machine")


def render_probe(batch: ProbeBatch, item: str, result: ProbeResult, *, anomaly: bool = False) -> str:
    """Write what was seen, and a verdict in words.

    item: plural noun for what an event contains. anomaly: whether the probe looked for bad gradients.
    """
    items = int(batch.events.multiplicity.sum())
    losses = result.losses
    total_ms = sum(result.parts_ms.values())
    shares = [f"{ms / total_ms:.0%}" for ms in result.parts_ms.values()]
    gpu = "" if result.gpu_mib is None else f", GPU {result.gpu_mib:,.0f} MiB"
    head = (
        f"one batch from {batch.source}: {counted(len(batch.events), 'event')}, {number(items)} {item}; "
        f"{counted(result.steps, 'step')} at the full learning rate"
    )
    lines = [
        head,
        "",
        *table(
            [
                Column("loss of", [one.phase for one in losses]),
                Column("first step", [measured(one.before) for one in losses], right=True),
                Column("last steps", [measured(one.after) for one in losses], right=True),
                Column("", [one.verdict() for one in losses]),
            ],
            _WIDTH,
        ),
        "",
        *table(
            [
                Column("part of a step", [*result.parts_ms, "a step"]),
                Column("ms", [f"{ms:.2f}" for ms in (*result.parts_ms.values(), total_ms)], right=True),
                Column("share", [*shares, ""], right=True),
            ],
            _WIDTH,
        ),
        "",
        f"peak memory: host {result.host_mib:,.0f} MiB{gpu}",
        *_verdict(result, anomaly=anomaly),
    ]
    return "\n".join(lines)


def _verdict(result: ProbeResult, *, anomaly: bool) -> list[str]:
    if result.skipped:
        hint = "look at the data" if anomaly else "find the operation with --anomaly"
        return [
            f"verdict: {result.skipped} of {result.steps} steps were not finite and changed nothing; {hint}"
        ]
    still = [one.phase for one in result.losses if one.verdict() != "fell"]
    if not still:
        return ["verdict: the loss fell: the model can learn this batch"]
    return [f"verdict: the loss of {', '.join(still)} did not clearly fall", *textwrap.wrap(_ADVICE, _WIDTH)]


def _timed(phase: Phase, clock: StepClock) -> Loss:
    def loss(model: Any, batch: Batch, generator: torch.Generator) -> Any:
        clock.mark(f"{phase.name}: forward")
        loss_and_metrics = phase.loss(model, batch, generator)
        clock.mark(f"{phase.name}: backward and clipping")
        return loss_and_metrics

    return loss


# The batch that is trained on: of shards that exist, or of raw files.


_NO_LIMIT = 1 << 62


def read_batch(campaign: Campaign, inputs: Sequence[Path], name: str) -> ProbeBatch:
    """Read a batch of raw files, or of a split range (empty: the first); ConfigError without either."""
    if inputs and name:
        raise ConfigError("--in and --range: a batch is of raw files or of a range; leave one of them out")
    if inputs:
        return batch_of_files(campaign.config, inputs, campaign.tables, ", ".join(map(str, inputs)))
    return _from_shards(campaign, name)


def batch_of_files(config: Config, inputs: Sequence[Path], tables: Tables, source: str) -> ProbeBatch:
    """Read a batch of raw files; raise ConfigError when they have no event. source: their name for people."""
    reader = open_reader(config.source.reader, config.options("reader"))
    size = config.load.batch_size
    raw = RawInput(tuple(inputs), reader, tables, config.split.on_bad_event == "reject")
    blocks = raw.blocks(size, _NO_LIMIT)
    events = next(regroup(blocks, size, _NO_LIMIT), None)
    if events is None:
        raise ConfigError(f"{', '.join(map(str, inputs))}: no event to train on; name other files with --in")
    return ProbeBatch(events, source, count_columns(events.columns, config.split.histograms), tables)


def _from_shards(campaign: Campaign, name: str) -> ProbeBatch:
    config, paths = campaign.config, campaign.paths
    split = [each for each in campaign.ranges if is_present(paths.shard_manifest(each))]
    name = pick(name, campaign.ranges, "range") if name else ""
    if name and name not in split:
        raise ConfigError(f"--range {name}: not split; split are: {', '.join(split[:5]) or 'none'}")
    if not split:
        raise ConfigError(
            f"no range is split yet; split one: snakemake {paths.shard_manifest(campaign.ranges[0])}; or "
            "take a batch from raw files: crpipe plan --probe --in FILE"
        )
    chosen = name or split[0]
    open_manifest(paths.shards(chosen), campaign.data)
    size = config.load.batch_size
    with closing(
        sample(paths.shards(chosen), "train", size, batch_events=size, seed=(config.seed,))
    ) as blocks:
        events = next(blocks, None)
    if events is None:
        raise ConfigError(f"{paths.shards(chosen)}: holds no training events; name another --range")
    return ProbeBatch(events, f"the training shards of {chosen}", read_histograms([paths.shards(chosen)]))
