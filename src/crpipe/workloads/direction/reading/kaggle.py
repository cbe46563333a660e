"""Files of pulses as of the Kaggle challenge: one row per pulse in, bounded blocks of events out."""

from __future__ import annotations

import abc
import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events, cuts, offsets
from crpipe.events.layout import Field, Layout
from crpipe.workloads.common.raw_files import note_unread, open_parquet
from crpipe.workloads.direction.layout import (
    ENERGY,
    EXACT_NS,
    EXPECTATIONS,
    PULSES_WITH_ENERGY,
    pulses,
    read_geometry,
)
from crpipe.workloads.direction.reading import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.workloads.direction.reading.options import KaggleFilesOptions

# Which rows of a file of pulses belong to which event, from the metadata: checked, in the file's order.

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
    """Format metadata as bytes for the key ``KEY`` of a Parquet footer: base64 of an Arrow stream (zstd)."""
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
    with open_parquet(meta) as file:
        schema = file.schema_arrow
        columns.check_columns(meta, schema, {_BATCH: columns.INTEGER})
        names = _check(meta, schema, truth)
        parts = list(_rows_of(meta, file, number, names))
    if not parts:
        raise FormatError(
            f"{meta}: no row has batch_id {number}, the number of {pulses}; name the metadata of these files "
            "in source.tables, as meta (of a prediction: with --table meta=FILE)"
        )
    rows = np.concatenate([each for each, _ in parts])
    joined = {name: np.concatenate([each[name] for _, each in parts]) for name in names}
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
    values = {name: columns.values(path, batch[0], name, 0) for name in names}
    return _spans(path, np.arange(table.num_rows), values, truth, path, total)


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
            parts, row = [np.zeros(0, np.int64)], start
            for batch in columns.batches(file, [_BATCH], [group]):
                parts.append(row + np.flatnonzero(columns.values(meta, batch, _BATCH, row) == number))
                row += batch.num_rows
            rows = np.concatenate(parts)
            if len(rows):
                yield from _values_at(meta, file, group, names, rows, start)
        start += length


def _may_hold(file: pq.ParquetFile, group: int, number: int) -> bool:
    footer = file.metadata.row_group(group)  # columns of structs count one by one there
    leaves = (footer.column(index) for index in range(footer.num_columns))
    bounds = next(leaf.statistics for leaf in leaves if leaf.path_in_schema == _BATCH)
    return bounds is None or not bounds.has_min_max or bounds.min <= number <= bounds.max


def _values_at(
    meta: Path, file: pq.ParquetFile, group: int, names: list[str], rows: NDArray[np.int64], start: int
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]]:
    """Yield the values at ascending ``rows``; batches after the last of them are not decoded."""
    for batch in columns.batches(file, names, [group]):
        first, last = np.searchsorted(rows, [start, start + batch.num_rows])
        if last > first:
            inside = rows[first:last]
            part = batch.slice(inside[0] - start, inside[-1] - inside[0] + 1)
            values = {name: columns.values(meta, part, name, int(inside[0])) for name in names}
            yield inside, {name: each[inside - inside[0]] for name, each in values.items()}
        if last == len(rows):
            return
        start += batch.num_rows


def _spans(
    meta: Path,
    rows: NDArray[np.int64],
    values: dict[str, NDArray[Any]],
    truth: Sequence[str],
    pulses: Path,
    total: int,
) -> Spans:
    """Order events by their pulses; raise FormatError unless they cover the file, each pulse once."""
    order = np.lexsort((values[_LAST], values[_FIRST]))
    ids, first, last = (values[name][order].astype(np.int64) for name in _IDS)
    rows = rows[order]
    _check_spans(meta, rows, (ids, first, last), pulses, total)
    unknown = np.full(len(rows), np.nan)
    names = (*ANGLES, *(name for name in truth if name not in ANGLES))
    labels = {name: values[name][order].astype(np.float64) if name in values else unknown for name in names}
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
    covered = int(last[-1]) + 1 if len(last) else 0
    if covered != total:
        raise FormatError(
            f"{pulses}: row {covered}: the {len(ids)} events in {meta} have {covered} pulses, the file has "
            f"{total}; {fix}"
        )


KINDS = {
    "sensor_id": columns.INTEGER,
    "time": columns.INTEGER,
    "charge": columns.REAL,
    "auxiliary": columns.BOOL,
    "event_id": columns.INTEGER,
}


class _PulseFiles(abc.ABC):
    """Reader of files with one row per pulse; where the events are in a file is up to its kind."""

    formats = ("Parquet",)
    expectations = EXPECTATIONS

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of their pulses, in blocks of about a million pulses."""
        sensors = len(read_geometry(tables["geometry"]))
        with open_parquet(path, binascii.Error) as file:
            yield from _blocks(path, file, self._spans(path, tables, file), sensors)

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events by the metadata and pulses by the file's footer."""
        with open_parquet(path, binascii.Error) as file:
            note_unread(file.schema_arrow.names, KINDS)
            return len(self._spans(path, tables, file).rows), file.metadata.num_rows

    @abc.abstractmethod
    def _spans(self, path: Path, tables: Tables, file: pq.ParquetFile) -> Spans:
        """Find the events of a file."""


class KaggleFiles(_PulseFiles):
    """Reader of batch_{number}.parquet, whose events are rows of a table for all files (``meta``).

    Pulses: sensor_id, time (ns), charge, auxiliary, event_id. Metadata: batch_id (the number in the file's
    name), event_id, first_pulse_index, last_pulse_index (inclusive), azimuth, zenith and options.truth;
    metadata without both angles gives NaN for them: enough to predict. Pulses out of the geometry or with
    another event's id, and spans that do not cover the file, are a FormatError.
    """

    needs: tuple[str, ...] = ("meta", "geometry")

    def __init__(self, options: KaggleFilesOptions) -> None:
        self._truth = options.truth
        self.layout: Layout = pulses(*(_truth_field(name) for name in options.truth))

    def _spans(self, path: Path, tables: Tables, file: pq.ParquetFile) -> Spans:
        number = re.search(r"[0-9]+$", path.stem)
        if number is None:
            raise FormatError(
                f"{path}: expected a number at the end of the name, as in batch_7.parquet: the batch_id of "
                "its events in the metadata; rename the file, and write {number} in source.uri"
            )
        return read_spans(tables["meta"], int(number[0]), self._truth, path, file.metadata.num_rows)


class SimulatedFiles(_PulseFiles):
    """Reader of the same files of pulses, each with its own metadata in its Parquet footer.

    A side table would have to know all ranges before the first one is simulated, and would change when a
    campaign grows.
    """

    layout: Layout = PULSES_WITH_ENERGY
    needs: tuple[str, ...] = ("geometry",)

    def _spans(self, path: Path, tables: Tables, file: pq.ParquetFile) -> Spans:  # noqa: ARG002
        return embedded_spans(path, file.schema_arrow, (ENERGY.name,), file.metadata.num_rows)


def _truth_field(name: str) -> Field:
    if name == ENERGY.name:
        return ENERGY
    return Field(name, "float64", "", -1e300, 1e300, f"{name} of the metadata")


def _blocks(path: Path, file: pq.ParquetFile, spans: Spans, sensors: int) -> Iterator[Events]:
    columns.check_columns(path, file.schema_arrow, KINDS)
    stream = columns.ItemStream(path, columns.batches(file, KINDS), _decoder(path, sensors))
    starts = offsets(spans.multiplicity)
    for first, last in cuts(spans.multiplicity, columns.EVENTS, columns.ITEMS):
        event_columns = {name: column[first:last] for name, column in spans.columns.items()}
        counts = spans.multiplicity[first:last]
        items, owners = stream.take(int(starts[last] - starts[first]))
        wrong = owners != np.repeat(event_columns["event_id"], counts)
        if wrong.any():
            at = int(np.argmax(wrong))
            event = first + int(np.searchsorted(offsets(counts), at, side="right")) - 1
            raise FormatError(
                f"{path}: row {starts[first] + at}: expected event_id {spans.columns['event_id'][event]} as "
                f"in row {spans.rows[event]} of {spans.path}, found {owners[at]}; give the metadata that was "
                "made with this file"
            )
        yield Events(event_columns, counts, items)


def _decoder(path: Path, sensors: int) -> columns.Decoder:
    """Turn a batch of pulses into items [M, 4] and the event_id of each; raise FormatError."""

    def decode(batch: pa.RecordBatch, row: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        sensor, time, charge, auxiliary, owners = (columns.values(path, batch, name, row) for name in KINDS)
        rows = range(row, row + batch.num_rows)
        columns.refuse(
            path,
            rows,
            sensor,
            (sensor < 0) | (sensor >= sensors),
            f"a sensor_id from 0, below {sensors} (see source.tables: geometry)",
        )
        wrong = (time > EXACT_NS) | (time < -EXACT_NS)
        columns.refuse(path, rows, time, wrong, f"a time within ±{EXACT_NS} ns, which float32 holds exactly")
        items = np.empty((len(sensor), 4), np.float32)
        with np.errstate(over="ignore"):  # an infinite charge is not legal, and is reported with its event
            for position, column in enumerate((sensor, time, charge, auxiliary)):
                items[:, position] = column
        return items, owners

    return decode
