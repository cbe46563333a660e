"""The items of one window in memory, in two forms: as rows or as columns.

Decoders fill them, in tasks that run side by side; the items of batches come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from crpipe.events.batch import gather_items, item_view, offsets
from crpipe.loading.buffers import Buffers
from crpipe.loading.order import LEAST_WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from crpipe.events.shard_streams import RowStream

AHEAD_ITEMS = 1 << 23  # a window of so many is not decoded before the one before it is handed out


class Items(Protocol):
    """The items of a window's events: they are filled in reading order, and then read as shuffled."""

    def fill(self, stream: RowStream, first: int, last: int, columns: Iterable[int]) -> None:
        """Fill the items [first, last) of the window with the next rows of a stream of ``columns``."""

    def part(self, low: int, high: int) -> NDArray[np.float32]:
        """Give the items of the shuffled events [low, high), end to end: [M, K]."""


class ItemRows:
    """Events of any size, in reading order. Arrow gathers them at memcpy speed, batch by batch."""

    def __init__(
        self, multiplicity: NDArray[np.uint32], permutation: NDArray[np.int64], room: NDArray[np.float32]
    ) -> None:
        self._permutation = permutation
        self._room = room
        self._view = item_view(offsets(multiplicity), room)

    def fill(self, stream: RowStream, first: int, last: int, columns: Iterable[int]) -> None:
        """Fill the items [first, last) of the window with the next rows of a stream of ``columns``."""
        stream.fill(last - first, [self._room[first:last, column] for column in columns])

    def part(self, low: int, high: int) -> NDArray[np.float32]:
        """Give the items of the shuffled events [low, high), end to end: [M, K], C-contiguous."""
        return gather_items(self._view, self._permutation[low:high], self._room.shape[1])


class ItemColumns:
    """Events of ``fixed`` items each, every column by itself; each event is decoded to its shuffled place.

    So nothing is left to do for a batch, and nothing puts the columns side by side: that would cost more than
    half as much as decoding, and who needs single columns would have to take them apart again.
    """

    def __init__(self, fixed: int, permutation: NDArray[np.int64], room: NDArray[np.float32]) -> None:
        """room: [K, N, fixed]."""
        self._fixed = fixed
        self._place = np.empty_like(permutation)
        self._place[permutation] = np.arange(len(permutation))
        self._room = room

    def fill(self, stream: RowStream, first: int, last: int, columns: Iterable[int]) -> None:
        """Fill the items [first, last) of the window with the next rows of a stream of ``columns``.

        The interval and the stream's blocks hold whole events.
        """
        rooms = [self._room[column] for column in columns]
        done = first // self._fixed
        for values, low, high in stream.take(last - first):
            places = self._place[done : done + (high - low) // self._fixed]
            for room, column in zip(rooms, values, strict=True):
                room[places] = column[low:high].reshape(-1, self._fixed)
            done += len(places)

    def part(self, low: int, high: int) -> NDArray[np.float32]:
        """Give the items of the shuffled events [low, high), end to end: [M, K], a view of columns."""
        return self._room[:, low:high].reshape(len(self._room), -1, copy=False).T


class Rooms:
    """Makes the memory of windows, and uses it again.

    fixed: items of every event, if windows hold their items as columns; else 0, and they hold them as rows.
    """

    def __init__(self, width: int, fixed: int, prefetch: int) -> None:
        """prefetch: batches that wait while others are made."""
        self.fixed = fixed
        self._width = width
        # This window, the next one, and those of batches that wait or that the consumer has. Rows are copied
        # into batches: there is one window.
        self._windows = Buffers(3 + prefetch // LEAST_WINDOW)
        self._batches = Buffers(2 + prefetch // LEAST_WINDOW)
        self._rows = np.empty((0, width), np.float32)

    def window(self, multiplicity: NDArray[np.uint32], permutation: NDArray[np.int64]) -> Items:
        """Make room for the items of a window's events; rows of an earlier window are lost.

        multiplicity: of the events in reading order. permutation: which of them comes at each place.
        """
        if self.fixed:
            room = self._windows.take(self._width * len(multiplicity) * self.fixed)
            shape = self._width, len(multiplicity), self.fixed
            return ItemColumns(self.fixed, permutation, room.reshape(shape))
        items = int(multiplicity.sum(dtype=np.int64))
        if len(self._rows) < items:
            self._rows = np.empty((0, self._width), np.float32)  # before the larger one is there
            self._rows = np.empty((items + items // 8, self._width), np.float32)
        return ItemRows(multiplicity, permutation, self._rows[:items])

    def joined(self, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Join the items of parts of a batch, end to end: [M, K]; a single one is not copied."""
        if len(parts) == 1 or not self.fixed:
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        items = sum(map(len, parts))
        columns = self._batches.take(self._width * items).reshape(self._width, items)
        return np.concatenate([part.T for part in parts], axis=1, out=columns).T
