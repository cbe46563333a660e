"""Buffers for batches, used again when nobody holds the batch any more.

Fresh memory of tens of megabytes for each batch would cost more than half as much as filling it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Buffers:
    """Hands out arrays of items; remembers at most ``kept`` buffers, those in use included."""

    def __init__(self, width: int, kept: int) -> None:
        self._width = width
        self._kept = kept
        self._known: list[tuple[NDArray[np.float32], weakref.ref[Any]]] = []

    def take(self, items: int) -> NDArray[np.float32]:
        """Give an array of ``items`` rows, [items, K] float32; its content is left over from an earlier use.

        It belongs to the caller as long as the array, or any view of it, exists.
        """
        values = items * self._width
        free = [at for at, (_, user) in enumerate(self._known) if user() is None]
        fits = [at for at in free if len(self._known[at][0]) >= values]
        # One that is too small goes first, else the oldest: its user may hold it for good.
        if fits:
            buffer, _ = self._known.pop(fits[0])
        else:
            if len(self._known) >= self._kept:
                self._known.pop(free[0] if free else 0)
            buffer = np.empty(values + values // 64, np.float32)
        # All views of this array refer to it and not to the buffer, which it sees as plain bytes.
        array = np.frombuffer(buffer.data, np.float32, values)
        self._known.append((buffer, weakref.ref(array)))
        return array.reshape(items, self._width)
