"""What a few raw files hold, before any split: columns, events, multiplicities, groups."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.events.validity import find_invalid_events
from crpipe.split.grouping import MOST_ROWS, doubtful_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.readers import CheckedReader, ReaderChoice
    from crpipe.events.layout import Layout

SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FileSample:
    """What was read. files, bytes, events, items: of the files that were counted.

    columns: dtype of each column of the first file. multiplicities: those of the events that were read;
    groups: how many groups these belong to; doubt: why the group columns look wrong; mostly empty. invalid:
    how many of them hold an illegal value; reason: the first of these. notes: what the reader converted, or
    did not read, in the files that were counted.
    """

    columns: Mapping[str, str]
    files: int
    bytes: int
    events: int
    items: int
    multiplicities: NDArray[np.uint32]
    groups: int
    invalid: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()
    doubt: str = ""


@dataclass(slots=True)
class _Read:
    """What was read of one file, as a ``FileSample`` gives it; first: columns of the first blocks."""

    multiplicities: list[NDArray[np.uint32]] = field(default_factory=lambda: [np.zeros(0, np.uint32)])
    groups: set[bytes] = field(default_factory=set)
    first: list[Mapping[str, NDArray[Any]]] = field(default_factory=list)
    invalid: int = 0
    reason: str = ""

    def doubt(self, layout: Layout) -> str:
        """Say why the group columns look wrong, from the rows that were read."""
        names = self.first[0] if self.first else ()
        columns = {name: np.concatenate([each[name] for each in self.first]) for name in names}
        return doubtful_groups(columns, layout)


def read_sample(choice: ReaderChoice, files: Sequence[Path], seconds: float = SECONDS) -> FileSample:
    """Read the first file (as much as the time allows, at least one block), and count the others.

    Raise FormatError or ForeignError for a file that the reader cannot read.
    """
    end = time.monotonic() + seconds
    reader = choice.open()
    seen = _rows(reader, files[0], end)
    counted = taken = events = items = 0
    for path in files:
        if counted and time.monotonic() > end:
            break
        found = reader.totals(path)
        events, items = events + found[0], items + found[1]
        counted, taken = counted + 1, taken + path.stat().st_size
    return FileSample(
        columns_of(files[0], reader),
        *(counted, taken, events, items),
        *(np.concatenate(seen.multiplicities), len(seen.groups), seen.invalid, seen.reason),
        tuple(reader.notes),
        seen.doubt(reader.layout),
    )


def columns_of(path: Path, reader: CheckedReader) -> dict[str, str]:
    """Name the columns of a Parquet file with their types; for other files, those that the reader gives."""
    try:
        return {each.name: str(each.type) for each in pq.read_schema(path)}
    except (pa.ArrowException, OSError):
        layout = reader.layout
        events = {each.name: each.dtype for each in layout.events}
        return events | {f"{layout.item}.{each.name}": each.dtype for each in layout.items}


def _rows(reader: CheckedReader, path: Path, end: float) -> _Read:
    """Read a file until the time is over, at least one block; its values are judged as the split does."""
    found, row = _Read(), 0
    names = reader.layout.group
    for block in reader.rows(path):
        if sum(map(len, found.multiplicities)) < MOST_ROWS:
            found.first.append(block.columns)
        found.multiplicities.append(block.multiplicity)
        columns = np.rec.fromarrays([np.ascontiguousarray(block.columns[name]) for name in names])
        found.groups.update(each.tobytes() for each in np.unique(columns))
        reasons = find_invalid_events(block, reader.layout)
        if reasons and not found.reason:
            first = min(reasons)
            found.reason = f"row {row + first}: {reasons[first]}"
        found.invalid += len(reasons)
        row += len(block)
        if time.monotonic() > end:
            break
    return found
