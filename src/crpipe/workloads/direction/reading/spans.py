"""Which rows of a file of pulses belong to which event, from the metadata: checked, in the file's order."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.core.errors import FormatError
from crpipe.core.raw_files import open_parquet
from crpipe.workloads.direction.reading import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

KEY = b"event_metadata"
ANGLES = ("azimuth", "zenith")
_BATCH = "batch_id"
_FIRST, _LAST = "first_pulse_index", "last_pulse_index"
_IDS = ("event_id", _FIRST, _LAST)


@dataclass(frozen=True, slots=True)
class Spans:
    """The events of one file, in the order of its pulses.

    path, rows: the metadata, and the row there of each event, for messages. multiplicity: pulses of each
    event, uint32. columns: event_id int64, and the truth, float64. All [N].
    """

    path: Path
    rows: NDArray[np.int64]
    multiplicity: NDArray[np.uint32]
    columns: dict[str, NDArray[Any]]


def embed(metadata: pa.Table) -> bytes:
    """Spell metadata as bytes for the key ``KEY`` of a Parquet footer: base64 of an Arrow stream (zstd)."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, metadata.schema, options=options) as stream:
        stream.write_table(metadata)
    return base64.b64encode(sink.getvalue())


def embedded(schema: pa.Schema) -> pa.Table | None:
    """Read what ``embed`` made from the schema of a Parquet file; None when it has none."""
    text = (schema.metadata or {}).get(KEY)
    if text is None:
        return None
    with pa.ipc.open_stream(base64.b64decode(text, validate=True)) as stream:
        return stream.read_all()


def read_spans(meta: Path, number: int, truth: Sequence[str], pulses: Path, total: int) -> Spans:
    """Find the events of file ``number`` in the metadata of all files; ``pulses`` has ``total`` rows.

    Memory is bounded by one file's events: row groups without this number in their statistics are skipped,
    others are streamed, their other columns only where the number occurs. Metadata without angles, such as
    test_meta.parquet, gives NaN for them, and for what else it lacks of ``truth``.
    Raise FormatError for metadata without these events, or whose spans do not fit the file.
    """
    with columns.reading(meta), open_parquet(meta) as file:
        schema = file.schema_arrow
        columns.check_columns(meta, schema, {_BATCH: columns.INTEGER})
        names = _check(meta, schema, truth)
        found = list(_rows_of(meta, file, number, names))
    if not found:
        raise FormatError(
            f"{meta}: no row has batch_id {number}, the number of {pulses}; name the metadata of these files "
            "in source.tables, as meta (of a prediction: with --table meta=FILE)"
        )
    rows = np.concatenate([each for each, _ in found])
    joined = {name: np.concatenate([each[name] for _, each in found]) for name in names}
    return _spans(meta, rows, joined, truth, pulses, total)


def embedded_spans(path: Path, schema: pa.Schema, truth: Sequence[str], total: int) -> Spans:
    """Find the events of a simulated file of ``total`` pulses in its own footer; raise FormatError."""
    table = embedded(schema)
    if table is None:
        raise FormatError(
            f"{path}: the footer has no {KEY.decode()}, so it is no simulated file; files with a table of "
            "metadata need source.reader: crpipe.workloads.direction.reading.kaggle:KaggleFiles"
        )
    names = _check(path, table.schema, truth)
    batch = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    found = {name: columns.values(path, batch[0], name, 0) for name in names}
    return _spans(path, np.arange(table.num_rows), found, truth, path, total)


def _check(path: Path, schema: pa.Schema, truth: Sequence[str]) -> list[str]:
    """Name the columns to read; with one angle all of ``truth`` must be there."""
    labelled = any(name in schema.names for name in ANGLES)
    there = [name for name in (*ANGLES, *truth) if labelled or name in schema.names]
    kinds = dict.fromkeys(_IDS, columns.INTEGER) | dict.fromkeys(there, columns.REAL)
    columns.check_columns(path, schema, kinds)
    return list(kinds)


def _rows_of(
    meta: Path, file: pq.ParquetFile, number: int, names: list[str]
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
    """Yield the rows of the metadata that belong to a file, and their values."""
    start = 0
    for group in range(file.num_row_groups):
        length = file.metadata.row_group(group).num_rows
        if _may_hold(file, group, number):
            rows = _matches(meta, file, group, number, start)
            if len(rows):
                yield from _values_at(meta, file, group, names, rows, start)
        start += length


def _may_hold(file: pq.ParquetFile, group: int, number: int) -> bool:
    column = file.metadata.row_group(group).column(file.schema_arrow.get_field_index(_BATCH))
    bounds = column.statistics
    return bounds is None or not bounds.has_min_max or bounds.min <= number <= bounds.max


def _matches(meta: Path, file: pq.ParquetFile, group: int, number: int, start: int) -> NDArray[np.int64]:
    """Find the rows of one row group that belong to a file; the group begins at row ``start``."""
    found = []
    for batch in columns.batches(file, [_BATCH], [group]):
        found.append(start + np.flatnonzero(columns.values(meta, batch, _BATCH, start) == number))
        start += batch.num_rows
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _values_at(
    meta: Path, file: pq.ParquetFile, group: int, names: list[str], rows: NDArray[np.int64], start: int
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
    """Yield the values at ascending ``rows``; batches after the last of them are not decoded."""
    for batch in columns.batches(file, names, [group]):
        first, last = np.searchsorted(rows, [start, start + batch.num_rows])
        if last > first:
            inside = rows[first:last]
            chosen = batch.slice(inside[0] - start, inside[-1] - inside[0] + 1)
            found = {name: columns.values(meta, chosen, name, int(inside[0])) for name in names}
            yield inside, {name: each[inside - inside[0]] for name, each in found.items()}
        if last == len(rows):
            return
        start += batch.num_rows


def _spans(
    meta: Path,
    rows: NDArray[np.int64],
    found: dict[str, NDArray[Any]],
    truth: Sequence[str],
    pulses: Path,
    total: int,
) -> Spans:
    """Order events by their pulses; raise FormatError unless they cover the file, each pulse once."""
    order = np.lexsort((found[_LAST], found[_FIRST]))
    ids, first, last = (found[name][order].astype(np.int64) for name in _IDS)
    rows = rows[order]
    _check_spans(meta, rows, (ids, first, last), pulses, total)
    unknown = np.full(len(rows), np.nan)
    wanted = (*ANGLES, *(name for name in truth if name not in ANGLES))
    labels = {name: found[name][order].astype(np.float64) if name in found else unknown for name in wanted}
    return Spans(meta, rows, (last - first + 1).astype(np.uint32), {"event_id": ids, **labels})


def _check_spans(
    meta: Path, rows: NDArray[np.int64], spans: Sequence[NDArray[np.int64]], pulses: Path, total: int
) -> None:
    """Compare spans, sorted, with the rows of the file.

    Example: the spans 0 to 4, 5 to 9 fit a file of 10 pulses; 0 to 4, 4 to 9 overlap; 0 to 4, 6 to 9 leave a
    gap. A span that ends one before it begins holds no pulse.
    """
    ids, first, last = spans
    starts = np.concatenate([[0], last[:-1] + 1])
    problems = (
        ((first < 0) | (last >= total), f"leaves the file, which has {total} rows"),
        (last < first - 1, "ends before it begins"),
        (first < starts, "overlaps with the span before"),
        (first > starts, "leaves a gap before it"),
    )
    fix = "give the metadata that was made with this file in source.tables, as meta, or have it copied again"
    for wrong, problem in problems:
        if wrong.any():
            at = int(np.argmax(wrong))
            raise FormatError(
                f"{pulses}: the span of event {ids[at]}, pulses {first[at]} to {last[at]} (row {rows[at]} of "
                f"{meta}), {problem}; {fix}"
            )
    known = int(last[-1]) + 1 if len(last) else 0
    if known != total:
        raise FormatError(
            f"{pulses}: row {known}: the {len(ids)} events in {meta} have {known} pulses, the file has "
            f"{total}; {fix}"
        )
