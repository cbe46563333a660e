"""Any layout splits, and every event comes back from the shards with its own items."""

import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crpipe.core.paths import LARGE_ROLES, roles_of
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_manifest import groups_of, read_layout
from crpipe.events.shard_reader import Shards
from crpipe.loading.loader import Loader
from layouts import events_of, layouts
from plain_reader import write_events
from raw_files import NAME, campaign, raw_folder, split, write_staged

EXAMPLES = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PART_OF = {role: part for part in ("train", "validation") for role in roles_of(part)}
files = st.lists(st.lists(st.integers(0, 12), max_size=30), min_size=1, max_size=3)


def rows_of(blocks):
    """Every event as {(file, row): (values of its columns, its items)}."""
    found = {}
    for events in blocks:
        starts = events.offsets()
        places = zip(*(events.columns[name].tolist() for name in (SOURCE_FILE, SOURCE_ROW)), strict=True)
        for index, place in enumerate(places):
            assert place not in found
            values = {name: column[index] for name, column in events.columns.items()}
            found[place] = values, events.items[starts[index] : starts[index + 1]]
    return found


@pytest.mark.slow
@EXAMPLES
@given(layout=layouts(), files=files, threshold=st.sampled_from([3, 8, 1000]))
def test_any_layout_splits_and_loads_back_exactly(layout, files, threshold):
    with tempfile.TemporaryDirectory() as root:
        config = campaign(root, "source.reader=plain_reader:Plain", f"split.outlier_above={threshold}")
        config = config.model_copy(update={"reader": {"layout": layout.describe()}})
        made = [events_of(layout, multiplicity, seed) for seed, multiplicity in enumerate(files)]
        for number, events in enumerate(made):
            write_events(raw_folder(config) / f"{number}.npz", events)
        write_staged(config)
        split(config)
        found, sides = {}, {"train": set(), "validation": set()}
        for role, part in PART_OF.items():
            folder = config.paths().outliers(NAME) if role in LARGE_ROLES else config.paths().shards(NAME)
            assert read_layout(folder) == layout
            rows = rows_of(groups_of(Shards(folder, role, layout), layout))
            assert not found.keys() & rows.keys()
            found |= rows
            sides[part] |= {tuple(values[name] for name in layout.group) for values, _ in rows.values()}
            loader = Loader(folder, role, batch_events=7, seed=(1,), epochs=1, prefetch=0)
            loaded = rows_of(events for events, _ in loader.batches())
            assert loaded.keys() == rows.keys()
            assert all(np.array_equal(loaded[place][1], items) for place, (_, items) in rows.items())
            assert all((len(items) > threshold) == (role in LARGE_ROLES) for _, items in rows.values())
        assert not sides["train"] & sides["validation"]
        assert len(found) == sum(map(len, made))
        for (file, row), (values, items) in found.items():
            expected = made[file].part(row, row + 1)
            assert np.array_equal(items, expected.items)
            for name, column in expected.columns.items():
                assert values[name] == column[0]
                assert values[name].dtype == column.dtype
