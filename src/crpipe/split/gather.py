"""Second half of a split: writes spilled events into shards.

Bulk shards take spans of buckets, shuffled inside; outlier shards keep the order of the source.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.paths import LARGE_ROLES, PARTS, Role
from crpipe.events.batch import Events, even_cuts, regroup
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW, Layout
from crpipe.events.shard_writer import GROUP_EVENTS, GROUP_ITEMS, OUTLIER_EVENTS, OUTLIER_ITEMS, write_shard
from crpipe.split.hashing import shuffle_keys
from crpipe.split.spill import Block, BlockTable, OutlierSegment, SpillReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.shard_records import ShardEntry


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to write; each of ``groups`` lists the [S, 6] segments of one row group of events."""

    folder: Path
    spills: Path
    name: str
    role: Role
    layout: Layout
    seed: int
    groups: tuple[NDArray[np.int64], ...]
    items: int

    @property
    def first_span(self) -> int:
        """The least span that is read."""
        return min(int(group[:, 1].min()) for group in self.groups)


def bucket_count(events: int, items: int, shard_items: int) -> int:
    """Choose how many buckets to scatter into: four or more to a row group, and to a shard."""
    return max(1, -(-4 * events // GROUP_EVENTS), -(-4 * items // min(GROUP_ITEMS, shard_items)))


def all_bulk_tasks(
    common: dict[str, Any],
    blocks: Sequence[list[Block]],
    spans: NDArray[np.int64],
    first_buckets: NDArray[np.int64],
    shard_items: int,
) -> list[ShardTask]:
    """Plan the shards of all parts, in the order of their buckets; takes the blocks out of their lists."""
    table = BlockTable(blocks, spans)  # large: freed when all is planned
    return [
        task
        for role, (first, last) in zip(PARTS, pairwise(first_buckets.tolist()), strict=True)
        for task in bulk_tasks(common, role, table, first, last, shard_items)
    ]


def bulk_tasks(
    common: dict[str, Any], role: Role, blocks: BlockTable, first: int, last: int, shard_items: int
) -> list[ShardTask]:
    """Plan the shards of one role from its buckets [first, last): sized by items, row groups of even weight.

    ``common`` holds the fields that all tasks share: folder, spills, layout, seed.
    """
    events, items = blocks.per_bucket(first, last)
    tasks: list[ShardTask] = []
    for start, stop in even_cuts(items, max(1, round(items.sum() / shard_items))):
        groups = _row_groups(events[start:stop], items[start:stop], first + start)
        segments = tuple(blocks.segments(*group) for group in groups)
        filled = tuple(each for each in segments if len(each))
        if filled:
            name = f"{role}-{len(tasks):05d}"
            total = int(items[start:stop].sum())
            tasks.append(ShardTask(name=name, role=role, groups=filled, items=total, **common))
    return tasks


def outlier_tasks(
    common: dict[str, Any], outliers: Sequence[OutlierSegment], shard_items: int
) -> list[ShardTask]:
    """Plan the outlier shards of each part: in the order of the source, cut between raw files."""
    return [
        task
        for role in LARGE_ROLES
        if (of_role := [each for each in outliers if each.role == role])
        for task in _outlier_tasks(common, role, of_role, shard_items)
    ]


def _outlier_tasks(
    common: dict[str, Any], role: Role, outliers: Sequence[OutlierSegment], shard_items: int
) -> list[ShardTask]:
    segments = np.array([each.segment for each in outliers], np.int64).reshape(-1, 6)
    sources, index = np.unique(np.array([each.source for each in outliers], np.int64), return_inverse=True)
    weights = np.bincount(index, segments[:, 5], minlength=len(sources))
    tasks: list[ShardTask] = []
    for first, last in even_cuts(weights, max(1, round(weights.sum() / shard_items))):
        groups = (segments[(first <= index) & (index < last)],)
        name, total = f"{role}-{len(tasks):05d}", int(weights[first:last].sum())
        tasks.append(ShardTask(name=name, role=role, groups=groups, items=total, **common))
    return tasks


def gather(task: ShardTask) -> ShardEntry:
    """Write one shard and return its entry for the manifest."""
    with contextlib.closing(SpillReader(task.spills, task.layout)) as spills:
        groups = _outliers(task, spills) if task.role in LARGE_ROLES else _shuffled(task, spills)
        return write_shard(task.folder, task.name, task.role, task.layout, groups)


def _shuffled(task: ShardTask, spills: SpillReader) -> Iterator[Events]:
    for segments in task.groups:
        yield _in_order(spills.read(segments), task.seed)  # one row group is in memory, and its copy


def _in_order(events: Events, seed: int) -> Events:
    keys = shuffle_keys(events.columns[SOURCE_FILE], events.columns[SOURCE_ROW], seed)
    return events.take(np.argsort(keys))


def _outliers(task: ShardTask, spills: SpillReader) -> Iterator[Events]:
    for segments in task.groups:
        yield from regroup(spills.one_by_one(segments), OUTLIER_EVENTS, OUTLIER_ITEMS)


def _row_groups(events: NDArray[np.int64], items: NDArray[np.int64], first: int) -> list[tuple[int, int]]:
    """Join buckets into row groups that are full in events or in items, whichever comes first."""
    weights = np.maximum(events / GROUP_EVENTS, items / GROUP_ITEMS)
    cuts = even_cuts(weights, max(1, round(float(weights.sum()))))
    return [(first + start, first + stop) for start, stop in cuts]
