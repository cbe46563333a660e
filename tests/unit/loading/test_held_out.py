"""A sample of held-out events: even over ranges, bulk and outliers, and bounded in events and items."""

import numpy as np
import pytest

from crpipe.core.errors import ShardError
from crpipe.core.paths import OUTLIERS_OF
from crpipe.events.batch import Events
from crpipe.loading.loader import RangeShards, count_held_out, held_out
from toy import make_events, write_shards

SIZE = 400  # items of an outlier


def giants(count, seed):
    events = make_events(count, seed)
    return Events(events.columns, np.full(count, SIZE, np.uint32), np.ones((count * SIZE, 3), np.float32))


def write(root, *counts, part="validation"):
    """Write ranges of so many (bulk, outlier) events of a part, beside outliers that are trained on."""
    made = []
    for number, (bulk, outliers) in enumerate(counts):
        folders = RangeShards(root / "shards" / str(number), root / "outliers" / str(number))
        large = [(f"{role}-0", role, giants(outliers, number)) for role in (OUTLIERS_OF[part], "outliers")]
        write_shards(folders.outliers, large if outliers else [], "data")
        write_shards(folders.bulk, [(f"{part}-0", part, make_events(bulk, number))] if bulk else [], "data")
        made.append(folders)
    return made


def drawn(ranges, events, part="validation", **limits):
    """Count what a sample holds of each range: bulk and outliers."""
    limits = {"batch_events": 30, "budget_items": 1000, "seed": 1} | limits
    found = [[0, 0] for _ in ranges]
    for number, block in held_out(ranges, part, events=events, **limits):
        assert 0 < len(block) <= limits["batch_events"]
        assert block.multiplicity[:-1].sum() <= limits["budget_items"]
        for size in block.multiplicity.tolist():
            found[number][size == SIZE] += 1
    return found


@pytest.mark.parametrize("part", ["validation", "test"])
def test_all_are_taken_where_there_are_not_more(tmp_path, part):
    counts = [(90, 10), (0, 3), (40, 0), (0, 0)]
    ranges = write(tmp_path, *counts, part=part)
    assert drawn(ranges, 143, part) == drawn(ranges, 10_000, part) == [list(each) for each in counts]
    assert [count_held_out(each, part) for each in ranges] == [100, 3, 40, 0]
    assert drawn(ranges, 100, "test" if part == "validation" else "validation") == [[0, 0]] * 4


@pytest.mark.parametrize("events", [1, 7, 20, 71, 142])
def test_each_event_has_the_same_chance(tmp_path, events):
    counts = np.array([(90, 10), (0, 3), (40, 0)])
    found = np.array(drawn(write(tmp_path, *counts), events))
    assert found.sum() == events
    assert (found <= counts).all()
    assert (abs(found - counts * events / counts.sum()) < 1).all()


def test_shares_are_the_nearest_whole_numbers(tmp_path):
    assert drawn(write(tmp_path, (2, 4), (1, 0)), 3) == [[1, 2], [0, 0]]


def test_few_outliers_of_many_ranges_are_not_rounded_away(tmp_path):
    found = np.array(drawn(write(tmp_path, *[(30, 1)] * 12), 93))
    assert found.sum(axis=0).tolist() == [90, 3]


def test_the_sample_is_smaller_where_its_items_would_be_too_many(tmp_path):
    ranges = write(tmp_path, (20, 20), (20, 20))
    items = 40 * SIZE + sum(int(make_events(20, number).multiplicity.sum()) for number in range(2))
    found = np.array(drawn(ranges, 80, most_items=items // 4 + 1))
    assert found.tolist() == [[5, 5], [5, 5]]
    assert sum(map(sum, drawn(ranges, 80, most_items=1))) == 1


def test_missing_outliers_are_no_sample_without_them(tmp_path):
    ranges = write(tmp_path, (20, 5))
    (ranges[0].outliers / "manifest.json").unlink()
    with pytest.raises(ShardError, match=r"outliers/0/manifest\.json"):
        drawn(ranges, 10)


def test_the_same_sample_again(tmp_path):
    ranges = write(tmp_path, (50, 8), (30, 2))
    samples = [
        [
            (number, block.columns["source_row"].tolist())
            for number, block in held_out(
                ranges, "validation", events=40, batch_events=16, budget_items=900, seed=3
            )
        ]
        for _ in range(2)
    ]
    assert samples[0] == samples[1]
