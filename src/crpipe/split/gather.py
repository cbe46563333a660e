"""Second half of a split: writes spilled events into shards.

Bulk shards take spans of buckets, shuffled inside; outlier shards keep the order of the source.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import even_cuts, regroup
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_writer import GROUP_EVENTS, GROUP_ITEMS, OUTLIER_EVENTS, OUTLIER_ITEMS, write_shard
from crpipe.split.hashing import shuffle_keys
from crpipe.split.spill import Block, SpillReader, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.events.layout import Layout
    from crpipe.events.shard_manifest import Role


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to write; each of ``groups`` lists the [S, 5] segments of one row group of events."""

    folder: Path
    spills: Path
    name: str
    role: Role
    layout: Layout
    seed: int
    groups: tuple[NDArray[np.int64], ...]
    items: int


def bucket_count(events: int, items: int, shard_items: int) -> int:
    """Choose how many buckets to scatter into: four or more to a row group, and to a shard."""
    return max(1, -(-4 * events // GROUP_EVENTS), -(-4 * items // min(GROUP_ITEMS, shard_items)))


def bulk_tasks(
    common: dict[str, Any], role: Role, blocks: list[Block], first: int, last: int, shard_items: int
) -> list[ShardTask]:
    """Plan the shards of one role from its buckets [first, last): sized by items, row groups of even weight.

    ``common`` holds the fields that all tasks share: folder, spills, layout, seed.
    """
    events, items = _per_bucket(blocks, first, last)
    tasks: list[ShardTask] = []
    for start, stop in even_cuts(items, max(1, round(items.sum() / shard_items))):
        groups = _row_groups(events[start:stop], items[start:stop], first + start)
        segments = tuple(segments_of(blocks, *group) for group in groups)
        filled = tuple(each for each in segments if len(each))
        if filled:
            name = f"{role}-{len(tasks):05d}"
            total = int(items[start:stop].sum())
            tasks.append(ShardTask(name=name, role=role, groups=filled, items=total, **common))
    return tasks


def outlier_tasks(
    common: dict[str, Any], blocks: list[Block], bucket: int, shard_items: int
) -> list[ShardTask]:
    """Plan the outlier shards: the outliers' bucket in the order of the source, cut between raw files."""
    blocks = [block for block in blocks if block.events[bucket + 1] > block.events[bucket]]
    items = np.array([block.items[bucket + 1] - block.items[bucket] for block in blocks], np.int64)
    sources, place = np.unique([block.source for block in blocks], return_inverse=True)
    weights = np.bincount(place, items, minlength=len(sources))
    tasks: list[ShardTask] = []
    for first, last in even_cuts(weights, max(1, round(items.sum() / shard_items))):
        segments = segments_of(
            (block for block, at in zip(blocks, place, strict=True) if first <= at < last), bucket, bucket + 1
        )
        name, total = f"outliers-{len(tasks):05d}", int(weights[first:last].sum())
        tasks.append(ShardTask(name=name, role="outliers", groups=(segments,), items=total, **common))
    return tasks


def gather(task: ShardTask) -> dict[str, Any]:
    """Write one shard and return its entry for the manifest."""
    with contextlib.closing(SpillReader(task.spills, task.layout)) as spills:
        groups = _outliers(task, spills) if task.role == "outliers" else _shuffled(task, spills)
        return write_shard(task.folder, task.name, task.role, task.layout, groups)


def _shuffled(task: ShardTask, spills: SpillReader) -> Iterator[Events]:
    for segments in task.groups:
        events = spills.read(segments)
        keys = shuffle_keys(events.columns[SOURCE_FILE], events.columns[SOURCE_ROW], task.seed)
        yield events.take(np.argsort(keys))


def _outliers(task: ShardTask, spills: SpillReader) -> Iterator[Events]:
    for segments in task.groups:
        yield from regroup(spills.one_by_one(segments), OUTLIER_EVENTS, OUTLIER_ITEMS)


def _per_bucket(blocks: list[Block], first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    events = np.zeros(last - first, np.int64)
    items = np.zeros(last - first, np.int64)
    for block in blocks:
        events += np.diff(block.events[first : last + 1])
        items += np.diff(block.items[first : last + 1])
    return events, items


def _row_groups(events: NDArray[np.int64], items: NDArray[np.int64], first: int) -> list[tuple[int, int]]:
    """Join buckets into row groups that are full in events or in items, whichever comes first."""
    weights = np.maximum(events / GROUP_EVENTS, items / GROUP_ITEMS)
    cuts = even_cuts(weights, max(1, round(float(weights.sum()))))
    return [(first + start, first + stop) for start, stop in cuts]
