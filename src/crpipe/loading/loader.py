"""Batches from shards: shuffled, divided among ranks, resumable at any batch.

Folders of shards and a cursor come in; a stream of (events, cursor after them) goes out.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from crpipe.core.errors import ShardError
from crpipe.core.paths import MANIFEST, Part, Paths, roles_of
from crpipe.core.text import counted
from crpipe.events.batch import Cursor, Events
from crpipe.events.layout import LARGE, Layout
from crpipe.events.shard_manifest import open_manifest, read_layout
from crpipe.events.shard_reader import REMEDY, Shards, folders_of
from crpipe.loading.decoders import AHEAD_ITEMS, Decoder, SlicedGroups, WholeGroups, WindowBuffers
from crpipe.loading.order import Order, item_costs
from crpipe.loading.windows import EpochReader, pieces_of, prefetched

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path


START = Cursor(0, 0)
DECODERS = 2  # threads that decode
MOST_ITEMS = 1 << 28  # of a sample, about: whoever compares whole events holds all of them
Result = TypeVar("Result")


class Loader:
    """The events of one role in folders of shards, as batches; ``layout`` is what the manifest describes.

    A batch holds at most ``batch_events`` events. All batches of an epoch, on all ranks, hold the same number
    of events to within one, so that the last batch is never much smaller than the others; a batch is empty
    only when there are fewer events than batches. With ``max_items``, for outliers, a batch ends earlier: all
    its events but the last hold at most ``max_items`` items together, and a larger event ends its batch.

    Each epoch visits every event once on exactly one rank, in an order that follows from ``seed``, the epoch,
    the shards and the size of a batch alone: the ranks' streams end to end are that of a single rank.
    Events of several folders are shuffled together: a window holds slices of several row groups, of different
    folders as far as possible, and not more items than a window of one folder.
    """

    def __init__(
        self,
        folders: Path | Sequence[Path],
        role: str,
        *,
        batch_events: int,
        seed: tuple[int, ...],
        epochs: int,
        rank: int = 0,
        ranks: int = 1,
        prefetch: int = 2,
        max_items: int | None = None,
    ) -> None:
        """Check the shards; raise ShardError when one is missing, short, or not what the manifest says.

        Also when the folders' layouts differ. Only sizes and footers are checked here, and no file stays
        open; pages are checked against their checksums while reading.
        """
        folders = folders_of(folders)
        self._folder = folders[0]
        self._epochs = epochs
        self._rank = rank
        self._prefetch = prefetch
        self.layout = _common_layout(folders)
        self._shards = Shards(folders, role, self.layout)
        self.events = sum(int(pair.events.rows[-1]) for pair in self._shards.pairs)
        self.items = sum(int(pair.items.rows[-1]) for pair in self._shards.pairs)
        self._pieces = pieces_of(self._shards)
        aligned = all(len(pair.item_groups) == len(pair.item_rows) for pair in self._shards.pairs)
        self._fixed = self.layout.fixed if self.layout.fixed >= LARGE and aligned else 0
        sizes = self._pieces[:, 3] - self._pieces[:, 2]
        owners = np.array([pair.folder for pair in self._shards.pairs], np.int64)[self._pieces[:, 0]]
        cost = None
        if max_items is not None:
            cost = item_costs(self._shards.multiplicities(), batch_events, max_items)
        capacity = batch_events if max_items is None else max_items
        self._order = Order(seed, sizes, capacity=capacity, ranks=ranks, cost=cost, folders=owners)
        self.batches_per_epoch = self._order.batches_per_rank

    def batches(self, start: Cursor = START) -> Generator[tuple[Events, Cursor]]:
        """Yield batches, each with the cursor after it, from ``start`` to the end of the last epoch.

        A resumed stream equals the rest of an uninterrupted one, bit for bit, and decodes no more than the
        one or two windows that hold its first batch; with several folders also the earlier slices of the row
        groups of which these windows hold slices. One thread works ``prefetch`` batches ahead, and others
        decode for it; without ``prefetch`` there are none. All have ended when the generator is closed, so
        close it, and read one stream at a time:
        ``with contextlib.closing(loader.batches(cursor)) as stream``.
        Raise ShardError for a damaged shard, and for a cursor that lies outside of the epochs.
        """
        return self.prepared_batches(lambda pair: pair, start, workers=0)

    def prepared_batches(
        self, prepare: Callable[[tuple[Events, Cursor]], Result], start: Cursor = START, *, workers: int
    ) -> Generator[Result]:
        """Yield ``prepare((events, cursor))`` for what ``batches`` would yield, ``prefetch`` batches ahead.

        ``workers`` threads call ``prepare``, several at the same time, and all have ended when the generator
        is closed. Without workers or with ``prefetch`` 0 the caller's thread does.
        """
        if start.batch > self.batches_per_epoch or start.epoch > self._epochs or min(start) < 0:
            raise ShardError(
                f"{self._folder}: epoch {start.epoch}, batch {start.batch} lies outside of {self._epochs} "
                f"epochs of {counted(self.batches_per_epoch, 'batch', 'batches')}; resume with the "
                "same shards and ranks"
            )
        return prefetched(self._stream(start), prepare, depth=self._prefetch, workers=workers)

    def _stream(self, start: Cursor) -> Generator[tuple[Events, Cursor]]:
        first = start.batch
        buffers = WindowBuffers(len(self.layout.items), self._fixed, self._prefetch)
        for epoch in range(start.epoch, self._epochs):
            with ExitStack() as stack:
                reader = self._reader(stack, epoch, buffers)
                for batch in range(first, self.batches_per_epoch):
                    done = batch + 1
                    cursor = Cursor(epoch, done) if done < self.batches_per_epoch else Cursor(epoch + 1, 0)
                    yield reader.batch(self._rank * self.batches_per_epoch + batch), cursor
            first = 0

    def _reader(self, stack: ExitStack, epoch: int, buffers: WindowBuffers) -> EpochReader:
        """Open what reads an epoch; closing ``stack`` ends its threads, and then closes its files."""
        decoder: Decoder
        if self._order.in_slices:
            decoder = SlicedGroups(self._shards, self._pieces, self.layout, buffers)
        else:
            decoder = WholeGroups(self._shards, self.layout, buffers)
        stack.callback(decoder.close)
        order = self._order.epoch(epoch)
        end = (self._rank + 1) * self.batches_per_epoch
        if not self._prefetch:
            return EpochReader(decoder, self._pieces, order, self.layout, buffers, end=end)
        pool = ThreadPoolExecutor(DECODERS, "decode")
        stack.callback(pool.shutdown, cancel_futures=True)
        # Where events are small, a second window costs more than an idle core is worth: it leaves the cache.
        items = self._fixed * int(np.diff(order.windows).max(initial=0))
        following = 0 < items < AHEAD_ITEMS
        return EpochReader(
            decoder, self._pieces, order, self.layout, buffers, end=end, pool=pool, following=following
        )


def sample(
    folders: Path | Sequence[Path],
    role: str,
    events: int,
    *,
    batch_events: int,
    seed: tuple[int, ...],
    max_items: int | None = None,
) -> Generator[Events]:
    """Yield the first ``events`` events of a shuffled pass, in blocks: the batches of ``Loader``.

    Close it, as the stream of a loader; it has no threads.
    """
    loader = Loader(
        folders, role, batch_events=batch_events, seed=seed, epochs=1, prefetch=0, max_items=max_items
    )
    left = max(events, 0)
    with contextlib.closing(loader.batches()) as stream:
        for batch, _ in stream:
            block = batch.part(0, min(len(batch), left))
            left -= len(block)
            if len(block):
                yield block
            if not left:
                return


def _common_layout(folders: Sequence[Path]) -> Layout:
    """Read the layout of all folders; raise ShardError naming the first one that differs."""
    layout = read_layout(folders[0])
    for folder in folders[1:]:
        if read_layout(folder) != layout:
            raise ShardError(
                f"{folder / MANIFEST}: its layout differs from that of {folders[0]}, and both are to be read "
                f"together: one of the two was made with another reader or is damaged; {REMEDY}"
            )
    return layout


class RangeShards(NamedTuple):
    """Where the events of one range are: the folders of its bulk and of its outliers."""

    bulk: Path
    outliers: Path

    @classmethod
    def of(cls, paths: Paths, name: str) -> RangeShards:
        """Return the folders of a range of a campaign."""
        return cls(paths.shards(name), paths.outliers(name))


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
    shares = _divide([each.events for each in stored], _sample_size(stored, events, most_items))
    for shards, share in zip(stored, shares, strict=True):
        if not share:
            continue
        blocks = sample(
            shards.folder,
            shards.role,
            share,
            batch_events=min(share, batch_events),
            seed=(seed,),
            max_items=budget_items,
        )
        with contextlib.closing(blocks):
            for block in blocks:
                yield shards.number, block


def _stored(ranges: Sequence[RangeShards], part: Part) -> Iterator[_Stored]:
    for number, shards in enumerate(ranges):
        for folder, role in zip(shards, roles_of(part), strict=True):
            entries = open_manifest(folder, None).of_role(role)
            counts = sum(entry.events for entry in entries), sum(entry.items for entry in entries)
            yield _Stored(number, folder, role, *counts)


def _sample_size(stored: Sequence[_Stored], events: int, most_items: int) -> int:
    total, items = sum(each.events for each in stored), sum(each.items for each in stored)
    size = min(events, total)
    return min(size, max(1, most_items * total // items)) if items else size


def _divide(sizes: Sequence[int], events: int) -> list[int]:
    """Divide ``events`` in proportion to the sizes: [2, 4, 1] and 3 give [1, 2, 0]; none exceeds its size."""
    total, end = max(1, sum(sizes)), 0
    borders = [0]
    for size in sizes:
        end += size
        borders.append((2 * end * events + total) // (2 * total))  # the nearest whole number
    return [last - first for first, last in pairwise(borders)]
