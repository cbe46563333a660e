"""Row groups of a raw Parquet file: what their footers say, and bounded blocks of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from crpipe.core.errors import FormatError
from crpipe.workloads.muons.layout import RAW_MUONS, RAW_PRIMARY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow.parquet as pq

# Arrow takes 65 to 85 bytes a muon while it decodes nested floats: up to 28 a value. A row group above the
# limit is decoded row by row (20 us each), because its muons may sit in a few adjacent giants.
_BYTES_PER_VALUE = 28
_DECODE_BYTES = 256 << 20
_BLOCK_BYTES = 16 << 20
_LEAF = f"{RAW_MUONS}."


def muon_column(footer: pq.RowGroupMetaData) -> pq.ColumnChunkMetaData:
    """Find the column of the values of muons in the footer of a row group."""
    for index in range(footer.num_columns):
        if footer.column(index).path_in_schema.startswith(_LEAF):
            return footer.column(index)
    raise pa.ArrowInvalid(f"a row group has no column {RAW_MUONS}")


def decode(file: pq.ParquetFile, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Decode columns of one row group, at once, or row by row where its muons might not fit into memory."""
    footer = file.metadata.row_group(group)
    if not footer.num_rows:
        return iter(())
    large = muon_column(footer).num_values * _BYTES_PER_VALUE > _DECODE_BYTES
    batches: Iterator[pa.RecordBatch] = file.iter_batches(
        batch_size=1 if large else footer.num_rows, row_groups=[group], columns=names, use_threads=False
    )
    return batches


def blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches; a large one stays alone, so that a giant event is never copied."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        added = batch.get_total_buffer_size()  # nbytes takes six times as long
        if held and size + added > _BLOCK_BYTES:
            yield pa.concat_batches(held) if len(held) > 1 else held[0]
            held, size = [], 0
        held.append(batch)
        size += added
    if held:
        yield pa.concat_batches(held) if len(held) > 1 else held[0]


def check_complete(path: Path, footer: pq.RowGroupMetaData, rows: int, values: int) -> None:
    """Compare what was decoded with the footer: each empty event takes one place in the column of values."""
    expected = (footer.num_rows, muon_column(footer).num_values if footer.num_rows else 0)
    if (rows, values) != expected:
        raise FormatError(
            f"{path}: the footer says {expected[0]} rows with {expected[1]} places for {RAW_MUONS}, "
            f"decoded were {rows} and {values}; have the file made again"
        )


def primary_width(file: pq.ParquetFile) -> int:
    """Width of the primaries of a file, from the footer; 0 when they have none or several."""
    values = rows = 0
    for index in range(file.num_row_groups):
        group = file.metadata.row_group(index)
        leaves = [group.column(place) for place in range(group.num_columns)]
        values += sum(leaf.num_values for leaf in leaves if leaf.path_in_schema.startswith(f"{RAW_PRIMARY}."))
        rows += group.num_rows
    return values // rows if rows and values % rows == 0 else 0
