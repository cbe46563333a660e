"""How this process handles memory that it has freed."""

from __future__ import annotations

import contextlib
import ctypes

import pyarrow as pa

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # mallopt(3)
_KEPT = 64 << 20


def keep_freed_memory() -> None:
    """Use freed memory again instead of handing it back to the system.

    Arrow's own allocator and glibc both return what one block of a few MB needed, and fetch it again for the
    next: the kernel then clears page after page. Blocks above 64 MiB, from giant events, still go back.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError):  # another C library: no worse than before
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _KEPT)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _KEPT)
