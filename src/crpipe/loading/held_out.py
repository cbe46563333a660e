"""A sample of held-out events, evenly from the bulk and the outliers of several ranges, in bounded blocks."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from crpipe.core.destinations import roles_of
from crpipe.events.shard_manifest import read_manifest
from crpipe.loading.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from crpipe.core.destinations import Part
    from crpipe.events.batch import Events

MOST_ITEMS = 1 << 28  # of a sample, about: whoever compares whole events holds all of them


class RangeShards(NamedTuple):
    """Where the events of one range are: the folders of its bulk and of its outliers."""

    bulk: Path
    outliers: Path


class _Stored(NamedTuple):
    """Events of a part that are in one folder."""

    number: int
    folder: Path
    role: str
    events: int
    items: int


def count_held_out(shards: RangeShards, part: Part) -> int:
    """Count the events of a part in one range, however they are stored; raise ShardError as ``held_out``."""
    return sum(each.events for each in _stored([shards], part))


def held_out(
    ranges: Sequence[RangeShards],
    part: Part,
    *,
    events: int,
    batch_events: int,
    budget_items: int,
    seed: int,
    most_items: int = MOST_ITEMS,
) -> Generator[tuple[int, Events]]:
    """Yield at most ``events`` events of a part in blocks, each with the number of its range.

    Every range gives its share, and in it the bulk and the outliers give theirs: each event has the same
    chance. There are fewer than ``events`` where so many would hold more than ``most_items`` items, about.
    A block holds at most batch_events events and, but for its last event, at most budget_items items. The
    sample and its blocks follow from the arguments and the shards alone. Raise ShardError for shards that are
    missing or damaged.
    """
    stored = list(_stored(ranges, part))
    wanted = _shares([each.events for each in stored], _sample_size(stored, events, most_items))
    for each, share in zip(stored, wanted, strict=True):
        if not share:
            continue
        loader = Loader(
            each.folder,
            each.role,
            batch_events=min(share, batch_events),
            seed=(seed,),
            epochs=1,
            prefetch=0,
            max_items=budget_items,
        )
        left = share
        with contextlib.closing(loader.batches()) as stream:
            for found, _ in stream:
                block = found.part(0, min(len(found), left))
                left -= len(block)
                if len(block):
                    yield each.number, block
                if not left:
                    break


def _stored(ranges: Sequence[RangeShards], part: Part) -> Iterator[_Stored]:
    for number, shards in enumerate(ranges):
        for folder, role in zip(shards, roles_of(part), strict=True):
            entries = [entry for entry in read_manifest(folder, None)["shards"] if entry["role"] == role]
            counts = (sum(entry[kind] for entry in entries) for kind in ("events", "items"))
            yield _Stored(number, folder, role, *counts)


def _sample_size(stored: Sequence[_Stored], events: int, most_items: int) -> int:
    there, items = sum(each.events for each in stored), sum(each.items for each in stored)
    size = min(events, there)
    return min(size, max(1, most_items * there // items)) if items else size


def _shares(sizes: Sequence[int], wanted: int) -> list[int]:
    """Divide ``wanted`` in proportion to the sizes: [2, 4, 1] and 3 give [1, 2, 0]; none exceeds its size."""
    total, end = max(1, sum(sizes)), 0
    borders = [0]
    for size in sizes:
        end += size
        borders.append((2 * end * wanted + total) // (2 * total))  # the nearest whole number
    return [last - first for first, last in pairwise(borders)]
