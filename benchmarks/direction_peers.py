"""One epoch of a loader for each line of standard input: crpipe, iceaggr or GraphNeT, each in a process.

Run by benchmarks/direction.py, with the Python that has what the loader needs. After a line it reads an
epoch and prints JSON: seconds of wall and CPU time, workers included, and how many events there were, with
the sum of their ids. Imports stand inside the functions: no Python needs more than its own loader.
"""

# ruff: noqa: PLC0415 - see above
from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from side_by_side import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Epoch = Callable[[], Iterator[Any]]  # yields the ids of each batch's events

BATCH = 1024
PULSES, DOMS = 16, 128  # of a sensor and of an event that a model sees
READS: Counter[Any] = Counter()  # (file, row group, columns): how often they were decoded


def crpipe(folder: Path, geometry: Path, collate: str, workers: int) -> Epoch:
    """Read shards into the batches of FlatTransformer, as training does, or into bare pulses."""
    import numpy as np
    import torch

    from crpipe.config.sections import LoadSection
    from crpipe.events.shard_reader import Table
    from crpipe.events.shard_streams import RowStream
    from crpipe.loading.loader import Loader
    from crpipe.loading.microbatch import micro_batches
    from crpipe.workloads.direction import FlatTransformer, FlatTransformerOptions

    workload = FlatTransformer(FlatTransformerOptions(pulses_per_dom=PULSES, max_doms=DOMS))
    workload.use({"geometry": geometry})
    load = LoadSection(batch_events=BATCH)
    numbers = iter(range(1 << 30))

    def variable(pair: Any) -> Any:
        events, _ = pair
        lengths = events.multiplicity.astype(np.int64)
        owner = np.repeat(np.arange(len(events)), lengths)
        truth = np.stack([events.columns["azimuth"], events.columns["zenith"]], axis=1)
        arrays = events.items, owner, lengths, truth.astype(np.float32)
        return events, [torch.from_numpy(array) for array in arrays]

    def flat(pair: Any) -> Any:
        events, _ = pair
        groups = micro_batches(workload.size(events), load.budget_items)
        return events, [workload.collate(events, index, (1,)) for index in groups]

    def epoch() -> Iterator[Any]:
        seed = (1, next(numbers))
        loader = Loader(folder, "train", batch_events=BATCH, seed=seed, epochs=1, prefetch=load.prefetch)
        with contextlib.closing(
            loader.made(variable if collate == "variable" else flat, workers=workers)
        ) as stream:
            for events, _ in stream:
                yield events.columns["event_id"]

    plain, streamed = Table.read, RowStream.__init__

    def counted(self: Table, group: int, columns: list[str]) -> dict[str, np.ndarray]:
        READS[self.path, group, *columns] += 1
        return plain(self, group, columns)

    def counted_stream(
        self: RowStream, table: Table, groups: Any, columns: list[str], *more: int, **named: int
    ) -> None:
        READS[table.path, groups[0], *columns] += 1
        streamed(self, table, groups, columns, *more, **named)

    Table.read = counted  # type: ignore[method-assign]
    RowStream.__init__ = counted_stream  # type: ignore[method-assign]
    return epoch


def iceaggr(folder: Path, geometry: Path, collate: str, workers: int) -> Epoch:
    """Read Kaggle's files with the peer's data set, its sampler and one of its collates."""
    from iceaggr.data import (  # type: ignore[import-not-found]
        BatchAwareSampler,
        GeometryLoader,
        IceCubeDataset,
        collate_variable_length,
        make_collate_flat,
    )
    from torch.utils.data import DataLoader

    config = folder / "data_config.yaml"
    config.write_text(json.dumps({"data": {"root": str(folder)}}))
    dataset = IceCubeDataset(config_path=str(config), split="train", cache_size=1)
    collates = {
        "variable": collate_variable_length,
        "flat": make_collate_flat(GeometryLoader(geometry), PULSES, DOMS),
    }
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=BatchAwareSampler(dataset.metadata),
        num_workers=workers,
        collate_fn=collates[collate],
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )
    return lambda: (batch["event_ids"].numpy() for batch in loader)


def graphnet(folder: Path, _: Path, __: str, workers: int) -> Epoch:
    """Read GraphNeT's Parquet files, chunk after chunk in random order, into graphs without edges."""
    from graphnet.constants import GRAPHNET_ROOT_DIR  # type: ignore[import-not-found] # noqa: F401
    from graphnet.data.dataloader import DataLoader  # type: ignore[import-not-found]
    from graphnet.data.dataset import ParquetDataset, RandomChunkSampler  # type: ignore[import-not-found]
    from graphnet.models.data_representation import EdgelessGraph  # type: ignore[import-not-found]
    from graphnet.models.detector.icecube import IceCubeKaggle  # type: ignore[import-not-found]

    features = ["x", "y", "z", "time", "charge", "auxiliary"]
    dataset = ParquetDataset(
        path=str(folder),
        pulsemaps="pulses",
        features=features,
        truth=["azimuth", "zenith"],
        truth_table="truth",
        data_representation=EdgelessGraph(detector=IceCubeKaggle(), input_feature_names=features),
    )
    more: dict[str, Any] = {"prefetch_factor": None, "persistent_workers": False}
    if workers:
        more = {"multiprocessing_context": "spawn"}
    loader = DataLoader(
        dataset, batch_size=BATCH, sampler=RandomChunkSampler(dataset), num_workers=workers, **more
    )
    return lambda: (batch["event_no"].numpy() for batch in loader)


LOADERS = {"crpipe": crpipe, "iceaggr": iceaggr, "graphnet": graphnet}


def serve(epoch: Epoch, answers: Any) -> None:
    """Read an epoch for each line of standard input."""
    for _ in sys.stdin:
        READS.clear()
        wall, cpu, events, ids = time.perf_counter(), cpu_seconds(), 0, 0
        for batch in epoch():
            events += len(batch)
            ids += int(batch.sum())
        found = {
            "wall": time.perf_counter() - wall,
            "cpu": cpu_seconds() - cpu,
            "events": events,
            "ids": ids,
            "reads": sorted(set(READS.values())),
        }
        print(json.dumps(found), file=answers, flush=True)


def main() -> None:
    """Prepare a loader and serve; whatever others print goes to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("geometry", type=Path)
    parser.add_argument("collate")
    parser.add_argument("workers", type=int)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # other people's deprecations
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(LOADERS[given.loader](given.folder, given.geometry, given.collate, given.workers), answers)


if __name__ == "__main__":
    main()
