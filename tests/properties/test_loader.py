"""What every stream of batches keeps, whatever the shards, the ranks and the batches' size."""

import contextlib
import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crpipe.loading.loader import START, Loader
from crpipe.loading.microbatch import micro_batches
from crpipe.loading.order import BAND

EXAMPLES = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])

multiplicities = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=25)
shard_sets = st.lists(st.lists(multiplicities, min_size=1, max_size=4), min_size=1, max_size=4)
folder_sets = st.lists(shard_sets, min_size=1, max_size=3)
options = st.fixed_dictionaries(
    {
        "batch_events": st.integers(1, 40),
        "seed": st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
        "max_items": st.one_of(st.none(), st.integers(1, 100)),
        "ranks": st.sampled_from([1, 2, 3, 7]),
    }
)
cuts = st.sampled_from([0, 1, 7, 50])


@pytest.fixture(scope="module")
def opened(write_shards):
    """Write the shards of some fresh folders and open them for each rank.

    opened(folders, cut, options, epochs); the events are numbered through all folders.
    """
    with contextlib.ExitStack() as stack:

        def open_all(folders, cut, options, epochs):
            paths, number = [], 0
            for shards in folders:
                paths.append(Path(stack.enter_context(tempfile.TemporaryDirectory())))
                write_shards(paths[-1], shards, items_per_group=cut, first_id=number)
                number += count(shards)
            return [
                Loader(paths, "train", epochs=epochs, rank=rank, prefetch=0, **options)
                for rank in range(options["ranks"])
            ]

        yield open_all


def read(loader, start=START):
    return [(events, cursor) for events, cursor in loader.batches(start)]


def count(shards):
    return sum(len(group) for shard in shards for group in shard)


def ids(stream):
    return [event for events, _ in stream for event in events.columns["primary_minor_id"].tolist()]


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def equal(one, two):
    return (
        np.array_equal(one.items, two.items)
        and np.array_equal(one.multiplicity, two.multiplicity)
        and all(np.array_equal(one.columns[name], two.columns[name]) for name in one.columns)
    )


@pytest.mark.slow
@EXAMPLES
@given(folders=folder_sets, cut=cuts, options=options)
def test_each_event_comes_once_an_epoch_with_its_items_in_one_order(opened, folders, cut, options):
    """The order is the same for any number of ranks, each of which has its part of every epoch."""
    loaders = opened(folders, cut, options, 2)
    (alone,) = opened(folders, cut, options | {"ranks": 1}, 2)
    streams = [read(loader) for loader in loaders]
    total, batches = loaders[0].events, loaders[0].batches_per_epoch
    assert {len(stream) for stream in streams} == {2 * batches}
    whole = ids(read(alone))
    for epoch in range(2):
        shared = [event for each in streams for event in ids(each[epoch * batches : (epoch + 1) * batches])]
        assert sorted(shared) == list(range(total))
        assert shared == whole[epoch * total : (epoch + 1) * total]
    of_event = [m for shards in folders for shard in shards for group in shard for m in group]
    empty = 0
    for events, _ in (batch for stream in streams for batch in stream):
        numbers = events.columns["primary_minor_id"].astype(int)
        assert events.multiplicity.tolist() == [of_event[number] for number in numbers]
        owner = np.repeat(numbers, events.multiplicity)
        inside = [place for m in events.multiplicity for place in range(m)]
        assert np.array_equal(events.items, np.stack([owner, inside, -owner], axis=1))
        assert np.array_equal(events.columns["energy_gev"], (numbers + 1).astype(np.float32))
        assert len(events) <= options["batch_events"]
        assert events.multiplicity[:-1].sum() <= (options["max_items"] or np.inf)
        empty += len(events) == 0
    assert empty == 2 * max(0, len(streams) * batches - total)


@pytest.mark.slow
@EXAMPLES
@given(folders=folder_sets, cut=cuts, options=options, data=st.data())
def test_a_resumed_stream_is_the_rest_of_the_uninterrupted_one(opened, folders, cut, options, data):
    loader = data.draw(st.sampled_from(opened(folders, cut, options, 2)))
    whole = read(loader)
    assert len(whole) == 2 * loader.batches_per_epoch
    done = data.draw(st.integers(0, len(whole)))
    rest = read(loader, whole[done - 1][1] if done else START)
    assert [cursor for _, cursor in rest] == [cursor for _, cursor in whole[done:]]
    assert all(equal(one, two) for (one, _), (two, _) in zip(rest, whole[done:], strict=True))


@pytest.mark.slow
@EXAMPLES
@given(options=options, cut=cuts)
def test_the_order_follows_from_seed_and_epoch(opened, options, cut):
    folders = [[[[1] * 20, [0, 2] * 10], [[3] * 25]]]
    (loader, *_), (again, *_) = (opened(folders, cut, options | {"ranks": 1}, 2) for _ in range(2))
    (other, *_) = opened(folders, cut, options | {"ranks": 1, "seed": (*options["seed"], 0)}, 2)
    first, second = ids(read(loader))[:65], ids(read(loader))[65:]
    assert ids(read(again)) == first + second
    assert first != second
    assert ids(read(other))[:65] != first


@EXAMPLES
@given(
    sizes=st.integers(2, 5).flatmap(
        lambda folders: st.lists(
            st.lists(st.integers(60, 80), min_size=folders, max_size=folders), min_size=1, max_size=12
        )
    ),
    batch_events=st.integers(40, 100),
    seed=st.integers(0, 9),
)
def test_nearly_every_batch_holds_events_of_several_folders(opened, sizes, batch_events, seed):
    """Where the folders have equally many row groups, and a batch is not tiny."""
    folders = [[[[1] * size] for size in column] for column in zip(*sizes, strict=True)]
    options = {"batch_events": batch_events, "seed": (seed,), "ranks": 1}
    (loader,) = opened(folders, 0, options, 1)
    ends = np.cumsum([count(shards) for shards in folders])
    found = [
        len(np.unique(np.searchsorted(ends, events.columns["primary_minor_id"], side="right")))
        for events, _ in read(loader)
    ]
    assert np.mean(np.array(found) > 1) > 0.9
    order = loader._order.epoch(0)
    owner = [loader._shards.pairs[shard].folder for shard in loader._pieces[order.pieces, 0]]
    for low, high in zip(order.windows[:-1], order.windows[1:], strict=True):
        first, last = np.searchsorted(order.starts, [low, high])
        assert len(set(owner[first:last])) > 1


@EXAMPLES
@given(folders=folder_sets, options=options)
def test_open_files_stay_bounded(opened, folders, options):
    (loader, *_) = opened(folders * 3, 0, options, 1)
    gc.collect()  # closes those that other tests left to it
    before = open_files()
    with contextlib.closing(loader.batches()) as stream:
        for _ in stream:
            assert open_files() <= before + 2 * BAND
    assert open_files() == before


@EXAMPLES
@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 80))
def test_micro_batches_hold_every_event_once_within_the_budget(sizes, budget):
    size = np.array(sizes, np.uint32)
    groups = micro_batches(size, budget)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
    tight = -(-sum(sizes) // budget)
    assert len(groups) >= (max(1, tight) if max(sizes, default=0) <= budget else 1)
    assert all(len(group) == 1 or size[group].sum() <= budget for group in groups)
    assert all(np.all(np.diff(group) > 0) for group in groups)
    assert [group.tolist() for group in micro_batches(size, budget)] == [g.tolist() for g in groups]
