"""What a few raw files hold, before any split: columns, events, multiplicities, groups."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.events.grouping import MOST_ROWS, doubtful_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.split.readers import CheckedReader, ReaderChoice

SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class FileSample:
    """What was read. files, bytes, events, items: of the files that were counted.

    columns: dtype of each column of the first file. multiplicities: those of the events that were read;
    groups: how many groups these belong to. doubt: why the group columns look wrong; mostly empty.
    """

    columns: Mapping[str, str]
    files: int
    bytes: int
    events: int
    items: int
    multiplicities: NDArray[np.uint32]
    groups: int
    doubt: str = ""


def read_sample(choice: ReaderChoice, files: Sequence[Path], seconds: float = SECONDS) -> FileSample:
    """Read the first file (as much as the time allows, at least one block), and count the others.

    Raise FormatError or ForeignError for a file that the reader cannot read.
    """
    end = time.monotonic() + seconds
    reader = choice.open()
    multiplicities, groups, doubt = _rows(reader, files[0], end)
    counted = taken = events = items = 0
    for path in files:
        if counted and time.monotonic() > end:
            break
        found = reader.totals(path)
        events, items = events + found[0], items + found[1]
        counted, taken = counted + 1, taken + path.stat().st_size
    return FileSample(
        columns_of(files[0], reader), counted, taken, events, items, multiplicities, groups, doubt
    )


def columns_of(path: Path, reader: CheckedReader) -> dict[str, str]:
    """Name the columns of a Parquet file with their types; for other files, those that the reader gives."""
    try:
        return {field.name: str(field.type) for field in pq.read_schema(path)}
    except (pa.ArrowException, OSError):
        layout = reader.layout
        events = {each.name: each.dtype for each in layout.events}
        return events | {f"{layout.item}.{each.name}": each.dtype for each in layout.items}


def _rows(reader: CheckedReader, path: Path, end: float) -> tuple[NDArray[np.uint32], int, str]:
    found = [np.zeros(0, np.uint32)]
    names = reader.layout.group
    groups: set[bytes] = set()
    first: list[Mapping[str, NDArray[Any]]] = []
    for block in reader.rows(path):
        if sum(map(len, found)) < MOST_ROWS:
            first.append(block.columns)
        found.append(block.multiplicity)
        columns = np.rec.fromarrays([np.ascontiguousarray(block.columns[name]) for name in names])
        groups.update(row.tobytes() for row in np.unique(columns))
        if time.monotonic() > end:
            break
    read = {name: np.concatenate([each[name] for each in first]) for name in (first[0] if first else ())}
    return np.concatenate(found), len(groups), doubtful_groups(read, reader.layout)
