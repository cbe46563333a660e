"""Calls into code that the configuration names: whatever it raises becomes one line with its place."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core.errors import CrpipeError, ForeignError

if TYPE_CHECKING:
    from types import TracebackType


class Foreign:
    """Turn any exception inside the block into a ForeignError that begins with ``what``.

    The errors of crpipe itself pass unchanged, and so do KeyboardInterrupt and SystemExit.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise ForeignError in place of the block's exception."""
        if isinstance(error, Exception) and not isinstance(error, CrpipeError):
            raise ForeignError(f"{self._what}: {_line_of(error)}") from error


def _line_of(error: Exception) -> str:
    """Give kind, text and place of an exception on one line: ``KeyError: 'x' (mylab/hits.py, line 12)``."""
    text = " ".join(str(error).split())
    trace = traceback.extract_tb(error.__traceback__)
    # An import that fails ends in frames of Python's own import system, in files like <frozen importlib>.
    frames = [] if trace and trace[-1].filename.startswith("<") else trace
    if not frames:
        return f"{type(error).__name__}: {text}"
    last = frames[-1]
    place = "/".join(Path(last.filename).parts[-2:])
    return f"{type(error).__name__}: {text} ({place}, line {last.lineno})"
