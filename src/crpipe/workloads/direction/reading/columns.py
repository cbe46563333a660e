"""Columns of raw Parquet files, checked: they exist, are of the right kind and hold no null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.core.errors import FormatError
from crpipe.workloads.common.raw_files import refuse_twins, say_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    Decoder = Callable[[pa.RecordBatch, int], tuple[NDArray[np.float32], NDArray[np.int64]]]

INTEGER = "an integer type"
REAL = "float or double"
BOOL = "bool"
NUMBER = "numbers, or strings that spell numbers"
INTEGERS, REALS, NUMBERS = (f"a list of {inner}" for inner in ("integers", "float or double", NUMBER))

EVENTS = 20_000  # most events and items of a block that a reader yields
ITEMS = 1 << 20
_ROWS = 1 << 17
_CHOOSE = "choose the reader of its format with source.reader, or write one: docs/workload.md"


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_floating, pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in tests)


def _lists(test: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view)

    def is_list(kind: pa.DataType) -> bool:
        if not any(each(kind) for each in kinds):
            return False
        return test(kind.value_type) or pa.types.is_null(kind.value_type)  # lists that are all empty

    return is_list


_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    INTEGER: pa.types.is_integer,
    REAL: pa.types.is_floating,
    BOOL: pa.types.is_boolean,
    NUMBER: _is_number,
    INTEGERS: _lists(pa.types.is_integer),
    REALS: _lists(pa.types.is_floating),
    NUMBERS: _lists(_is_number),
}


def check_columns(path: Path, schema: pa.Schema, kinds: Mapping[str, str]) -> None:
    """Raise FormatError for the first column in {name: kind} that is missing or of another kind."""
    missing = [name for name in kinds if name not in schema.names]
    if missing:
        raise FormatError(f"{path}: {say_missing(missing, schema.names, _CHOOSE)}")
    refuse_twins(path, schema.names, kinds)
    for name, kind in kinds.items():
        dtype = schema.field(name).type
        if not (_KINDS[kind](dtype) or pa.types.is_null(dtype)):  # without a type where there are no rows
            raise FormatError(f"{path}: column {name}: expected {kind}, found {dtype}")


def batches(
    file: pq.ParquetFile, names: Iterable[str], groups: Iterable[int] | None = None, rows: int = 0
) -> Iterator[pa.RecordBatch]:
    """Decode columns in batches of at most ``rows`` (131,072); ``groups``: only these row groups."""
    row_groups = range(file.num_row_groups) if groups is None else groups
    return file.iter_batches(
        batch_size=rows or _ROWS, row_groups=list(row_groups), columns=list(names), use_threads=False
    )


def values(path: Path, batch: pa.RecordBatch, name: str, row: int) -> NDArray[Any]:
    """Return one column of a batch that begins at ``row`` of its file; raise FormatError for a null.

    uint64 becomes int64, which the other numbers of events are: numpy would join both as float64.
    """
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        first = column.is_null().index(pa.scalar(value=True)).as_py()
        raise FormatError(f"{path}: row {row + first}: {name}: expected a value, found a null")
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if array.dtype == np.uint64:
        refuse(path, range(row, row + len(array)), array, array >= 2**63, f"{name} below 2^63")
        array = array.astype(np.int64)
    return array


def refuse(
    path: Path,
    rows: Sequence[int] | NDArray[np.int64],
    values: NDArray[Any],
    wrong: NDArray[np.bool_],
    expected: str,
) -> None:
    """Raise FormatError for the first value that is wrong; rows: of each value in its file."""
    if wrong.any():
        at = int(np.argmax(wrong))
        raise FormatError(
            f"{path}: row {rows[at]}: expected {expected}, found {values[at]}; have the file made again"
        )


class ItemStream:
    """The items of a file with one row each, decoded batch after batch and given out in any portions.

    decode: turns a batch, which begins at a row of the file, into items [M, K] and the event_id of each.
    """

    def __init__(self, path: Path, source: Iterator[pa.RecordBatch], decode: Decoder) -> None:
        self._path, self._source, self._decode = path, source, decode
        self._row = 0
        self._items, self._owners = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)

    def take(self, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the next ``count`` items [count, 4], and the event_id of each; raise FormatError."""
        items, owners = np.empty((count, 4), np.float32), np.empty(count, np.int64)
        done = 0
        while done < count:
            if not len(self._owners):
                self._read()
            step = min(count - done, len(self._owners))
            items[done : done + step], owners[done : done + step] = self._items[:step], self._owners[:step]
            self._items, self._owners = self._items[step:], self._owners[step:]
            done += step
        return items, owners

    def _read(self) -> None:
        batch = next(self._source, None)
        if batch is None:
            raise FormatError(
                f"{self._path}: row {self._row}: the file ends before its footer says; have it copied again"
            )
        self._items, self._owners = self._decode(batch, self._row)
        self._row += batch.num_rows
