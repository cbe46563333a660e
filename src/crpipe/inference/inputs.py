"""Events from files that a user names: raw files through the reader, or flat tables of event columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from crpipe.core.causes import (
    OF_FORM,
    is_folder,
    is_plain,
    is_present,
    plugin_errors,
    refuse_machine_error,
    retry_io,
)
from crpipe.core.errors import FormatError
from crpipe.events.batch import Events, regroup
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Field, Layout
from crpipe.events.validity import find_invalid_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.readers import Reader
    from crpipe.campaign.records import Tables

_ROWS = 1 << 16
_DIGITS = pa.decimal128(38, 9)  # of a whole number in CSV, of 64 bits; 7.0 is one, 7.5 is named


@dataclass(frozen=True, slots=True)
class RawInput:
    """Raw files of one reader.

    reject: events with illegal values are left out, as by split.on_bad_event; else illegal items end it.
    """

    paths: Sequence[Path]
    reader: Reader
    tables: Tables
    reject: bool = False

    def count(self) -> int:
        """Count the events of all files."""
        total = 0
        for path in self.paths:
            _check_exists(path)
            with plugin_errors(f"{path}: the reader failed"):
                total += self.reader.totals(path, self.tables)[0]
        return total

    def blocks(self, max_events: int, max_items: int) -> Iterator[Events]:
        """Yield all events with their items, file after file, in blocks of bounded size."""
        for number, path in enumerate(self.paths):
            yield from regroup(self._file(number, path), max_events, max_items)

    def _file(self, number: int, path: Path) -> Iterator[Events]:
        row, layout = 0, self.reader.layout
        with plugin_errors(f"{path}: the reader failed"):
            for block in self.reader.rows(path, self.tables):
                if not self.reject:  # event columns are not checked: real data have no truth in them
                    _refuse_illegal(path, row, block, replace(layout, events=()))
                source = {
                    SOURCE_FILE: np.full(len(block), number, np.uint32),
                    SOURCE_ROW: np.arange(row, row + len(block), dtype=np.uint32),
                }
                row += len(block)
                events = Events(block.columns | source, block.multiplicity, block.items)
                bad = [*find_invalid_events(block, layout)] if self.reject else []
                yield events.take(np.delete(np.arange(len(block)), bad)) if bad else events


@dataclass(frozen=True, slots=True)
class RequiredColumns:
    """Event columns to read from files without items.

    required: must be there. optional: identify an event; where missing, the last one counts the rows and the
    others are 0. count: the column of a flat table that holds multiplicities; another name than the usual one
    must be there.
    """

    required: tuple[Field, ...]
    optional: tuple[Field, ...]
    count: str = MULTIPLICITY

    @classmethod
    def of(cls, layout: Layout, columns: tuple[str, ...], count: str = MULTIPLICITY) -> RequiredColumns:
        """Divide the event columns that a workload reads."""
        fields = [field for field in layout.events if field.name in columns]
        identity = {*layout.group, *layout.key}
        return cls(
            tuple(field for field in fields if field.name not in identity),
            tuple(field for field in layout.events if field.name in identity),
            count,
        )

    @property
    def fields(self) -> tuple[Field, ...]:
        """All columns but the count."""
        return (*self.required, *self.optional)

    @property
    def layout(self) -> Layout:
        """A layout of these columns alone."""
        return Layout("", self.fields, (), ())

    def missing(self, names: Sequence[str]) -> list[str]:
        """List the required columns that a table with columns of these names lacks."""
        return sorted({field.name for field in self.required} - {*names})

    def of_table(self, names: Sequence[str]) -> list[str]:
        """List the columns to read of a table with columns of these names."""
        known = {*(field.name for field in self.fields), self.count}
        return [name for name in names if name in known]


def event_rows(
    paths: Sequence[Path], required: RequiredColumns, raw: RawInput, max_events: int
) -> Iterator[Events]:
    """Yield the event columns of all files in blocks, without items.

    Known multiplicities are in the column ``multiplicity``: of a flat table that has it, and of raw files.
    A Parquet or CSV file with all required columns is a flat table; any other goes through the reader.
    """
    for number, path in enumerate(paths):
        _check_exists(path)
        flat = _flat_columns(path, required)
        if required.count != MULTIPLICITY and required.count not in flat:
            raise FormatError(
                f"--multiplicity {required.count}: {path} is no flat table with such a column; expected the "
                "name of a column of integers, predicted, column (of the name multiplicity), or a number"
            )
        blocks = _flat_rows(path, flat, required) if flat else _raw_rows(path, raw)
        row = 0
        for block in regroup(blocks, max_events, max_events):
            _refuse_illegal(path, row, block, required.layout)
            row += len(block)
            block.columns[SOURCE_FILE] = np.full(len(block), number, np.uint32)
            block.columns[SOURCE_ROW] = np.arange(row - len(block), row, dtype=np.uint32)
            yield block


def count_rows(paths: Sequence[Path], raw: RawInput, required: RequiredColumns) -> int:
    """Count the events of all files; CSV files count as empty, since they would have to be read."""
    total = 0
    for path in paths:
        _check_exists(path)
        if not _flat_columns(path, required):
            total += RawInput((path,), raw.reader, raw.tables).count()
        elif path.suffix != ".csv":
            total += retry_io(partial(pq.read_metadata, path), path).num_rows
    return total


def _flat_columns(path: Path, required: RequiredColumns) -> list[str]:
    """List the columns to read of a flat table; empty for a raw file. Raise FormatError for neither."""
    try:
        if path.suffix == ".csv":
            with retry_io(lambda: pyarrow.csv.open_csv(path), path) as file:
                names = file.schema.names
        else:
            names = retry_io(lambda: pq.read_schema(path), path).names
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        refuse_machine_error(error, path, OF_FORM, OF_FORM)
        if path.suffix == ".csv":
            raise FormatError(f"{path}: cannot be read as CSV ({error})") from error
        return []
    missing = required.missing(names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and not missing:
        raise FormatError(f"{path}: {names.count(twice[0])} columns are called {twice[0]}; write it again")
    if not missing:
        return required.of_table(names)
    if path.suffix == ".csv" or len(missing) < len(required.required):
        raise FormatError(f"{path}: no column {', '.join(missing)}; it has {', '.join(names)}")
    return []


def _raw_rows(path: Path, raw: RawInput) -> Iterator[Events]:
    for block in RawInput((path,), raw.reader, raw.tables).blocks(_ROWS, 1 << 62):
        yield _without_items(block.columns | {MULTIPLICITY: block.multiplicity}, len(block))


def _flat_rows(path: Path, names: list[str], required: RequiredColumns) -> Iterator[Events]:
    row = 0
    for batch in _batches(path, names, required):
        yield _as_events(path, row, batch, required)
        row += len(batch)


def column_rows(table: pa.RecordBatch, required: RequiredColumns, name: str) -> Events:
    """Return the rows of a table in memory as events without items, as ``event_rows`` gives those of a file.

    name: what messages call the table. Raise FormatError for a missing column or an impossible value.
    """
    names = table.schema.names
    if missing := required.missing(names):
        raise FormatError(f"{name}: no column {', '.join(missing)}; it has {', '.join(names)}")
    block = _as_events(name, 0, table.select(required.of_table(names)), required)
    _refuse_illegal(name, 0, block, required.layout)
    return block


def _as_events(name: Path | str, row: int, rows: pa.RecordBatch, required: RequiredColumns) -> Events:
    """Return rows in the layout's types; columns that identify an event are made up where missing."""
    kinds = {field.name: np.dtype(field.dtype) for field in required.fields}
    columns = {
        each: _values(name, row, each, rows.column(each), kinds[each])
        for each in rows.schema.names
        if each in kinds
    }
    if required.count in rows.schema.names:
        columns[MULTIPLICITY] = _counts(name, row, required.count, rows.column(required.count))
    for field in required.optional:
        if field.name not in columns:
            counts = field is required.optional[-1]
            numbers = np.arange(row, row + rows.num_rows) if counts else np.zeros(rows.num_rows)
            columns[field.name] = numbers.astype(field.dtype)
    return _without_items(columns, rows.num_rows)


def _batches(path: Path, names: list[str], required: RequiredColumns) -> Iterator[pa.RecordBatch]:
    floats = {field.name for field in required.fields if np.dtype(field.dtype).kind == "f"}
    try:
        if path.suffix == ".csv":
            # The first rows would decide whether a column is of integers, and no integer is larger than 2^63.
            types = {name: pa.float64() if name in floats else _DIGITS for name in names}
            convert = pyarrow.csv.ConvertOptions(include_columns=names, column_types=types)
            with pyarrow.csv.open_csv(path, convert_options=convert) as rows:
                yield from rows
        else:
            with pq.ParquetFile(path, pre_buffer=False) as file:
                yield from file.iter_batches(_ROWS, columns=names)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        refuse_machine_error(error, path, OF_FORM, OF_FORM)
        raise FormatError(f"{path}: cannot be read ({error})") from error


def _counts(path: Path | str, row: int, name: str, column: pa.Array) -> NDArray[Any]:
    values = _values(path, row, name, column, np.dtype("int64"))
    if (values < 0).any():
        wrong = int(np.argmax(values < 0))
        raise FormatError(f"{path}: row {row + wrong}: {name} is {values[wrong]}, expected 0 or more items")
    return values


def _values(path: Path | str, row: int, name: str, column: pa.Array, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return a column in its type; raise FormatError for one that holds no numbers or gaps."""
    if column.null_count:
        gap = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise FormatError(f"{path}: row {row + gap}: {name} is missing")
    raw = _exact(column, kind).to_numpy(zero_copy_only=False)
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            values: NDArray[Any] = raw.astype(kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise FormatError(f"{path}: column {name} holds {column.type}, expected numbers") from error
    if kind.kind in "iu" and raw.dtype.kind in "iuf" and not np.array_equal(values, raw):
        wrong = int(np.argmax(values != raw))
        raise FormatError(
            f"{path}: row {row + wrong}: {name} is {raw[wrong]}, expected a whole number in {kind}"
        )
    return values


def _exact(column: pa.Array, kind: np.dtype[Any]) -> pa.Array:
    """Return decimals in a type of integers; as floats where one of them does not fit."""
    if not pa.types.is_decimal(column.type):
        return column
    try:
        return column.cast(pa.from_numpy_dtype(kind))
    except pa.ArrowInvalid:
        return column.cast(pa.float64())


def _without_items(columns: dict[str, NDArray[Any]], count: int) -> Events:
    return Events(columns, np.zeros(count, np.uint32), np.empty((0, 1), np.float32))


def _check_exists(path: Path) -> None:
    if is_folder(path):
        raise FormatError(f"{path}: a folder; name the files in it, as in {path}/*")
    if not is_plain(path):
        if is_present(path):
            raise FormatError(
                f"{path}: a pipe or device, which cannot be read twice; write its content into a file first"
            )
        raise FormatError(f"{path}: missing; name existing files with --in")


def _refuse_illegal(path: Path | str, row: int, block: Events, layout: Layout) -> None:
    """Raise FormatError naming the first event with a value that the layout does not allow."""
    reasons = find_invalid_events(block, layout)
    if reasons:
        first = min(reasons)
        raise FormatError(f"{path}: row {row + first}: {reasons[first]}")


# Refuses predictions of files in which two events have the same key: nobody could tell their rows apart.


def unique_keys(blocks: Iterable[Events], key: tuple[str, ...], paths: Sequence[Path]) -> Iterator[Events]:
    """Pass blocks on; at their end raise FormatError when two events have the same values of ``key``.

    Holds the key, the file and the row of every event: with a key of two 8-byte columns 24 MB for a million
    events, and about as much again while they are compared.
    """
    if not key:
        yield from blocks
        return
    names = (*key, SOURCE_FILE, SOURCE_ROW)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for block in blocks:
        for name in names:
            parts[name].append(block.columns[name].copy())  # a view would hold the whole block
        yield block
    if parts[SOURCE_ROW]:
        _refuse_doubled(key, [np.concatenate(parts.pop(name)) for name in names], paths)


def _refuse_doubled(key: tuple[str, ...], columns: list[NDArray[Any]], paths: Sequence[Path]) -> None:
    *values, files, rows = columns
    order = np.lexsort(values)  # stable: events of one key stay in their order
    same = np.ones(len(order) - 1, bool)
    for each in values:
        ordered = each[order]
        same &= ordered[1:] == ordered[:-1]
    doubled = np.flatnonzero(same)
    if not len(doubled):
        return
    at = doubled[np.argmin(order[doubled + 1])]  # the first event whose key was there before
    first, second = (int(number) for number in order[at : at + 2])
    named = ", ".join(f"{name} {each[second]}" for name, each in zip(key, values, strict=True))
    file, other = (paths[files[number]] for number in (second, first))
    what = (
        "have the file made again"
        if files[first] == files[second]
        else f"leave one of them out of --in, such as {file}"
    )
    raise FormatError(
        f"{file}: row {rows[second]}: the key {named} is also that of row {rows[first]} of {other}, and a "
        f"prediction has one row for each key; {what}, or give the events numbers of their own "
        f"({len(doubled)} of {len(order)} events repeat a key)"
    )
