"""How buckets become shards."""

import numpy as np
import pytest

from crpipe.events.shard_writer import GROUP_EVENTS, GROUP_ITEMS
from crpipe.split.gather import bucket_count, bulk_tasks, outlier_tasks
from crpipe.split.spill import Block, BlockTable, OutlierSegment
from plain_reader import HITS


def table_of(*blocks, spans=1):
    """Blocks of one spill each, of (events, items) of each bucket."""
    ends = [[np.concatenate([[0], np.cumsum(each)]) for each in counts] for counts in blocks]
    first = np.linspace(0, len(blocks[0][0]), spans + 1).astype(int)
    begins = np.zeros((spans, 2), np.int64)
    return BlockTable([[Block(spill, *both, begins)] for spill, both in enumerate(ends)], first)


def common(tmp_path):
    return {"folder": tmp_path, "spills": tmp_path, "layout": HITS, "seed": 1}


@pytest.mark.parametrize(
    ("events", "items", "shard_items", "expected"),
    [
        (0, 0, 1000, 1),
        (GROUP_EVENTS, 0, 10**9, 4),
        (1, GROUP_ITEMS, 10**9, 4),
        (1, 1000, 1000, 4),
        (10 * GROUP_EVENTS, GROUP_ITEMS, 10**9, 40),
    ],
)
def test_four_buckets_or_more_to_a_row_group_and_to_a_shard(events, items, shard_items, expected):
    assert bucket_count(events, items, shard_items) == expected


def test_shards_share_out_the_buckets_by_items(tmp_path):
    blocks = table_of(([10] * 8, [100] * 8), ([5] * 8, [100] * 8), spans=3)
    tasks = bulk_tasks(common(tmp_path), "train", blocks, 0, 8, 400)
    assert [task.name for task in tasks] == [f"train-{number:05d}" for number in range(4)]
    assert [task.items for task in tasks] == [400] * 4
    assert [task.first_span for task in tasks] == [0, 1, 1, 2]
    spans = np.concatenate([group for task in tasks for group in task.groups])
    assert spans[:, 3].sum() == 8 * 15
    assert spans[:, 5].sum() == 1600


def test_only_the_buckets_of_the_role_are_taken(tmp_path):
    blocks = table_of(([1, 2, 3, 4], [10, 20, 30, 40]))
    (task,) = bulk_tasks(common(tmp_path), "validation", blocks, 1, 3, 10**6)
    assert task.items == 50
    assert np.concatenate(task.groups)[:, 3].sum() == 5
    assert bulk_tasks(common(tmp_path), "train", table_of(([0, 3], [0, 9])), 0, 1, 10**6) == []


def test_outliers_keep_the_order_of_the_source_and_are_cut_between_files(tmp_path):
    outliers = [OutlierSegment(0, "outliers", (0, 1, 0, 1, 0, 700))]
    outliers += [
        OutlierSegment(3, "outliers", (1, 1, 0, 2, 0, 400)),
        OutlierSegment(3, "outliers", (1, 1, 2, 1, 400, 100)),
    ]
    tasks = outlier_tasks(common(tmp_path), outliers, 600)
    assert [task.items for task in tasks] == [700, 500]
    assert [len(task.groups[0]) for task in tasks] == [1, 2]
    assert outlier_tasks(common(tmp_path), [], 600) == []
