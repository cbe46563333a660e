"""What a reader converts, or leaves unread, in a file, for ledger, plan and inspect."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOTES: ContextVar[dict[str, None] | None] = ContextVar("notes", default=None)


def note(text: str) -> None:
    """Record what of a file is read in another form, or not at all; ``text`` names no path and no row.

    The same text of many files is kept once. A reader calls this in ``totals``.
    """
    notes = _NOTES.get()
    if notes is not None:
        notes[text] = None


@contextlib.contextmanager
def collected() -> Iterator[dict[str, None]]:
    """Collect what is noted inside the block, in order, each text once."""
    notes: dict[str, None] = {}
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)
