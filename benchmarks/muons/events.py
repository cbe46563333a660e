"""Events for the benchmarks, what every loader has to hand out, and how that is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from crpipe.events.batch import Events
from crpipe.workloads.muons.layout import BUNDLES, PRIMARY

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 4096  # as in the default configuration


class Batch(NamedTuple):
    """What training takes: primaries [N, 4] float32, multiplicity [N] int64, muons [M, 3] float32."""

    primaries: torch.Tensor
    multiplicity: torch.Tensor
    muons: torch.Tensor


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


def collate(batch: list[tuple[Any, Any]]) -> Batch:
    """Collate single events as every loader of single events has to."""
    muons = [np.asarray(each).reshape(-1, 3) for _, each in batch]
    return Batch(
        torch.from_numpy(np.stack([primary for primary, _ in batch])),
        torch.tensor([len(each) for each in muons]),
        torch.from_numpy(np.concatenate(muons)),
    )


def whole(events: Events) -> Batch:
    """All events as one batch."""
    return Batch(
        torch.from_numpy(primaries(events)),
        torch.from_numpy(events.multiplicity.astype(np.int64)),
        torch.from_numpy(events.items),
    )


def describe(batches: Iterator[Batch]) -> np.ndarray:
    """Return a row per event, in the order of the stream: primary, multiplicity, sums over its own muons."""
    rows = []
    for batch in batches:
        check_kind(batch)
        owner = torch.repeat_interleave(batch.multiplicity)
        sums = torch.zeros(len(batch.primaries), 3, dtype=torch.float64)
        sums.index_add_(0, owner, batch.muons.double())
        rows.append(torch.cat([batch.primaries.double(), batch.multiplicity[:, None].double(), sums], dim=1))
    return torch.cat(rows).numpy()


def check_kind(batch: Batch) -> None:
    """Stop unless a batch is what training takes."""
    found = [(part.dtype, tuple(part.shape[1:]), part.is_contiguous()) for part in batch]
    wanted = [(torch.float32, (4,), True), (torch.int64, (), True), (torch.float32, (3,), True)]
    sizes = len(batch.primaries), int(batch.multiplicity.sum())
    if found != wanted or sizes != (len(batch.multiplicity), len(batch.muons)):
        raise SystemExit(f"not a batch to train on: {found} with {sizes} events and muons")


def compare(found: np.ndarray, expected: np.ndarray) -> tuple[bool, float]:
    """Return whether all events came once with their own muons, and the median way of an event.

    That way, from its place in ``expected`` to its place in the stream, is a share of the epoch: 0.29 if the
    whole epoch is shuffled.
    """
    at, to = np.lexsort(found.T), np.lexsort(expected.T)
    if len(at) != len(to):
        return False, 0.0
    same = np.allclose(found[at], expected[to], rtol=1e-9)
    return same, float(np.median(np.abs(at - to)) / len(at))
