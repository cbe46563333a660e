"""Columns of raw Parquet files, checked: they exist, are of the right kind and hold no null."""

from __future__ import annotations

import binascii
import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

INTEGER = "an integer type"
REAL = "float or double"
BOOL = "bool"

_KINDS = {INTEGER: pa.types.is_integer, REAL: pa.types.is_floating, BOOL: pa.types.is_boolean}
_ROWS = 1 << 17


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes its library raise into a FormatError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, binascii.Error) as error:
        raise FormatError(
            f"{path}: cannot be read whole ({' '.join(str(error).split())}); it is truncated, damaged or of "
            "another format; have it copied or made again"
        ) from error


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file so that its row groups are streamed, not loaded whole."""
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)


def check_columns(path: Path, schema: pa.Schema, kinds: Mapping[str, str]) -> None:
    """Raise FormatError for the first column in {name: kind} that is missing or of another kind."""
    missing = [name for name in kinds if name not in schema.names]
    if missing:
        raise FormatError(
            f"{path}: no column {', '.join(missing)}; the file has {', '.join(schema.names)}; choose the "
            "reader of its format with source.reader"
        )
    for name, kind in kinds.items():
        found = schema.field(name).type
        if not _KINDS[kind](found):
            raise FormatError(f"{path}: column {name}: expected {kind}, found {found}")


def batches(
    file: pq.ParquetFile, names: Iterable[str], groups: Iterable[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode columns in batches of at most 131,072 rows; ``groups``: only these row groups."""
    chosen = range(file.num_row_groups) if groups is None else groups
    found: Iterator[pa.RecordBatch] = file.iter_batches(
        batch_size=_ROWS, row_groups=list(chosen), columns=list(names), use_threads=False
    )
    return found


def values(path: Path, batch: pa.RecordBatch, name: str, row: int) -> NDArray[Any]:
    """Give one column of a batch that begins at ``row`` of its file; raise FormatError for a null."""
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        first = column.is_null().index(pa.scalar(value=True)).as_py()
        raise FormatError(f"{path}: row {row + first}: {name}: expected a value, found a null")
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found
