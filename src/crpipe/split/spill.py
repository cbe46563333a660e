"""Temporary files between the two halves of a split: events as fixed-size records beside their raw items.

Each worker appends blocks whose events are in the order of their buckets; the other half reads one interval
of buckets from all blocks. Blocks are large, because each interval is a separate read in each of them. Each
span of buckets has files of its own: the disk reads them from begin to end, and they are deleted once their
shards are written.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import DataError
from crpipe.core.files import fadvise
from crpipe.events.batch import Events, concatenate, gather_items, item_view, offsets
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


_ADDED = [(MULTIPLICITY, np.uint32), (SOURCE_FILE, np.uint32), (SOURCE_ROW, np.uint32)]
_BLOCK_BYTES = 8 << 20  # of held items; a copy that joins them takes as much again
_PIECE = 1 << 12  # events gathered at once: they are written while they are still in the processor's cache
_SPAN_BYTES = 256 << 20
_MOST_SPANS = 64  # each has two files open in each worker
_DIRTY = 64 << 20  # bytes of one worker's files that wait to be written to the disk, where there are spans


@dataclass(frozen=True, slots=True)
class Block:
    """Events of several raw files that were written at once, in the order of their buckets.

    events, items: how many of them come before each of B buckets, [B + 1].
    begins: [S, 2], by which place in the two files of each span the block's first event would be.
    """

    spill: int
    events: NDArray[np.integer[Any]]
    items: NDArray[np.integer[Any]]
    begins: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OutlierSegment:
    """Outliers of one raw file and one role, in their order, outside of all buckets.

    segment: where they are.
    """

    source: int
    role: str
    segment: tuple[int, ...]


def record_type(layout: Layout) -> np.dtype[Any]:
    """Type of one event's record."""
    return np.dtype([*((field.name, field.dtype) for field in layout.events), *_ADDED])


def span_count(events: int, items: int, layout: Layout) -> int:
    """Choose how many spans the buckets are divided into."""
    size = events * record_type(layout).itemsize + items * 4 * len(layout.items)
    return max(1, min(_MOST_SPANS, size // _SPAN_BYTES))


class SpanFile:
    """A temporary file that is written from its begin to its end.

    dirty: bytes after which what was written is sent to the disk, and then dropped from the page cache, which
        would otherwise grow with the range; 0: never.
    """

    def __init__(self, path: Path, dirty: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._dirty = dirty
        self._kept = self._sent = 0
        self.size = 0

    def put(self, values: NDArray[Any]) -> None:
        """Append an array."""
        view = values.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):  # one write takes 2 GiB at most
            done += self._file.write(view[done:]) or 0
        self.size += done
        if self._dirty and self.size - self._sent >= self._dirty:
            self._send()

    def close(self) -> None:
        """Close the file."""
        if self._dirty:
            self._send()
        self._file.close()

    def _send(self) -> None:
        """Begin to write the last part to the disk; drop the part before, which is there by now."""
        fadvise(self._file.fileno(), "DONTNEED", self._kept, self.size - self._kept)
        self._kept, self._sent = self._sent, self.size


class SpillWriter:
    """Appends blocks to the files of one worker; the events of a bad raw file can be dropped.

    spans: [S + 1], the first bucket of each span, and the number of all buckets.
    """

    def __init__(self, folder: Path, number: int, layout: Layout, spans: NDArray[np.int64]) -> None:
        self._number = number
        self._type = record_type(layout)
        self._width = 4 * len(layout.items)
        self._spans = spans
        count = len(spans) - 1
        dirty = _DIRTY // count if count > 1 else 0
        self._closing = contextlib.ExitStack()
        self._files: list[tuple[SpanFile, SpanFile]] = []
        for span in range(count + 1):  # the last one takes what is written by itself
            events, items = (
                self._closing.enter_context(contextlib.closing(SpanFile(path, dirty)))
                for path in _paths(folder, number, span)
            )
            self._files.append((events, items))
        self._blocks: list[Block] = []
        self._asides: list[OutlierSegment] = []
        self._recent: list[Block] = []  # of the raw file in progress
        self._recent_asides: list[OutlierSegment] = []
        self._held: list[tuple[Events, NDArray[np.int64]]] = []
        self._whole = 0  # of those held, how many come from finished raw files
        self._bytes = 0

    def hold(self, events: Events, buckets: NDArray[np.int64]) -> None:
        """Keep events in memory, to be written with others; ``buckets`` [N] are below the count."""
        if self._bytes + events.items.nbytes > _BLOCK_BYTES:
            self._flush()
        self._held.append((events, buckets))
        self._bytes += events.items.nbytes

    def write(self, events: Events, source: int, role: str) -> None:
        """Write outliers of one raw file and role by themselves: they keep their order."""
        span = len(self._spans) - 1
        begin = self._begin(span)
        self._files[span][0].put(self._records(events))
        self._files[span][1].put(events.items)
        segment = self._number, span, begin[0], len(events), begin[1], len(events.items)
        self._recent_asides.append(OutlierSegment(source, role, segment))

    def keep(self) -> None:
        """Keep the events since the last call: the raw file is good."""
        self._blocks += self._recent
        self._asides += self._recent_asides
        self._recent, self._recent_asides = [], []
        self._whole = len(self._held)

    def forget(self) -> None:
        """Drop the events since ``keep``: the raw file is bad. Bytes already written are never read."""
        self._recent, self._recent_asides = [], []
        del self._held[self._whole :]
        self._bytes = sum(events.items.nbytes for events, _ in self._held)

    def finish(self) -> tuple[list[Block], list[OutlierSegment]]:
        """Write what is held and return all that was kept."""
        self._flush()
        return self._blocks, self._asides

    def close(self) -> None:
        """Close all files."""
        self._closing.close()

    def _flush(self) -> None:
        """Write the held events: one block of finished raw files, and one of the file in progress."""
        whole, recent = self._held[: self._whole], self._held[self._whole :]
        self._held, self._whole, self._bytes = [], 0, 0
        for held, blocks in ((whole, self._blocks), (recent, self._recent)):
            if held:
                events = concatenate([events for events, _ in held])
                buckets = np.concatenate([buckets for _, buckets in held])
                blocks.append(self._append(events, buckets))

    def _append(self, events: Events, buckets: NDArray[np.int64]) -> Block:
        """Append events in the order of their buckets, a piece at a time, each to its span."""
        count = int(self._spans[-1])
        small = buckets.astype(np.min_scalar_type(count))  # numpy sorts 16 bits by radix
        order = np.argsort(small, kind="stable")
        ends = offsets(np.bincount(buckets, minlength=count))
        places = offsets(events.multiplicity[order])
        starts = places[ends]
        borders = np.stack([ends, starts], axis=1)[self._spans]
        begins = np.array([self._begin(span) for span in range(len(borders) - 1)], np.int64) - borders[:-1]
        table, view = self._records(events), item_view(events.offsets(), events.items)
        for first in range(0, len(order), _PIECE):
            piece = order[first : first + _PIECE]
            records = table.take(piece)  # an index takes five times as long
            # A giant event is never copied.
            items = events.items if len(events) == 1 else gather_items(view, piece, events.items.shape[1])
            low, high = ([place, places[place]] for place in (first, first + len(piece)))
            cuts = (np.clip(borders, low, high) - low).tolist()
            for files, (event, item), (event_end, item_end) in zip(self._files, cuts, cuts[1:], strict=False):
                if event < event_end:
                    files[0].put(records[event:event_end])
                    files[1].put(items[item:item_end])
        return Block(self._number, _narrow(ends), _narrow(starts), begins)

    def _begin(self, span: int) -> tuple[int, int]:
        events, items = self._files[span]
        return events.size // self._type.itemsize, items.size // self._width

    def _records(self, events: Events) -> NDArray[Any]:
        records = np.empty(len(events), self._type)
        for name, column in events.columns.items():
            records[name] = column
        records[MULTIPLICITY] = events.multiplicity
        return records


class BlockTable:
    """All blocks of a split: what lies in which bucket, and where."""

    def __init__(self, tasks: Sequence[list[Block]], spans: NDArray[np.int64]) -> None:
        """Take the blocks out of the lists of all tasks; ``spans`` are those of the ``SpillWriter``."""
        blocks = [block for task in tasks for block in task]
        empty = np.zeros((0, int(spans[-1]) + 1), np.uint32)
        self._spans = spans
        self._spills = np.array([block.spill for block in blocks], np.int64)
        self._events = np.concatenate([empty, *(block.events[None] for block in blocks)])
        self._items = np.concatenate([empty, *(block.items[None] for block in blocks)])
        self._begins = np.array([block.begins for block in blocks], np.int64).reshape(-1, len(spans) - 1, 2)
        for task in tasks:
            task.clear()  # a large range has many, and they are copied now

    def per_bucket(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count the events and the items of each of the buckets [first, last)."""
        events, items = (
            np.diff(each[:, first : last + 1].sum(axis=0, dtype=np.int64))
            for each in (self._events, self._items)
        )
        return events, items

    def segments(self, first: int, last: int) -> NDArray[np.int64]:
        """Find where the events of the buckets [first, last) are: [S, 6], for ``SpillReader.read``."""
        tables = [np.zeros((0, 6), np.int64)]
        for span, (begin, end) in enumerate(pairwise(self._spans.tolist())):
            low, high = max(first, begin), min(last, end)
            if low >= high:
                continue
            events, items = (each[:, [low, high]].astype(np.int64) for each in (self._events, self._items))
            rows = np.empty((len(events), 6), np.int64)
            rows[:, 0], rows[:, 1] = self._spills, span
            for column, limits in ((0, events), (1, items)):
                rows[:, 2 + 2 * column] = self._begins[:, span, column] + limits[:, 0]
                rows[:, 3 + 2 * column] = limits[:, 1] - limits[:, 0]
            tables.append(rows[rows[:, 3] > 0])
        return np.concatenate(tables)


class SpillReader:
    """Reads intervals of buckets from all spills of a folder, or events that were written by themselves."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout
        self._type = record_type(layout)
        self._open: dict[tuple[int, int], list[int]] = {}

    def read(self, segments: NDArray[np.int64]) -> Events:
        """Read [S, 6] segments (spill, span, first event, events, first item, items) end to end.

        The files of their spans are read ahead, those of earlier spans are closed.
        """
        if len(segments):
            self._close(int(segments[:, 1].min()))
        return self._read(segments, ahead=True)

    def one_by_one(self, segments: NDArray[np.int64]) -> Iterator[Events]:
        """Read each segment on its own, in order: never more than one at once, nor in the page cache."""
        width = 4 * len(self._layout.items)
        for index, (spill, span, _, _, first_item, items) in enumerate(segments.tolist()):
            yield self._read(segments[index : index + 1], ahead=False)
            fadvise(self._open[spill, span][1], "DONTNEED", first_item * width, max(items, 1) * width)

    def close(self) -> None:
        """Close all files."""
        self._close(_MOST_SPANS + 1)

    def _read(self, segments: NDArray[np.int64], *, ahead: bool) -> Events:
        records = np.empty(segments[:, 3].sum(), self._type)
        items = np.empty((segments[:, 5].sum(), len(self._layout.items)), np.float32)
        event = item = 0
        for spill, span, first_event, events, first_item, held in segments.tolist():
            handles = self._handles(spill, span, ahead=ahead)
            try:
                _read_at(handles[0], first_event, records[event : event + events])
                _read_at(handles[1], first_item, items[item : item + held])
            except EOFError:
                paths = " or ".join(map(str, _paths(self._folder, spill, span)))
                raise DataError(f"{paths}: damaged while the split ran; run the same command again") from None
            event += events
            item += held
        names = [name for name in records.dtype.names or () if name != MULTIPLICITY]
        columns = {name: np.ascontiguousarray(records[name]) for name in names}
        return Events(columns, np.ascontiguousarray(records[MULTIPLICITY]), items)

    def _handles(self, spill: int, span: int, *, ahead: bool) -> list[int]:
        if (spill, span) not in self._open:
            handles = self._open[spill, span] = []
            for path in _paths(self._folder, spill, span):
                handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                if ahead:
                    fadvise(handles[-1], "WILLNEED")
        return self._open[spill, span]

    def _close(self, below: int) -> None:
        """Close the files of the spans below a number."""
        for key in [each for each in self._open if each[1] < below]:
            for handle in self._open.pop(key):
                os.close(handle)


def remove_spans(folder: Path, end: int) -> None:
    """Delete the files of the spans before ``end``: all their shards are written."""
    for path in folder.glob("*.items"):
        if int(path.suffixes[0][1:]) < end:
            path.unlink()
            path.with_suffix(".events").unlink()


def _paths(folder: Path, number: int, span: int) -> tuple[Path, Path]:
    return folder / f"{number:04d}.{span:02d}.events", folder / f"{number:04d}.{span:02d}.items"


def _narrow(ends: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
    """Keep what grows with buckets and blocks small."""
    return ends.astype(np.uint32) if ends[-1] < 1 << 32 else ends


def _read_at(handle: int, first: int, out: NDArray[Any]) -> None:
    size = out.nbytes
    start = first * (size // max(len(out), 1))
    view = out.reshape(-1).view(np.uint8).data
    done = 0
    while done < size:  # one read returns 2 GiB at most
        count = os.preadv(handle, [view[done:]], start + done)
        if not count:
            raise EOFError
        done += count
