"""Temporary files between the two halves of a split: events as fixed-size records beside their raw items.

Each worker appends blocks whose events stand in the order of their buckets; the other half reads one span of
buckets from all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.data.batch import Events
from crpipe.fields import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

    from crpipe.fields import Layout

_ADDED = [(MULTIPLICITY, np.uint32), (SOURCE_FILE, np.uint32), (SOURCE_ROW, np.uint32)]


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a spill: events [B + 1] and items [B + 1] tell where each of B buckets starts in it.

    ``source`` is the number of the raw file that the block's events come from.
    """

    spill: int
    source: int
    events: NDArray[np.int64]
    items: NDArray[np.int64]


def record_type(layout: Layout) -> np.dtype[Any]:
    """Type of one event's record."""
    return np.dtype([*((field.name, field.dtype) for field in layout.events), *_ADDED])


class SpillWriter:
    """Appends blocks to one pair of files; what a bad file left can be taken back."""

    def __init__(self, folder: Path, number: int, layout: Layout) -> None:
        self._number = number
        self._type = record_type(layout)
        self._width = 4 * len(layout.items)
        self._events, self._items = (path.open("wb") for path in _paths(folder, number))

    def append(self, events: Events, source: int, buckets: NDArray[np.int64], count: int) -> Block:
        """Append events of one raw file, sorted by bucket; ``buckets`` [N] are below ``count``."""
        first_event, first_item = self.mark()
        order = np.argsort(buckets, kind="stable")
        if len(events) > 1:
            events = events.take(order)
        records = np.empty(len(events), self._type)
        for name, column in events.columns.items():
            records[name] = column
        records[MULTIPLICITY] = events.multiplicity
        self._events.write(records.data)
        self._items.write(events.items.data)
        ends = np.searchsorted(buckets[order], np.arange(count + 1))
        return Block(self._number, source, first_event + ends, first_item + events.offsets()[ends])

    def mark(self) -> tuple[int, int]:
        """Events and items so far."""
        return self._events.tell() // self._type.itemsize, self._items.tell() // self._width

    def cut_back(self, mark: tuple[int, int]) -> None:
        """Forget everything after ``mark``."""
        for handle, size in (
            (self._events, mark[0] * self._type.itemsize),
            (self._items, mark[1] * self._width),
        ):
            handle.seek(size)
            handle.truncate()

    def close(self) -> None:
        """Close both files."""
        self._events.close()
        self._items.close()


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
    """Where the buckets [first, last) stand: [S, 5], as ``SpillReader.read`` takes it; no empty ones."""
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
