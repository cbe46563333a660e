"""The command line: parse, call one function, print."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def importing() -> Iterator[None]:
    """Import libraries without a search for garbage in between, nor later in what they made."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
