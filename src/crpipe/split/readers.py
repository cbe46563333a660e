"""Readers of raw files: a path comes in, bounded blocks of events go out.

``source.reader`` names the class; nothing is guessed from the columns of a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from crpipe.config.names import build
from crpipe.core.errors import ConfigError, LayoutError
from crpipe.events.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.events.batch import Events
    from crpipe.events.tables import Tables


class Reader(Protocol):
    """What reads one kind of raw file.

    layout: columns of the events and items that ``rows`` yields.
    needs: names in ``source.tables`` that the reader reads; empty for most.
    """

    layout: Layout
    needs: tuple[str, ...]

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of the file, in blocks of bounded memory.

        Raise FormatError (path, row, expected, found) when the file cannot be read whole.
        """

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events and items without decoding them, where the format allows; raise FormatError."""


def open_reader(name: str, options: Mapping[str, Any]) -> Reader:
    """Build the reader ``module:Name``; raise ConfigError when it is none or its layout cannot be stored."""
    reader: Reader = build("source.reader", name, options, ("layout", "needs", "rows", "totals"))
    if not isinstance(reader.layout, Layout):
        raise ConfigError(f"source.reader: {name}.layout is no crpipe.events.layout.Layout")
    try:
        reader.layout.check()
    except LayoutError as error:
        raise ConfigError(f"source.reader: {name}: {error}") from error
    return reader
