"""The items of one window in memory, in two forms, and how the items of some of its events are gathered.

Decoded rows or columns of items come in; the items of a batch go out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from crpipe.events.batch import gather_items, item_view, offsets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# From so many items on, all events having the same number, an event is copied by itself: the calls of numpy
# for it cost less than a second copy of the whole window.
LARGE = 512


class Items(Protocol):
    """The items of a window's events."""

    def gather(self, index: NDArray[np.int64], out: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Gather the items of the events in ``index``, end to end: [M, K]; in ``out``, if that is given."""


class ItemRows:
    """The items of a window end to end: [M, K]. Arrow gathers events of any size at memcpy speed."""

    def __init__(self, multiplicity: NDArray[np.uint32], items: NDArray[np.float32]) -> None:
        self._view = item_view(offsets(multiplicity), items)
        self._width = items.shape[1]

    def gather(self, index: NDArray[np.int64], out: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Gather the items of the events in ``index``, end to end: [M, K]."""
        if out is not None:
            raise ValueError("rows are gathered into an array of their own")
        return gather_items(self._view, index, self._width)


class ItemColumns:
    """The items of a window as columns, ``fixed`` for every event; the columns meet in the batch.

    items: [M, K], each column contiguous.
    """

    def __init__(self, fixed: int, items: NDArray[np.float32]) -> None:
        self._fixed = fixed
        self._columns = list(items.T)

    def gather(self, index: NDArray[np.int64], out: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """Gather the items of the events in ``index`` into ``out``, [M, K], which must be given."""
        if out is None:
            raise ValueError("columns are gathered into an array that the caller gives")
        fixed = self._fixed
        events = out.reshape(len(index), fixed, len(self._columns))
        for event, row in zip(events, (index * fixed).tolist(), strict=True):
            for column, values in enumerate(self._columns):
                event[:, column] = values[row : row + fixed]
        return out
