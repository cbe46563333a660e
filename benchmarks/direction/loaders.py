"""Loaders of directions: crpipe or iceaggr, each in a process of its own.

Imports stand inside the functions: no loader pays for the other's libraries.
"""

# ruff: noqa: PLC0415 - see above
from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Epoch = Callable[[], Iterator[Any]]  # yields the ids of each batch's events

BATCH = 1024
PULSES, DOMS = 16, 128  # of a sensor and of an event that a model sees


def crpipe(folder: Path, geometry: Path, collate: str, workers: int) -> Epoch:
    """Read shards into the batches of FlatTransformer, as training does, or into bare pulses."""
    import numpy as np
    import torch

    from crpipe.config.loading import validate
    from crpipe.loading.loader import Loader
    from crpipe.loading.microbatch import micro_batches
    from crpipe.workloads.direction import FlatTransformer, FlatTransformerOptions

    workload = FlatTransformer(FlatTransformerOptions(pulses_per_dom=PULSES, max_doms=DOMS))
    workload.use({"geometry": geometry})
    load = validate({"load": {"batch_size": BATCH}}).load
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
        groups = micro_batches(workload.size(events), load.max_items)
        return events, [workload.collate(events, index, (1,)) for index in groups]

    def epoch() -> Iterator[Any]:
        seed = (1, next(numbers))
        loader = Loader(folder, "train", batch_events=BATCH, seed=seed, epochs=1, prefetch=load.prefetch)
        with contextlib.closing(
            loader.prepared_batches(variable if collate == "variable" else flat, workers=workers)
        ) as stream:
            for events, _ in stream:
                yield events.columns["event_id"]

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


LOADERS = {"crpipe": crpipe, "iceaggr": iceaggr}


def side(system: str, folder: str, geometry: str, collate: str, workers: int) -> Callable[[], list[int]]:
    """Prepare a loader; its work is an epoch, whose events are counted and their ids added up."""
    epoch = LOADERS[system](Path(folder), Path(geometry), collate, workers)

    def work() -> list[int]:
        events = ids = 0
        for batch in epoch():
            events += len(batch)
            ids += int(batch.sum())
        return [events, ids]

    return work
