"""What a damaged file makes its library raise, as an error of the file."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crpipe.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def reading(path: Path, *damaged: type[Exception]) -> Iterator[None]:
    """Turn the exceptions ``damaged`` into a FormatError that names the file."""
    try:
        yield
    except damaged as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(
            f"{path}: cannot be read whole ({text[:300]}); it is truncated, damaged or of another format; "
            "have it copied or made again"
        ) from error
