"""Reads row groups of shards a few rows at a time, so that several can be read beside each other.

A shard and a row group of events come in; events and their items come out in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.shard_reader import DAMAGE, Shards, Table, values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from crpipe.events.layout import Layout

# Measured with row groups of 2 million items and three columns: 16 open streams hold 47 MiB with these,
# 69 MiB with blocks of 65,536 rows, as much as one row group that is decoded as a whole.
BLOCK_ROWS = 16_384
LARGE_ROWS = 1 << 18  # where few streams of one column each are open: 1 MiB of float32 at once
BUFFER_BYTES = 1 << 16


class RowStream:
    """Some columns of consecutive row groups of one file; holds one page of each column and one block."""

    def __init__(
        self,
        table: Table,
        groups: tuple[int, int],
        columns: list[str],
        skip: int,
        *,
        block_rows: int = BLOCK_ROWS,
        event_rows: int = 1,
    ) -> None:
        """Open the file at row group ``groups[0]`` and pass over ``skip`` rows; ``groups[1]`` is the end.

        block_rows: at most so many are decoded at once; always a multiple of event_rows, where that is more.
        """
        self._table = table
        self._columns = columns
        self._group = groups[0]
        self._block: list[NDArray[Any]] = []
        self._at = self._rows = 0
        try:
            self._file = table.open(groups[0], BUFFER_BYTES)
        except DAMAGE as error:
            raise table.damaged(groups[0], error) from error
        self._blocks: Iterator[pa.RecordBatch] = self._file.iter_batches(
            max(block_rows // event_rows, 1) * event_rows,
            row_groups=range(*groups),
            columns=columns,
            use_threads=False,
        )
        for _ in self._parts(skip):
            pass

    def fill(self, rows: int, out: Sequence[NDArray[Any]]) -> None:
        """Copy the next ``rows`` rows into ``out``, one array of that length for each column."""
        filled = 0
        for values, low, high in self.take(rows):
            for room, column in zip(out, values, strict=True):
                room[filled : filled + high - low] = column[low:high]
            filled += high - low

    def take(self, rows: int) -> Iterator[tuple[list[NDArray[Any]], int, int]]:
        """Return the next ``rows`` rows as blocks: the columns of each, and which rows of it."""
        for low, high in self._parts(rows):
            yield self._block, low, high

    def close(self) -> None:
        """Close the file."""
        self._blocks = iter(())
        self._block = []
        self._file.close()

    def _parts(self, rows: int) -> Iterator[tuple[int, int]]:
        """Advance by ``rows``: give the interval of each decoded block that holds some of them."""
        while rows:
            if self._at == self._rows:
                self._decode()
            low, high = self._at, min(self._at + rows, self._rows)
            yield low, high
            self._at = high
            rows -= high - low

    def _decode(self) -> None:
        self._block = []
        try:
            block = next(self._blocks, None)
            if block is None:
                raise self._table.damaged(self._group, "it ends early")
            self._block = [values_of(block.column(name)) for name in self._columns]
        except DAMAGE as error:
            raise self._table.damaged(self._group, error) from error
        self._at, self._rows = 0, block.num_rows


class EventStream:
    """The events of one row group in order, each with its items.

    The columns of the events are decoded at once: row groups of many items have few events. The file of items
    is open from the first call of ``items`` on.
    """

    def __init__(self, shards: Shards, layout: Layout, shard: int, group: int) -> None:
        """Decode the event columns; raise ShardError when the multiplicities do not match the items."""
        self._pair = shards.pairs[shard]
        self._names = [field.name for field in layout.items]
        self._number = group
        self._items: RowStream | None = None
        self.group = shards.decode(shard, group)

    def items(self, first: int, fixed: int) -> RowStream:
        """Return a stream of all item columns from event ``first`` on, the one after the last that was read.

        fixed: items of every event, if the stream's blocks are to hold whole events; else 0.
        """
        if self._items is None:
            self._items = self._open(first, fixed)
        return self._items

    def close(self) -> None:
        """Close the file of items."""
        if self._items is not None:
            self._items.close()
        self._items = None

    def _open(self, event: int, fixed: int) -> RowStream:
        pair = self._pair
        first, end = pair.item_groups[self._number : self._number + 2]
        begin = self.group.item_rows[event]
        # The row group of items in which the first event begins; any, where no items are left.
        block = max(first, min(end - 1, np.searchsorted(pair.item_rows, begin, side="right") - 1))
        skip = int(begin - pair.item_rows[block])
        groups, rows = (int(block), int(end)), LARGE_ROWS if fixed else BLOCK_ROWS
        return RowStream(pair.items, groups, self._names, skip, block_rows=rows, event_rows=max(fixed, 1))
