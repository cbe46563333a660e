"""Temporary files between the two halves of a split: events as fixed-size records beside their raw items.

Each worker appends blocks whose events are in the order of their buckets; the other half reads one span of
buckets from all blocks. Blocks are large, because each span is a separate read in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.events.batch import Events, concatenate, item_view, offsets
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout

_ADDED = [(MULTIPLICITY, np.uint32), (SOURCE_FILE, np.uint32), (SOURCE_ROW, np.uint32)]
_BLOCK_BYTES = 4 << 20  # of held items; a copy that joins them takes as much again
_PIECE = 1 << 12  # events gathered at once: they are written while they are still in the processor's cache
_MIXED = -1


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a spill: where each of B buckets starts in its events, [B + 1], and items, [B + 1].

    ``source`` is the number of the raw file that the block's events come from, -1 where there are several.
    """

    spill: int
    source: int
    events: NDArray[np.int64]
    items: NDArray[np.int64]


def record_type(layout: Layout) -> np.dtype[Any]:
    """Type of one event's record."""
    return np.dtype([*((field.name, field.dtype) for field in layout.events), *_ADDED])


class SpillWriter:
    """Appends blocks to one pair of files; the events of a bad raw file can be dropped.

    ``buckets`` counts all buckets.
    """

    def __init__(self, folder: Path, number: int, layout: Layout, buckets: int) -> None:
        self._number = number
        self._type = record_type(layout)
        self._width = 4 * len(layout.items)
        self._buckets = buckets
        self._events, self._items = (path.open("wb") for path in _paths(folder, number))
        self._blocks: list[Block] = []
        self._recent: list[Block] = []  # of the raw file in progress
        self._held: list[tuple[Events, NDArray[np.int64]]] = []
        self._whole = 0  # of those held, how many come from finished raw files
        self._bytes = 0

    def hold(self, events: Events, buckets: NDArray[np.int64]) -> None:
        """Keep events in memory, to be written with others; ``buckets`` [N] are below the count."""
        if self._bytes + events.items.nbytes > _BLOCK_BYTES:
            self._flush()
        self._held.append((events, buckets))
        self._bytes += events.items.nbytes

    def write(self, events: Events, bucket: int, source: int) -> None:
        """Write a block of its own for events of one raw file that share a bucket: they keep their order."""
        buckets = np.full(len(events), bucket, np.int64)
        self._recent.append(self._append(events, buckets, source))

    def keep(self) -> None:
        """Keep the events since the last call: the raw file is good."""
        self._blocks += self._recent
        self._recent = []
        self._whole = len(self._held)

    def forget(self) -> None:
        """Drop the events since ``keep``: the raw file is bad. Bytes already written are never read."""
        self._recent = []
        del self._held[self._whole :]
        self._bytes = sum(events.items.nbytes for events, _ in self._held)

    def finish(self) -> list[Block]:
        """Write what is held and return all blocks that were kept."""
        self._flush()
        return self._blocks

    def close(self) -> None:
        """Close both files, also where a full disk refuses the rest of the first."""
        with self._items:
            self._events.close()

    def _flush(self) -> None:
        """Write the held events: one block of finished raw files, and one of the file in progress."""
        whole, recent = self._held[: self._whole], self._held[self._whole :]
        self._held, self._whole, self._bytes = [], 0, 0
        for held, blocks in ((whole, self._blocks), (recent, self._recent)):
            if held:
                events = concatenate([events for events, _ in held])
                buckets = np.concatenate([buckets for _, buckets in held])
                blocks.append(self._append(events, buckets, _MIXED))

    def _append(self, events: Events, buckets: NDArray[np.int64], source: int) -> Block:
        """Append events in the order of their buckets, a piece at a time."""
        first_event = self._events.tell() // self._type.itemsize
        first_item = self._items.tell() // self._width
        small = buckets.astype(np.min_scalar_type(self._buckets))  # numpy sorts 16 bits by radix
        order = np.argsort(small, kind="stable")
        if len(events) == 1:  # a giant event is never copied
            self._put(events)
        else:
            view = item_view(events.offsets(), events.items)
            for first in range(0, len(events), _PIECE):
                self._put(events.gather(view, order[first : first + _PIECE]))
        ends = offsets(np.bincount(buckets, minlength=self._buckets))
        return Block(
            self._number, source, first_event + ends, first_item + offsets(events.multiplicity[order])[ends]
        )

    def _put(self, events: Events) -> None:
        records = np.empty(len(events), self._type)
        for name, column in events.columns.items():
            records[name] = column
        records[MULTIPLICITY] = events.multiplicity
        self._events.write(records.data)
        self._items.write(events.items.data)


class SpillReader:
    """Reads spans of buckets from all spills of a folder."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout
        self._type = record_type(layout)
        self._open: dict[int, tuple[BinaryIO, BinaryIO]] = {}

    def read(self, segments: NDArray[np.int64]) -> Events:
        """Read [S, 5] segments (spill, first event, events, first item, items) end to end."""
        records = np.empty(segments[:, 2].sum(), self._type)
        items = np.empty((segments[:, 4].sum(), len(self._layout.items)), np.float32)
        event = item = 0
        for spill, first_event, events, first_item, held in segments.tolist():
            handles = self._handles(spill)
            _read_at(handles[0], first_event, records[event : event + events])
            _read_at(handles[1], first_item, items[item : item + held])
            event += events
            item += held
        names = [name for name in records.dtype.names or () if name != MULTIPLICITY]
        columns = {name: np.ascontiguousarray(records[name]) for name in names}
        return Events(columns, np.ascontiguousarray(records[MULTIPLICITY]), items)

    def one_by_one(self, segments: NDArray[np.int64]) -> Iterator[Events]:
        """Read each segment on its own, in order: never more than one at once."""
        for index in range(len(segments)):
            yield self.read(segments[index : index + 1])

    def close(self) -> None:
        """Close all files."""
        for pair in self._open.values():
            for handle in pair:
                handle.close()

    def _handles(self, spill: int) -> tuple[BinaryIO, BinaryIO]:
        if spill not in self._open:
            events, items = (path.open("rb", buffering=0) for path in _paths(self._folder, spill))
            self._open[spill] = events, items
        return self._open[spill]


def segments_of(blocks: Iterable[Block], first: int, last: int) -> NDArray[np.int64]:
    """Find the segments of the buckets [first, last) that are not empty: [S, 5], for ``SpillReader.read``."""
    rows = [
        (
            block.spill,
            block.events[first],
            block.events[last] - block.events[first],
            block.items[first],
            block.items[last] - block.items[first],
        )
        for block in blocks
        if block.events[last] > block.events[first]
    ]
    return np.array(rows, np.int64).reshape(-1, 5)


def _paths(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"{number:04d}.events", folder / f"{number:04d}.items"


def _read_at(handle: BinaryIO, first: int, out: NDArray[Any]) -> None:
    size = out.nbytes
    if not size:
        return
    handle.seek(first * (size // len(out)))
    view = out.view(np.uint8).data.cast("B")
    done = 0
    while done < size:  # one read returns 2 GiB at most
        done += handle.readinto(view[done:])  # type: ignore[attr-defined]
