"""What a training measures of itself: means on the device, rates, skipped steps, a GPU's use, a profile.

Values stay on the device until they are read, at log intervals alone.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.profiler import ProfilerActivity, profile, supported_activities

from crpipe.core.files import atomic_write
from crpipe.core.text import counted
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from crpipe.events.batch import Cursor, Events
    from crpipe.train.checkpoints import Counters
    from crpipe.train.ranks import World
    from crpipe.train.workload import Phase

QUANTILES = {"p50": 0.5, "p95": 0.95, "max": 1.0}
GPU_PERIOD_S = 0.5
NAMED_EVENTS = 20  # of a batch whose step was skipped
WARM_UP_STEPS = 3  # before a profile
PROFILE_ROWS = 25


def totals_of_ranks(sums: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Add (sum, weight) pairs up over all ranks, with one transfer from the device."""
    # A rank whose batches were all empty has seen fewer names than the others.
    names = sorted({name for seen in world.gather(list(sums)) for name in seen})
    if not names:
        return {}
    nothing = torch.zeros(2, dtype=torch.double, device=world.device)
    table = world.sum(torch.stack([sums.get(name, nothing) for name in names])).cpu()
    return dict(zip(names, table, strict=True))


class Meter:
    """Weighted means of named scalars, and quantiles of per-step series, since the last reading."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, Tensor] = {}
        self._series: dict[str, list[Tensor]] = {}

    def add(self, name: str, value: Tensor, weight: float) -> None:
        """Add a 0-dimensional value; one that is not finite counts for nothing: its step is skipped."""
        finite = torch.isfinite(value)
        pair = torch.stack([torch.where(finite, value, 0.0).double(), finite.double()]) * weight
        self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def record(self, name: str, value: Tensor) -> None:
        """Append a 0-dimensional value to a series that is the same on all ranks."""
        self._series.setdefault(name, []).append(value.detach().double())

    def means(self, world: World) -> dict[str, float]:
        """Read the means over all ranks without resetting."""
        totals = totals_of_ranks(self._sums, world)
        return {name: float(total / count) for name, (total, count) in totals.items() if count > 0}

    def read(self, world: World) -> dict[str, float]:
        """Read means and quantiles over all ranks, and reset."""
        values = self.means(world)
        for name, series in self._series.items():
            steps = torch.stack(series).cpu()
            finite = steps[torch.isfinite(steps)]
            if len(finite):
                values |= {f"{name}_{tag}": float(finite.quantile(q)) for tag, q in QUANTILES.items()}
        self._sums, self._series = {}, {}
        return values

    def state(self, world: World) -> dict[str, Any]:
        """Return what a snapshot needs, the same on all ranks: the sums of each of them, and the series."""
        first, *others = world.gather({name: pair.cpu() for name, pair in self._sums.items()})
        return {
            "sums": first,
            "series": {name: torch.stack(series).cpu() for name, series in self._series.items()},
            **({"others": others} if others else {}),
        }

    def restore(self, state: dict[str, Any], world: World) -> None:
        """Load what a snapshot of as many ranks held."""
        others = state.get("others", [{}] * (world.size - 1))  # no snapshot of earlier versions has them
        sums = [state["sums"], *others][world.rank]
        self._sums = {name: pair.to(self._device) for name, pair in sums.items()}
        self._series = {name: list(series.to(self._device)) for name, series in state["series"].items()}


class Smooth:
    """Moving averages of the metrics that the phases name."""

    def __init__(self, phases: Sequence[Phase], length: int) -> None:
        names = [f"{phase.name}/{metric}" for phase in phases for metric in phase.smoothed]
        self._past: dict[str, deque[float]] = {name: deque(maxlen=max(1, length)) for name in names}

    def add(self, values: dict[str, float]) -> dict[str, float]:
        """Add the values of one log interval; return the averages."""
        for name, past in self._past.items():
            if name in values:
                past.append(values[name])
        return {f"{name}_average": sum(past) / len(past) for name, past in self._past.items() if past}

    def state(self) -> dict[str, list[float]]:
        """Return what a snapshot needs."""
        return {name: list(past) for name, past in self._past.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Load what a snapshot held."""
        for name, past in self._past.items():
            past.extend(state[name])


class Clock:
    """Rates and waiting times since the last reading."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.phase_rates: dict[str, float] = {}  # of phases with a schedule of their own
        self._reset()

    def _reset(self) -> None:
        self.started = time.perf_counter()
        self.waited = 0.0
        self.events = self.items = self.steps = 0

    def count(self, events: int, items: int, steps: int) -> None:
        """Add finished steps, summed over all ranks."""
        self.events += events
        self.items += items
        self.steps += steps

    def leave_out(self, seconds: float) -> None:
        """Leave time that was no training out of the rates."""
        self.started += seconds

    def read(self, world: World) -> dict[str, float]:
        """Return rates, waiting share, memory and learning rate, and reset."""
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        values = {
            "speed/events_per_s": self.events / elapsed,
            "speed/items_per_s": self.items / elapsed,
            "speed/step_s": elapsed / max(self.steps, 1),
            "speed/wait_fraction": min(1.0, self.waited / elapsed),
            "memory/host_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "learning_rate": self.rate,
            **{f"learning_rate/{name}": rate for name, rate in self.phase_rates.items()},
        }
        if world.device.type == "cuda":
            stats = torch.cuda.memory_stats(world.device)
            for kind in ("allocated", "active", "reserved"):
                values[f"memory/gpu_{kind}_mib"] = stats[f"{kind}_bytes.all.current"] / 2**20
            values["memory/gpu_peak_mib"] = stats["allocated_bytes.all.peak"] / 2**20
        self._reset()
        return values


class GpuSampler:
    """Averages utilisation and used memory of one GPU between readings; a context manager around a thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> dict[str, float]:
        """Return the means since the last reading; empty when nothing was sampled."""
        samples, self._samples = self._samples, []
        if not samples:
            return {}
        busy, used = (sum(column) / len(samples) for column in zip(*samples, strict=True))
        return {"gpu/utilisation_percent": busy, "gpu/used_mib": used}

    def _sample(self) -> None:
        """Sample as long as NVML answers; torch knows which of its devices a visible one is."""
        try:
            import pynvml  # noqa: PLC0415 - an extra: pip install crpipe[gpu]
        except ImportError:
            return
        with contextlib.suppress(RuntimeError, pynvml.NVMLError):
            while not self._stop.wait(GPU_PERIOD_S):
                busy = float(torch.cuda.utilization(self._device))
                used = torch.cuda.device_memory_used(self._device) / 2**20
                self._samples.append((busy, used))


_OVERFLOWED = 2


class SkippedStep(NamedTuple):
    """A step that was skipped; events: names of the first events of its batches.

    overflowed: its gradients were not finite at a loss scale of float16, and nothing else was wrong.
    """

    step: int
    batches: list[list[int]]
    events: list[str]
    overflowed: bool


class _Step(NamedTuple):
    """A step without its batches, which would fill the memory."""

    number: int
    bad: Tensor
    events: int
    items: int
    at: list[Cursor]
    columns: list[dict[str, NDArray[Any]]]

    def named(self) -> list[str]:
        """Name the first events of each batch by file, row and key: ``file 0 row 18 (run 3, event 7)``."""
        return [
            _name(dict(zip(columns, values, strict=True)))
            for columns in self.columns
            for values in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]


def _name(event: dict[str, Any]) -> str:
    source = f"file {event.pop(SOURCE_FILE)} row {event.pop(SOURCE_ROW)}"
    key = ", ".join(f"{name} {value}" for name, value in event.items())
    return f"{source} ({key})" if key else source


class UncountedSteps:
    """Finished steps whose skip flags are still on the device: read together, to wait for it seldom.

    key: columns by which people know an event.
    """

    def __init__(self, world: World, key: tuple[str, ...]) -> None:
        self._world = world
        self._named = (SOURCE_FILE, SOURCE_ROW, *key)
        self._steps: list[_Step] = []

    def __len__(self) -> int:
        """Count the steps."""
        return len(self._steps)

    def add(self, number: int, bad: Tensor, group: Sequence[tuple[Events, Cursor]]) -> None:
        """Add a step; bad: scalar on the device, 1 when it was skipped, 2 when for loss scales alone."""
        step = _Step(
            number,
            bad,
            sum(len(events) for events, _ in group),
            sum(len(events.items) for events, _ in group),
            [cursor for _, cursor in group],
            [
                {name: events.columns[name][:NAMED_EVENTS].copy() for name in self._named}
                for events, _ in group
            ],
        )
        self._steps.append(step)

    def count(self, counters: Counters, clock: Clock) -> list[SkippedStep]:
        """Count the steps over all ranks with one transfer from the device; return the skipped ones."""
        if not self._steps:
            return []
        flags = torch.stack([step.bad for step in self._steps]).cpu().tolist()
        sizes = torch.tensor([(step.events, step.items) for step in self._steps], device=self._world.device)
        events, items = self._world.sum(sizes.sum(0)).tolist()
        counters.events += events
        counters.items += items
        clock.count(events, items, len(self._steps))
        skipped = []
        for step, flag in zip(self._steps, flags, strict=True):
            overflowed = flag == _OVERFLOWED
            counters.skipped += int(flag > 0)
            if not overflowed:  # else it is neither a failure nor a success
                counters.skipped_in_row = counters.skipped_in_row + 1 if flag else 0
            if flag:
                named = [name for part in self._world.gather(step.named()) for name in part]
                skipped.append(SkippedStep(step.number, [list(at) for at in step.at], named, overflowed))
        self._steps.clear()
        return skipped


class Profiler:
    """Profiles some steps after a short warm-up: the slowest operators, and a trace for a browser.

    A context manager that reports once, and then does nothing; when the block ends earlier, it reports the
    steps so far.
    """

    def __init__(self, steps: int, path: Path, say: Callable[[str], None]) -> None:
        self._steps = steps
        self._path = path
        self._say = say
        self._seen = -WARM_UP_STEPS
        self._profile: profile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._report(self._profile)
        elif self._seen < 0 < self._steps:
            self._say(f"nothing profiled: fewer than {WARM_UP_STEPS} steps were left")

    def step(self) -> None:
        """Count one training step."""
        if not self._steps or self._seen >= self._steps:
            return
        self._seen += 1
        if self._seen == 0:
            kinds = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())  # type: ignore[no-untyped-call]
            self._profile = profile(activities=sorted(kinds, key=str))
            self._profile.start()
        elif self._seen == self._steps and self._profile is not None:
            self._report(self._profile)

    def _report(self, running: profile) -> None:
        self._profile = None
        running.stop()
        with atomic_write(self._path) as part:
            running.export_chrome_trace(str(part))
        averages = running.key_averages()
        on_device = any(getattr(item, "self_device_time_total", 0) for item in averages)
        order = "self_device_time_total" if on_device else "self_cpu_time_total"
        self._say(averages.table(sort_by=order, row_limit=PROFILE_ROWS))
        self._say(
            f"{counted(self._seen, 'step')}; the trace for chrome://tracing or ui.perfetto.dev: {self._path}"
        )
