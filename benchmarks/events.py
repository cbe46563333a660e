"""Events for the benchmarks, and the work that every loader of single events has to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.data.batch import Events
from crpipe.fields import BUNDLES, PRIMARY

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 4096
Counts = tuple[int, int]


def generate(count: int) -> Events:
    """Draw events like the real ones: 20 % are empty, the median is 3, few hold half of the muons."""
    random = np.random.default_rng(1)
    multiplicity = np.minimum(random.lognormal(1.2, 1.5, count), 50_000).astype(np.uint32)
    muons = int(multiplicity.sum())
    items = random.lognormal(3.0, 1.5, (muons, 3)).astype(np.float32)
    columns: dict[str, Any] = {field.name: np.arange(count).astype(field.dtype) for field in BUNDLES.events}
    columns |= {field.name: random.lognormal(3.0, 1.0, count).astype(np.float32) for field in PRIMARY}
    return Events(columns, multiplicity, items)


def primaries(events: Events) -> np.ndarray:
    """Stack the primaries: [N, 4] float32."""
    return np.stack([events.columns[field.name] for field in PRIMARY], axis=1)


def samples(events: Events) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each event as (primary [4], muons [n, 3])."""
    ends = events.offsets()
    for row, primary in enumerate(primaries(events)):
        yield primary, events.items[ends[row] : ends[row + 1]]


def collate(batch: list[tuple[Any, Any]]) -> Counts:
    """Put single events together as every loader of single events has to."""
    stacked = torch.from_numpy(np.stack([primary for primary, _ in batch]))
    muons = torch.from_numpy(np.concatenate([np.asarray(muons).reshape(-1, 3) for _, muons in batch]))
    return len(stacked), len(muons)


def batched(stream: Iterator[tuple[Any, Any]]) -> Iterator[Counts]:
    """Collate a stream of single events."""
    batch = []
    for sample in stream:
        batch.append(sample)
        if len(batch) == BATCH:
            yield collate(batch)
            batch = []
    if batch:
        yield collate(batch)
