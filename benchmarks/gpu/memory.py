"""Memory of the device over thousands of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.gpu.throughput import synchronise
from benchmarks.muons import training
from benchmarks.steppers import stepper_of
from benchmarks.worker import memory_mib
from crpipe.events.batch import Cursor, Events

if TYPE_CHECKING:
    from benchmarks.runner import Run

LARGEST = 1_000_000  # items of an event
STEPS = 5000
PARTS = 10  # the run is looked at so often
WHOLE = {"model": {"max_muons": 0}, "load": {"max_items": 2_000_000}}


def varying_events(number: int, pool: np.ndarray[Any, Any], most: int) -> Events:
    """Draw a batch: 256 small events, and in every second batch one of 1 to ``most`` items besides."""
    rng = np.random.default_rng(number)
    small = training.make_events(training.Setting("bulk", 256, 5.0, 1, "adam", 0, 0), number)
    multiplicity = small.multiplicity.copy()
    if number % 2:
        multiplicity[0] = round(float(np.exp(rng.uniform(0, np.log(most)))))
    count = int(multiplicity.sum())
    start = int(rng.integers(0, len(pool) - count))
    return Events(small.columns, multiplicity, pool[start : start + count])


def varying(run: Run, *, device: str = "cuda", small: bool = False) -> None:
    """Train thousands of steps on whole events of 1 to a million items; memory of torch's allocator."""
    place = torch.device(device)
    most = 10_000 if small else LARGEST
    most_steps = 40 if small else STEPS
    pool = np.random.default_rng(1).lognormal(2, 1, (2 * most + 10_000, 3)).astype(np.float32)
    _, stepper = stepper_of(WHOLE, place)
    looks: list[tuple[float, float, float]] = []
    done = 0
    while done < most_steps and run.left() > 8.0:
        stepper.step([(varying_events(done, pool, most), Cursor(0, done + 1))], (1,), 1.0)
        stepper.state.counters.step += 1
        done += 1
        if done % 20 == 0:
            stepper.meter.read(stepper.world)
        if done % (most_steps // PARTS) == 0:
            looks.append(_look(place))
            print(
                f"step {done}: allocated, peak, reserved MiB: {looks[-1]}, resident {memory_mib('VmRSS'):.0f}"
            )
    synchronise(place)
    run.note(f"steps, whole events of 1 to {most} items", done)
    run.note("resident at the end", memory_mib("VmRSS"), "MiB")
    if place.type != "cuda":
        run.note("memory of the GPU", "not run: no NVIDIA GPU")
        return
    halves = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    for column, what in enumerate(("given out between steps", "given out at most", "reserved")):
        values = [max(look[column] for look in half) for half in halves if half]
        run.note(f"{what}: most in the first half", values[0], "MiB")
        run.note(f"{what}: most in the second half", values[-1], "MiB")
    stats = torch.cuda.memory_stats(place)
    run.note("tries again after a full cache was emptied", stats["num_alloc_retries"])


def _look(device: torch.device) -> tuple[float, float, float]:
    """Return MiB that torch has given out, the most since the last look, and what it reserved."""
    if device.type != "cuda":
        return (0.0, 0.0, 0.0)
    values = (
        torch.cuda.memory_allocated(device),
        torch.cuda.max_memory_allocated(device),
        torch.cuda.memory_reserved(device),
    )
    torch.cuda.reset_peak_memory_stats(device)
    return tuple(value / 2**20 for value in values)  # type: ignore[return-value]
