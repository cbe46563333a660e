"""Training steps for benchmarks: crpipe's stepper from a configuration, and tables of steps in turn."""

from __future__ import annotations

import itertools
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.runner import Side
from benchmarks.table import show
from crpipe.config.loading import validate
from crpipe.core.paths import MANIFEST
from crpipe.events import shard_writer as writer
from crpipe.events.shard_records import ShardManifest
from crpipe.loading.loader import Loader
from crpipe.train.meter import Meter
from crpipe.train.ranks import World
from crpipe.train.state import TrainState
from crpipe.train.step import Stepper
from crpipe.train.workload import open_workload
from crpipe.workloads.muons.layout import BUNDLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from benchmarks.runner import Run
    from crpipe.config.loading import Config
    from crpipe.events.batch import Events

MUON_GAN = "crpipe.workloads.muons:MuonGan"


def stepper_of(
    tree: Mapping[str, Any],
    world: World | torch.device,
    seed: int = 1,
    tables: Mapping[str, Path] = MappingProxyType({}),
) -> tuple[Config, Stepper]:
    """Build a workload with fresh weights, and what trains it; without another name it is MuonGan."""
    if isinstance(world, torch.device):
        world = World(0, 1, world)
    config = validate(dict(tree) | {"train": {"workload": MUON_GAN, **tree.get("train", {})}})
    workload = open_workload(config.train.workload, config.options(), tables)
    torch.manual_seed(seed)
    state = TrainState(workload.model(), workload.phases(), seed, world.device)
    return config, Stepper(config.train, config.load, workload, state, world, Meter(world.device))


def write_shard(folder: Path, parts: Iterable[Events]) -> None:
    """Write one shard of bundles to train on, a row group for each part, and its manifest."""
    entry = writer.write_shard(folder, "train-00000", "train", BUNDLES, parts)
    manifest = ShardManifest(range="", data="", threshold=0, layout=BUNDLES.describe(), shards=(entry,))
    manifest.write(folder / MANIFEST)


def batches_of(shards: Path | list[Path], batch_events: int, count: int) -> list[Any]:
    """Return the first batches of shards, each with its cursor."""
    loader = Loader(shards, "train", batch_events=batch_events, seed=(2,), epochs=1, prefetch=0)
    with closing(loader.batches()) as stream:
        return list(itertools.islice(stream, count))


def prepared_steps(stepper: Stepper, groups: list[Any]) -> list[Callable[[], object]]:
    """Prepare a step for each batch with its cursor: all of training but collating."""
    steps: list[Callable[[], object]] = []
    for group in groups:
        ready = {group[1]: stepper.collate_ahead(group, (1,))[2]}

        def step(group: Any = group, ready: Any = ready) -> None:
            stepper.step([group], (1,), 1.0, ready=ready)
            stepper.meter.read(stepper.world)

        steps.append(step)
    return steps


def weights(model: torch.nn.Module) -> int:
    """Count the trained numbers of a network."""
    return sum(parameter.numel() for parameter in model.parameters())


def in_turn(
    steps: list[Callable[[], object]], answer: dict[str, Any], device: str
) -> Callable[[], dict[str, Any]]:
    """Return the work of a side: a step on each batch; on a GPU its answer gets the memory of a step."""

    def work() -> dict[str, Any]:
        if device == "cpu":
            for step in steps:
                step()
            return answer
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()  # weights and optimizer
        for step in steps:
            step()
        torch.cuda.synchronize()
        return answer | {"mib": (torch.cuda.max_memory_allocated() - before) / 2**20}

    return work


def step_sides(
    work: str, given: Mapping[str, Any], threads: int, clone: Path | None, dropouts: Mapping[str, float]
) -> list[Side]:
    """Describe the processes that take the same steps: crpipe, and a peer with each ``dropout`` by its name.

    threads: of torch; 0: its own choice.
    """
    more = {"environment": {"OMP_NUM_THREADS": str(threads)} if threads else {}}
    peers = [
        Side(name, work, {**given, "dropout": dropout}, path=str(clone), **more)
        for name, dropout in (dropouts.items() if clone else ())
    ]
    return [Side("crpipe", work, given, **more), *peers]


def step_table(run: Run, title: str, sides: list[Side], batch: int, per_turn: int, goal: float) -> None:
    """Print the steps of several sides, crpipe's first; the goal is how much faster it should be."""
    rows = []
    for each in sides:
        faster = run.faster(f"{title}", sides[0], each, goal=goal) if each is not sides[0] else ""
        answer = each.turns[-1].answer
        wall, cpu = each.median() / per_turn, each.median("cpu") / per_turn
        extra = f"{answer['padding']:.1%}" if "padding" in answer else answer.get("built", "")
        rows.append(
            [each.name, answer["weights"], extra, f"{wall:.3f}", batch / wall, 1e3 * cpu / batch, faster]
        )
        if abs(answer["weights"] / sides[0].turns[-1].answer["weights"] - 1) > 0.01:
            print(f"{each.name}: its number of weights is not the same within 1 %")
    head = ["", "weights", "padding, or with unused heads", "s a step", "events/s", "CPU ms an event"]
    show(f"{title}, batches of {batch}", [*head, "crpipe is faster by"], rows)
