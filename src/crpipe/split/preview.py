"""Looks at raw files before a split: what a few of them hold, and which thresholds set how much aside."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.events.validity import find_invalid_events
from crpipe.split.grouping import MOST_ROWS, doubtful_groups
from crpipe.split.parts import add_counts, quantile_of
from crpipe.split.plausibility import ColumnValues, EventSample, doubtful_values, summarize_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.readers import CheckedReader, ReaderChoice

SECONDS = 10.0
_PER_DECADE = 10  # thresholds to choose from
_RECOMMENDED = 0.999  # share of the events that are no outliers


@dataclass(frozen=True, slots=True)
class FileSample:
    """One raw file as the configured reader reads it, and how many events the files beside it have.

    name: path or URI. reader: what read it. columns: dtype of each column of the file, or of the layout.
    files, bytes, events, items: sums over the files that were counted. rows: events of the first file that
    were read; groups: how many groups they belong to; doubt: why the group columns look wrong, mostly empty.
    Of the events that were read in all files: largest: items of the largest; below: share of those that are
    no outliers; recommended: threshold that at most one of a thousand exceeds; 0 where none was read. notes:
    what the reader converted, or did not read. values: of each column, in the first events of the files that
    were counted; doubts: what looks wrong in them, and what to do.
    """

    name: str
    reader: str
    columns: Mapping[str, str]
    files: int
    bytes: int
    events: int
    items: int
    rows: int
    groups: int
    largest: int
    below: float
    recommended: int = 0
    notes: tuple[str, ...] = ()
    doubt: str = ""
    values: tuple[ColumnValues, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rows:
    """What was read of one file. first: columns of the first blocks; reason: of the first illegal event."""

    multiplicities: list[NDArray[np.uint32]] = field(default_factory=lambda: [np.zeros(0, np.uint32)])
    groups: set[bytes] = field(default_factory=set)
    first: list[Mapping[str, NDArray[Any]]] = field(default_factory=list)
    illegal: int = 0
    reason: str = ""


def read_sample(
    choice: ReaderChoice, files: Sequence[Path], limit: int | None = None, seconds: float = SECONDS
) -> tuple[FileSample, str]:
    """Read the first file (as much as the time allows, at least one block), and count the others.

    The first block of the others is read too, as far as the time allows: their values and multiplicities.

    limit: most items of an event that is no outlier. Also return which of its values are illegal, and how
    many; empty where the split would take all. Raise FormatError or PluginError for a file that the reader
    cannot read.
    """
    end = time.monotonic() + seconds
    reader = choice.open()
    values = EventSample(reader.layout, reader.expectations, len(files))
    rows = _read_rows(reader, files[0], end, values)
    others: list[NDArray[np.uint32]] = []
    counted = taken = events = items = 0
    for path in files:
        if counted and time.monotonic() > end:
            break
        totals = reader.totals(path)
        events, items = events + totals[0], items + totals[1]
        counted, taken = counted + 1, taken + path.stat().st_size
        if path != files[0] and time.monotonic() < end - seconds / 2:
            values.add_file()
            for block in islice(reader.rows(path), 1):
                values.add(block)
                others.append(block.multiplicity)
    read = len(np.concatenate(rows.multiplicities))  # of the first file
    counts = np.concatenate([*rows.multiplicities, *others])
    tally: dict[int, int] = {}
    add_counts(tally, counts)
    names = rows.first[0] if rows.first else ()
    columns = {name: np.concatenate([block[name] for block in rows.first]) for name in names}
    sample = FileSample(
        name=str(files[0]),
        reader=choice.name,
        columns=_columns_of(files[0], reader),
        files=counted,
        bytes=taken,
        events=events,
        items=items,
        rows=read,
        groups=len(rows.groups),
        largest=int(counts[counts <= limit].max(initial=0)) if limit else int(counts.max(initial=0)),
        below=float((counts <= limit).mean()) if limit is not None and len(counts) else 1.0,
        recommended=recommended_threshold(tally)[0] if tally else 0,
        notes=tuple(reader.notes),
        doubt=doubtful_groups(columns, reader.layout),
        values=summarize_columns(values),
        doubts=tuple(doubtful_values(values)),
    )
    share = f"{rows.illegal} of the {read} events that were read are illegal"
    return sample, f"{rows.reason} ({share})" if rows.illegal else ""


def _columns_of(path: Path, reader: CheckedReader) -> dict[str, str]:
    """Name the columns of a Parquet file with their types; for other files, those that the reader gives."""
    try:
        return {each.name: str(each.type) for each in pq.read_schema(path)}
    except (pa.ArrowException, OSError):
        layout = reader.layout
        events = {each.name: each.dtype for each in layout.events}
        return events | {f"{layout.item}.{each.name}": each.dtype for each in layout.items}


def _read_rows(reader: CheckedReader, path: Path, end: float, values: EventSample) -> _Rows:
    """Read a file until the time is over, at least one block; check its values as the split does.

    values: gets its first events.
    """
    rows, row = _Rows(), 0
    values.add_file()
    for block in reader.rows(path):
        values.add(block)
        if row < MOST_ROWS:
            rows.first.append(block.columns)
        rows.multiplicities.append(block.multiplicity)
        columns = [np.ascontiguousarray(block.columns[name]) for name in reader.layout.group]
        rows.groups.update(group.tobytes() for group in np.unique(np.rec.fromarrays(columns)))
        reasons = find_invalid_events(block, reader.layout, reader.expectations)
        if reasons and not rows.reason:
            first = min(reasons)
            rows.reason = f"row {row + first}: {reasons[first]}"
        rows.illegal += len(reasons)
        row += len(block)
        if time.monotonic() > end:
            break
    return rows


def recommended_threshold(counts: dict[int, int]) -> tuple[int, float]:
    """Return the smallest tabulated threshold that at most one of a thousand events exceeds, and which share.

    counts: events by multiplicity, not empty.
    """
    least = max(quantile_of(counts, _RECOMMENDED), 1)
    thresholds = (round(10 ** (step / _PER_DECADE)) for step in range(1, 200))
    threshold = next(value for value in thresholds if value >= least)
    aside = sum(events for value, events in counts.items() if value > threshold) / sum(counts.values())
    return threshold, aside
