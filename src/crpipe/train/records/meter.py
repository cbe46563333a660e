"""Metrics kept on the device as sums and counts, read back once per log interval."""

from __future__ import annotations

import resource
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from crpipe.train.ranks import World
    from crpipe.train.workload import Phase

QUANTILES = {"p50": 0.5, "p95": 0.95, "max": 1.0}


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
        """Read the means over all ranks without resetting: one transfer from the device."""
        # A rank whose batches were all empty has seen fewer names than the others.
        names = sorted({name for seen in world.gather(list(self._sums)) for name in seen})
        if not names:
            return {}
        nothing = torch.zeros(2, dtype=torch.double, device=self._device)
        table = world.sum(torch.stack([self._sums.get(name, nothing) for name in names])).cpu()
        return {
            name: float(total / count) for name, (total, count) in zip(names, table, strict=True) if count > 0
        }

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

    def state(self) -> dict[str, Any]:
        """Give what a snapshot needs."""
        return {
            "sums": {name: pair.cpu() for name, pair in self._sums.items()},
            "series": {name: torch.stack(series).cpu() for name, series in self._series.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Load what a snapshot held."""
        self._sums = {name: pair.to(self._device) for name, pair in state["sums"].items()}
        self._series = {name: list(series.to(self._device)) for name, series in state["series"].items()}


class Smooth:
    """Moving averages of the metrics that the phases name."""

    def __init__(self, phases: Sequence[Phase], length: int) -> None:
        names = [f"{phase.name}/{metric}" for phase in phases for metric in phase.smoothed]
        self._past: dict[str, deque[float]] = {name: deque(maxlen=max(1, length)) for name in names}

    def add(self, values: dict[str, float]) -> dict[str, float]:
        """Take the values of one log interval; give the averages."""
        for name, past in self._past.items():
            if name in values:
                past.append(values[name])
        return {f"{name}_average": sum(past) / len(past) for name, past in self._past.items() if past}

    def state(self) -> dict[str, list[float]]:
        """Give what a snapshot needs."""
        return {name: list(past) for name, past in self._past.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Load what a snapshot held."""
        for name, past in self._past.items():
            past.extend(state[name])


class Clock:
    """Rates and waiting times since the last reading."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.own_rates: dict[str, float] = {}  # of phases with a schedule of their own
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
        """Take time that was no training out of the rates."""
        self.started += seconds

    def read(self, world: World) -> dict[str, float]:
        """Give rates, waiting share, memory and learning rate, and reset."""
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        values = {
            "speed/events_per_s": self.events / elapsed,
            "speed/items_per_s": self.items / elapsed,
            "speed/step_s": elapsed / max(self.steps, 1),
            "speed/wait_fraction": min(1.0, self.waited / elapsed),
            "memory/host_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "learning_rate": self.rate,
            **{f"learning_rate/{name}": rate for name, rate in self.own_rates.items()},
        }
        if world.device.type == "cuda":
            stats = torch.cuda.memory_stats(world.device)
            for kind in ("allocated", "active", "reserved"):
                values[f"memory/gpu_{kind}_mib"] = stats[f"{kind}_bytes.all.current"] / 2**20
            values["memory/gpu_peak_mib"] = stats["allocated_bytes.all.peak"] / 2**20
        self._reset()
        return values


PERIOD_S = 0.5


class GpuSampler:
    """Averages utilisation and used memory of one GPU between readings; a context manager around a thread."""

    def __init__(self, device: torch.device) -> None:
        self._nvml, self._handle = _open(device)
        self._samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)

    def __enter__(self) -> Self:
        if self._nvml is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> dict[str, float]:
        """Give the means since the last reading; empty when nothing was sampled."""
        samples, self._samples = self._samples, []
        if not samples:
            return {}
        busy, used = (sum(column) / len(samples) for column in zip(*samples, strict=True))
        return {"gpu/utilisation_percent": busy, "gpu/used_mib": used}

    def _sample(self) -> None:
        while not self._stop.wait(PERIOD_S):
            rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
            used = self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used / 2**20
            self._samples.append((float(rates.gpu), used))


def _open(device: torch.device) -> tuple[Any, Any]:
    """Open NVML for a CUDA device; (None, None) elsewhere."""
    if device.type != "cuda":
        return None, None
    try:
        import pynvml  # noqa: PLC0415 - an extra: pip install crpipe[gpu]
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
    except pynvml.NVMLError:
        return None, None
