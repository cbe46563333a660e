"""Readers of raw files: a path comes in, checked blocks of events of bounded memory go out.

``source.reader`` names the class; nothing is guessed from the columns of a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from crpipe.config.names import build
from crpipe.core.causes import Foreign
from crpipe.core.errors import ConfigError, ForeignError, FormatError, LayoutError
from crpipe.events.batch import Events
from crpipe.events.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from crpipe.events.tables import Tables

_MEMBERS = ("layout", "needs", "rows", "totals")


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


@runtime_checkable
class WritesRaw(Protocol):
    """A reader that can also write events in the schema of its raw files, for `crpipe shards export`."""

    def raw_table(self, events: Events) -> pa.Table:
        """Return one row per event; the schema is the same for any events, and for none."""


def open_reader(name: str, options: Mapping[str, Any]) -> Reader:
    """Build the reader ``module:Name``; raise ConfigError when it is none or its layout cannot be stored."""
    try:
        reader: Reader = build("source.reader", name, options, _MEMBERS)
        if not isinstance(reader.layout, Layout):
            raise ConfigError(f"source.reader: {name}.layout is no crpipe.events.layout.Layout")
        reader.layout.check()
    except LayoutError as error:
        raise ConfigError(f"source.reader: {name}: {error}") from error
    return reader


def check_needs(name: str, needs: Iterable[str], tables: Iterable[str]) -> None:
    """Raise ConfigError when a side table that the reader or workload ``name`` needs is not in ``tables``."""
    given = sorted(tables)
    missing = sorted({*needs} - {*given})
    if missing:
        raise ConfigError(
            f"source.tables: the table {missing[0]} is missing, which {name} needs (found: "
            f"{', '.join(given) or 'none'}); set source.tables: {{{missing[0]}: URI}} and run `crpipe tables`"
        )


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """The reader of a campaign, its options and the verified side tables: what a job or a worker opens."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tables: Tables = field(default_factory=dict)

    def open(self) -> CheckedReader:
        """Build the reader; raise ConfigError when it is none, or when a table that it needs is missing."""
        reader = open_reader(self.name, self.options)
        check_needs(self.name, reader.needs, self.tables)
        return CheckedReader(self.name, reader, self.tables)


class CheckedReader:
    """A reader whose blocks are checked against its layout, and whose exceptions name the file.

    What the reader raises, other than crpipe's own errors, becomes a ForeignError, and so does a block of
    another shape than the layout promises. Values are not judged here: ``validity`` does that.
    """

    def __init__(self, name: str, reader: Reader, tables: Tables) -> None:
        self.name = name
        self.layout = reader.layout
        self.reader = reader
        self._tables = tables

    def rows(self, path: Path) -> Iterator[Events]:
        """Yield all events in the order of the file; raise FormatError, or ForeignError for a wrong block."""
        guard = self._guard(path)
        with guard:
            blocks = iter(self.reader.rows(path, self._tables))
        row = 0
        while True:
            with guard:
                block = next(blocks, None)
            if block is None:
                return
            with guard:
                events = self._checked(block, path)
            if self.layout.fixed:
                _check_fixed(events, self.layout, path, row)
            row += len(events)
            yield events

    def totals(self, path: Path) -> tuple[int, int]:
        """Count events and items by the file's own account."""
        with self._guard(path):
            events, items = self.reader.totals(path, self._tables)
            return int(events), int(items)

    def _guard(self, path: Path) -> Foreign:
        return Foreign(
            f"{path}: the reader {self.name} failed (for a bad file it must raise crpipe's FormatError)", path
        )

    def _checked(self, block: Any, path: Path) -> Events:
        """Return the block with contiguous items; raise ForeignError naming the first wrong column."""
        problem = _problem_of(block, self.layout)
        if problem:
            raise ForeignError(f"{path}: the reader {self.name} yielded a wrong block: {problem}")
        if block.items.flags.c_contiguous:
            return block  # type: ignore[no-any-return]
        return Events(block.columns, block.multiplicity, np.ascontiguousarray(block.items))


def _problem_of(block: Any, layout: Layout) -> str:
    """Name the first part of a block that is not as the layout says; empty when all are."""
    if not isinstance(block, Events):
        return f"expected crpipe.events.batch.Events, found {type(block).__name__}"
    events = np.shape(block.multiplicity)[:1]
    wanted = {each.name: each.dtype for each in layout.events}
    missing = sorted(wanted.keys() - block.columns.keys())
    extra = sorted(block.columns.keys() - wanted.keys())
    if missing or extra:
        state, name = ("missing", missing[0]) if missing else ("not in the layout", extra[0])
        return f"column {name}: {state}; the layout has {', '.join(wanted)}"
    expected: list[tuple[str, Any, str, tuple[int, ...]]] = [
        ("multiplicity", block.multiplicity, "uint32", events or (0,))
    ]
    expected += [(f"column {name}", block.columns[name], kind, events) for name, kind in wanted.items()]
    counted = int(np.sum(block.multiplicity, dtype=np.int64))
    expected.append((layout.item, block.items, "float32", (counted, len(layout.items))))
    for name, values, kind, shape in expected:
        if not (isinstance(values, np.ndarray) and values.dtype == kind and values.shape == shape):
            found = _kind_of(values)
            sums = f" (the multiplicities sum to {counted})" if name == layout.item else ""
            return f"{name}: expected {kind} {list(shape)}{sums}, found {found}"
    return ""


def _kind_of(values: Any) -> str:
    if not isinstance(values, np.ndarray):
        return type(values).__name__
    return f"{values.dtype if values.dtype.isnative else values.dtype.str} {list(values.shape)}"


def _check_fixed(events: Events, layout: Layout, path: Path, row: int) -> None:
    """Raise FormatError for the first event that has another number of items than all must have."""
    wrong = events.multiplicity != layout.fixed
    if wrong.any():
        index = int(np.argmax(wrong))
        raise FormatError(
            f"{path}: row {row + index}: expected {layout.fixed} {layout.item} in each event, found "
            f"{events.multiplicity[index]}; choose the reader of its layout with source.reader, or have the "
            "file made again"
        )
