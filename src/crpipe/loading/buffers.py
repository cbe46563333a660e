"""Buffers for items, used again when nobody holds a view of them any more.

Fresh memory of tens of megabytes for each window would cost as much as filling it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Buffers:
    """Hands out arrays of float32; remembers at most ``kept`` of their buffers, those in use included."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._known: list[tuple[NDArray[np.float32], weakref.ref[Any]]] = []

    def take(self, values: int) -> NDArray[np.float32]:
        """Give an array of ``values`` float32; its content is left over from an earlier use.

        It belongs to the caller as long as the array, or any view of it, exists.
        """
        free = [at for at, (_, user) in enumerate(self._known) if user() is None]
        fits = [at for at in free if len(self._known[at][0]) >= values]
        if fits:
            buffer, _ = self._known.pop(fits[0])
        else:
            # One that is too small goes first, else the oldest: its user may hold it for good.
            if len(self._known) >= self._kept:
                self._known.pop(free[0] if free else 0)
            buffer = np.empty(values + values // 8, np.float32)  # the next may be larger
        # All views of this array refer to it and not to the buffer, which it sees as plain bytes.
        array = np.frombuffer(buffer.data, np.float32, values)
        self._known.append((buffer, weakref.ref(array)))
        return array
