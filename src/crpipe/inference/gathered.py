"""Blocks joined end to end, without a second copy of their items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from crpipe.events.batch import Events

if TYPE_CHECKING:
    from crpipe.train.workload import Columns

_SPARE = 8  # an eighth more than needed: so the buffer is seldom enlarged


class GatheredColumns:
    """Columns of all blocks."""

    def __init__(self) -> None:
        self._blocks: list[Columns] = []

    def add(self, block: Columns) -> None:
        """Add a copy of the columns of one block; all blocks have the same names.

        A view would hold the window that a loader cut the block out of: tens of thousands of events for each
        range, however few of them are compared.
        """
        self._blocks.append({name: values.copy() for name, values in block.items()})

    def columns(self) -> Columns:
        """Join them."""
        names = self._blocks[0] if self._blocks else {}
        return {name: np.concatenate([block[name] for block in self._blocks]) for name in names}


class GatheredEvents:
    """Events of all blocks; with ``items`` false their items are left out."""

    def __init__(self, *, items: bool) -> None:
        self._keeps_items = items
        self._columns = GatheredColumns()
        self._multiplicity: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
        self._items = np.empty((0, 0), np.float32)
        self._filled = 0

    def add(self, block: Events) -> None:
        """Add one block."""
        self._columns.add(block.columns)
        self._multiplicity.append(block.multiplicity.copy())
        width = block.items.shape[1]
        if self._items.shape[1] != width:
            self._items = np.empty((0, width), np.float32)
        if self._keeps_items:
            end = self._filled + len(block.items)
            if end > len(self._items):
                # The system enlarges a large buffer in place, without a copy beside the old one.
                self._items.resize((end + end // _SPARE, width), refcheck=False)
            self._items[self._filled : end] = block.items
            self._filled = end

    def events(self) -> Events:
        """Join them."""
        items = self._items[: self._filled] if self._keeps_items else np.empty((0, 0), np.float32)
        return Events(self._columns.columns(), np.concatenate(self._multiplicity), items)
