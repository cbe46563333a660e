"""Events in memory: columns with one value per event, and the items of all events end to end."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


_ITEM_AXES = 2


class MisfitError(ValueError):
    """Arrays do not fit each other; where a reader or workload made them, it becomes a PluginError."""


@dataclass(frozen=True, slots=True)
class Events:
    """A ragged block of N events and M items.

    columns: one array [N] per event column of the layout.
    multiplicity: [N] uint32, items of each event; sums to M.
    items: [M, K] float32, K item columns of the layout, event after event. C-contiguous; but each column by
        itself where a loader reads events of one large number of items. In both ways
        ``items.reshape(N, fixed, K)`` is a view. The shape (0, 0) means that the items were left out.

    Raise MisfitError for arrays that do not fit each other.
    """

    columns: dict[str, NDArray[Any]]
    multiplicity: NDArray[np.uint32]
    items: NDArray[np.float32]

    def __post_init__(self) -> None:
        """Check shapes, types and the sum: shifted items would look like a legal event each."""
        counts, items = self.multiplicity, self.items
        if not isinstance(counts, np.ndarray) or counts.ndim != 1 or counts.dtype.kind not in "ui":
            raise MisfitError(f"multiplicity: expected uint32 [N], found {spelled(counts)}")
        if not isinstance(items, np.ndarray) or items.ndim != _ITEM_AXES or items.dtype != np.float32:
            raise MisfitError(f"items: expected float32 [M, K], found {spelled(items)}")
        for name, column in self.columns.items():
            if not isinstance(column, np.ndarray) or column.shape[:1] != counts.shape:
                raise MisfitError(f"column {name}: expected [{len(counts)}], found {spelled(column)}")
        total = int(counts.sum())
        if total != len(items) and items.shape != (0, 0):
            raise MisfitError(f"items: expected {total}, the sum of the multiplicities, found {len(items)}")
        if counts.dtype.kind == "i" and len(counts) and counts.min() < 0:
            raise MisfitError(f"multiplicity: {counts.min()}, expected 0 or more")

    def __len__(self) -> int:
        """Count the events."""
        return len(self.multiplicity)

    def offsets(self) -> NDArray[np.int64]:
        """Start of each event in ``items``, and the end: [N + 1]."""
        return offsets(self.multiplicity)

    def part(self, start: int, end: int, ends: NDArray[np.int64] | None = None) -> Events:
        """Cut out the events from ``start`` to ``end``, without a copy; ``ends``: the offsets, if known."""
        ends = self.offsets() if ends is None else ends
        return derived(
            {name: column[start:end] for name, column in self.columns.items()},
            self.multiplicity[start:end],
            self.items[ends[start] : ends[end]],
        )

    def copy(self) -> Events:
        """Copy the events: what they were a part of can be freed."""
        columns = {name: column.copy() for name, column in self.columns.items()}
        return derived(columns, self.multiplicity.copy(), self.items.copy())

    def take(self, index: NDArray[np.integer[Any]]) -> Events:
        """Gather events in the order of ``index``, each with its own items.

        The index 0, 1, … N - 1 gives these events themselves, without a copy.
        """
        if np.array_equal(index, np.arange(len(self))):
            return self
        if not self.items.flags.c_contiguous and not np.any(np.diff(self.multiplicity)):
            return self._gather_columns(index)
        return self.gather(item_view(self.offsets(), self.items), index)

    def gather(self, view: pa.Array, index: NDArray[np.integer[Any]]) -> Events:
        """Gather as ``take`` does, with a ``view`` of the items that serves many gathers."""
        return derived(
            {name: column.take(index) for name, column in self.columns.items()},
            self.multiplicity.take(index),
            gather_items(view, index, self.items.shape[1]),
        )

    def _gather_columns(self, index: NDArray[np.integer[Any]]) -> Events:
        """Gather events with the same number of items, column by column; they stay columns."""
        width = self.items.shape[1]
        columns = [column.reshape(len(self), -1)[index] for column in self.items.T]
        return derived(
            {name: column.take(index) for name, column in self.columns.items()},
            self.multiplicity.take(index),
            np.stack(columns).reshape(width, -1).T,
        )


class Cursor(NamedTuple):
    """Position in the data stream: the epoch and the number of batches of it already delivered."""

    epoch: int
    batch: int


def derived(
    columns: dict[str, NDArray[Any]], multiplicity: NDArray[np.uint32], items: NDArray[np.float32]
) -> Events:
    """Make events of arrays that were cut or gathered from events: without the check, for loaders."""
    events = object.__new__(Events)
    object.__setattr__(events, "columns", columns)
    object.__setattr__(events, "multiplicity", multiplicity)
    object.__setattr__(events, "items", items)
    return events


def spelled(values: Any) -> str:
    """Name type and shape of an array, for messages."""
    if not isinstance(values, np.ndarray):
        return type(values).__name__
    return f"{values.dtype if values.dtype.isnative else values.dtype.str} {list(values.shape)}"


def offsets(multiplicity: NDArray[Any]) -> NDArray[np.int64]:
    """Turn N multiplicities into N + 1 offsets."""
    ends = np.zeros(len(multiplicity) + 1, np.int64)
    np.cumsum(multiplicity, out=ends[1:])
    return ends


def cut_lists(values: NDArray[Any], counts: NDArray[np.integer[Any]]) -> NDArray[np.object_]:
    """Cut ``values`` into one array for each event, without a copy: a predicted column of lists, [N].

    counts: [N] values of each event; they sum to the length of ``values``.
    """
    lists = np.empty(len(counts), object)
    for event, (start, end) in enumerate(pairwise(offsets(counts))):
        lists[event] = values[start:end]
    return lists


def item_view(starts: NDArray[np.int64], items: NDArray[np.float32]) -> pa.Array:
    """View items as one binary value per event, without a copy of rows: Arrow gathers at memcpy speed."""
    items = np.ascontiguousarray(items)
    width = items.shape[1] * items.itemsize
    large = int(starts[-1]) * width >= 2**31
    kind, dtype = (pa.large_binary(), np.int64) if large else (pa.binary(), np.int32)
    ends = (starts * width).astype(dtype)
    return pa.Array.from_buffers(kind, len(starts) - 1, [None, pa.py_buffer(ends), pa.py_buffer(items)])


def gather_items(view: pa.Array, index: NDArray[np.integer[Any]], columns: int) -> NDArray[np.float32]:
    """Gather the items of the events in ``index`` out of their ``item_view``, end to end: [M, columns]."""
    # pa.array would import pandas to look at the index: a quarter of a second of every process.
    buffer = pa.py_buffer(np.ascontiguousarray(index, np.int64))
    gathered = view.take(pa.Array.from_buffers(pa.int64(), len(index), [None, buffer]))
    values = gathered.buffers()[2]
    if values is None or values.size == 0:
        return np.zeros((0, columns), np.float32)
    return np.frombuffer(values, np.float32).reshape(-1, columns)


def concatenate(parts: Sequence[Events], items: NDArray[np.float32] | None = None) -> Events:
    """Join blocks of one layout end to end; at least one, and a single one is returned without a copy.

    items: those of the blocks end to end, if somebody has joined them already.
    """
    if len(parts) == 1:
        return parts[0]
    return derived(
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        np.concatenate([part.multiplicity for part in parts]),
        np.concatenate([part.items for part in parts]) if items is None else items,
    )


def cuts(multiplicity: NDArray[Any], max_events: int, max_items: int) -> Iterator[tuple[int, int]]:
    """Yield intervals [first, last) of events: as many as fit both limits, or one larger event."""
    starts = offsets(multiplicity)
    first = 0
    while first < len(multiplicity):
        fits = int(np.searchsorted(starts, starts[first] + max_items, side="right")) - 1
        last = max(first + 1, min(fits, first + max_events))
        yield first, last
        first = last


def regroup(blocks: Iterable[Events], max_events: int, max_items: int) -> Iterator[Events]:
    """Cut a stream of blocks into the groups that ``cuts`` gives; holds one group and one block."""
    held: list[Events] = []
    for block in blocks:
        if held and len(block) and block.multiplicity[0] > max_items:
            yield from _cut(concatenate(held), max_events, max_items)  # a giant event is never copied
            held = []
        held.append(block)
        if sum(map(len, held)) >= max_events or sum(len(part.items) for part in held) >= max_items:
            *whole, rest = _cut(concatenate(held), max_events, max_items)
            yield from whole
            held = [rest]
    if held:
        yield from _cut(concatenate(held), max_events, max_items)


def even_cuts(weights: NDArray[Any], parts: int) -> list[tuple[int, int]]:
    """Cut a sequence into at most ``parts`` intervals [first, last) of about equal weight."""
    ends = np.cumsum(weights)
    marks = ends[-1] * np.arange(1, parts) / parts if len(ends) else np.zeros(0)
    borders = np.unique([0, *(np.searchsorted(ends, marks) + 1), len(weights)])
    return [(int(first), int(last)) for first, last in pairwise(borders)]


def _cut(events: Events, max_events: int, max_items: int) -> Iterator[Events]:
    ends = events.offsets()
    for first, last in cuts(events.multiplicity, max_events, max_items):
        yield events.part(first, last, ends)
