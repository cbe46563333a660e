"""What collate costs in a step, and what it costs when threads do it ahead (load.collate_workers).

One command: ``python benchmarks/collating.py``. The workload groups the items of an event by a key, as the
reconstruction of a detector does: its pulses are sorted by sensor and time, each sensor becomes one row with
its position, the number of its pulses, first time, total charge and its first PULSES pulses; a network looks
at every sensor, sums them up for each event, and finds a direction. Events are read from shards, by the
loader and the stepper of a training. The settings take turns; the table shows medians, and the median of the
ratios of each round to the first setting.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from crpipe.config.sections import LoadSection, TrainSection
from crpipe.events.batch import Events
from crpipe.events.layout import Field, Layout
from crpipe.events.shard_writer import write_shard
from crpipe.loading.loader import Loader
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.train.workload import OptimizerSpec, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.train.workload import Batch

SENSORS = 5160
PULSES = 16  # of each sensor that enter its row one by one
ROW = 7 + 3 * PULSES
LAYOUT = Layout(
    "pulses",
    (Field("azimuth_rad", "float32", "rad", 0, 6.3, ""), Field("zenith_rad", "float32", "rad", 0, 3.2, "")),
    tuple(
        Field(name, "float32", unit, -1e9, 1e9, "")
        for name, unit in (("sensor", ""), ("time_ns", "ns"), ("charge_pe", ""), ("auxiliary", ""))
    ),
    ("azimuth_rad",),
)


def generate(count: int) -> Events:
    """Draw events of about 110 pulses with a heavy tail; 3 of 4 sensors that are hit have one pulse."""
    rng = np.random.default_rng(1)
    multiplicity = np.clip(rng.lognormal(4.2, 1.0, count), 5, 20_000).astype(np.uint32)
    owner = np.repeat(np.arange(count), multiplicity)
    center = rng.integers(0, SENSORS, count)[owner]
    sensor = (center + rng.normal(0, 80, len(owner)) * rng.random(len(owner))).astype(np.int64) % SENSORS
    time_ns = rng.uniform(5_000, 30_000, len(owner))
    items = np.column_stack([sensor, time_ns, rng.exponential(1, len(owner)), rng.random(len(owner)) < 0.3])
    columns: dict[str, NDArray[Any]] = {
        "azimuth_rad": rng.uniform(0, 6.28, count).astype(np.float32),
        "zenith_rad": rng.uniform(0, 3.14, count).astype(np.float32),
        "source_file": np.zeros(count, np.uint32),
        "source_row": np.arange(count, dtype=np.uint32),
    }
    return Events(columns, multiplicity, items.astype(np.float32))


class Directions:
    """The workload; ``collating`` is the time of the threads in ``collate`` so far, in seconds."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.places = np.random.default_rng(2).normal(size=(SENSORS, 3)).astype(np.float32)
        self.collating = 0.0

    def size(self, events: Events) -> NDArray[np.uint32]:
        """Pulses of each event."""
        return events.multiplicity

    def collate(self, events: Events, index: NDArray[np.int64], seed: tuple[int, ...]) -> Batch:  # noqa: ARG002
        """Sort by (event, sensor, time), then one row for each sensor that was hit."""
        begin = time.thread_time()
        part = events.take(index)
        owner = np.repeat(np.arange(len(part)), part.multiplicity)
        sensor, when, charge, auxiliary = part.items.T
        key = owner * SENSORS + sensor.astype(np.int64)
        order = np.lexsort((when, key))
        key, when, charge, auxiliary = key[order], when[order], charge[order], auxiliary[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        size = np.diff(first, append=len(key))
        rows = np.zeros((len(first), ROW), np.float32)
        rows[:, :3] = self.places[key[first] % SENSORS]
        rows[:, 3] = np.log1p(size) / 3
        rows[:, 4] = (np.minimum.reduceat(when, first) - 1e4) / 3e4
        rows[:, 5] = np.log10(np.add.reduceat(charge, first).clip(1e-6)) / 3
        rows[:, 6] = np.add.reduceat(auxiliary, first) / size
        row = np.repeat(np.arange(len(first)), size)
        place = np.arange(len(key)) - first[row]
        kept = place < PULSES
        at = 7 + 3 * place[kept]
        for column, values in enumerate(((when - 1e4) / 3e4, np.log10(charge.clip(1e-6)) / 3, auxiliary)):
            rows[row[kept], at + column] = values[kept]
        azimuth, zenith = part.columns["azimuth_rad"], part.columns["zenith_rad"]
        truth = [np.cos(azimuth) * np.sin(zenith), np.sin(azimuth) * np.sin(zenith), np.cos(zenith)]
        batch = {
            "rows": torch.from_numpy(rows),
            "event": torch.from_numpy(key[first] // SENSORS),
            "truth": torch.from_numpy(np.stack(truth, axis=1)),
        }
        self.collating += time.thread_time() - begin
        return batch

    def model(self) -> nn.Module:
        """Build a network on each sensor and one on each event."""
        width = self.width
        each = nn.Sequential(nn.Linear(ROW, width), nn.ReLU(), nn.Linear(width, width))
        whole = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
        return nn.ModuleDict({"each": each, "whole": whole})

    def phases(self) -> list[Phase]:
        """One phase."""
        return [Phase("fit", lambda model: model.parameters(), self.loss, OptimizerSpec("adam", 1e-4))]

    def loss(self, model: Any, batch: Batch, _: torch.Generator) -> tuple[torch.Tensor, Batch]:
        """One minus the cosine of the angle to the true direction."""
        each = model["each"](batch["rows"])
        pooled = each.new_zeros(len(batch["truth"]), each.shape[1]).index_add(0, batch["event"], each)
        found = nn.functional.normalize(model["whole"](pooled / 50), dim=1)
        return (1 - (found * batch["truth"]).sum(dim=1)).mean(), {}


def run(folder: Path, options: argparse.Namespace, workers: int) -> tuple[float, float, float]:
    """Train ``options.steps`` steps; give the wall and CPU time of a step, and collate's share of the CPU."""
    torch.manual_seed(1)
    workload = Directions(options.width)
    device = torch.device(options.device)
    state = TrainState(workload.model(), workload.phases(), 1, device)  # type: ignore[arg-type]
    load = LoadSection(batch_events=options.batch, budget_items=10_000_000)
    meter = Meter(device)
    stepper = Stepper(TrainSection(), load, workload, state, World(0, 1, device), meter)  # type: ignore[arg-type]
    loader = Loader(folder, "train", batch_events=options.batch, seed=(1,), epochs=100, prefetch=4)
    collate = functools.partial(stepper.collate_ahead, seed=(1,))
    with closing(loader.made(collate, workers=workers)) as stream:
        for number, (events, cursor, micro) in enumerate(stream):
            if number == 3:  # the first steps fill caches
                wall, cpu, before = time.perf_counter(), time.process_time(), workload.collating
            if number == 3 + options.steps:
                break
            stepper.step([(events, cursor)], (1,), 1.0, {cursor: micro})
            meter.read(stepper.world)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - wall, time.process_time() - cpu
    return seconds[0] / options.steps, seconds[1] / options.steps, (workload.collating - before) / seconds[1]


def main() -> None:
    """Write shards, measure in turns, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[int, list[tuple[float, float, float]]] = {workers: [] for workers in options.workers}
    with tempfile.TemporaryDirectory() as name:
        events = generate(20 * options.batch)
        entry = write_shard(Path(name), "train-00000", "train", LAYOUT, [events])
        head = {"range": "", "data": "", "threshold": 0, "layout": LAYOUT.describe(), "shards": [entry]}
        (Path(name) / "manifest.json").write_text(json.dumps(head))
        for _, workers in itertools.product(range(options.rounds), options.workers):
            found[workers].append(run(Path(name), options, workers))
    print(f"{len(events.items) / len(events):.0f} pulses an event, {options.batch} events a batch")
    print(f"{'workers':>8}{'ms a step':>12}{'CPU ms':>10}{'share of collate':>18}{'ratio of time':>15}")
    for workers, times in found.items():
        wall, cpu, share = (statistics.median(column) for column in zip(*times, strict=True))
        pairs = zip(times, found[options.workers[0]], strict=True)
        ratio = statistics.median(one[0] / first[0] for one, first in pairs)
        print(f"{workers:8}{1000 * wall:12.1f}{1000 * cpu:10.1f}{share:18.1%}{ratio:15.2f}")
    print(f"load of the machine: {np.round(os.getloadavg(), 1).tolist()}")


if __name__ == "__main__":
    main()
