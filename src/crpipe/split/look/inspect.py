"""Describes a data file for people: a shard, another Parquet table, or a raw file of ``source.reader``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import ForeignError, FormatError
from crpipe.core.paths import MANIFEST
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_manifest import read_layout
from crpipe.events.shard_reader import DAMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.batch import Events
    from crpipe.split.readers import CheckedReader, ReaderChoice

_PARQUET = b"PAR1"
_QUANTILES = (0.5, 0.9, 0.99)
_SHOWN_ITEMS = 3


def inspect_file(path: Path, rows: int, choice: ReaderChoice | None) -> str:
    """Describe a file: schema, rows, multiplicities, its first ``rows`` events, those with items first.

    Shards and tables that crpipe wrote are described by their columns, anything else by the
    reader of ``choice``. Raise FormatError when the file is missing or damaged, or neither Parquet nor
    readable by that reader.
    """
    try:
        with path.open("rb") as handle:
            magic = handle.read(len(_PARQUET))
        if magic == _PARQUET:
            return "\n".join(_parquet(path, rows, choice))
    except DAMAGE as error:
        text = " ".join(str(error).split())
        raise FormatError(f"{path}: cannot be read whole ({text}); it is missing or damaged") from error
    if choice is None:
        raise FormatError(
            f"{path}: no Parquet file (it starts with {magic!r}), and no reader is configured; name "
            "the reader of its format with --set source.reader=module:Name"
        )
    return "\n".join(_raw(path, rows, choice.open()))


def _parquet(path: Path, rows: int, choice: ReaderChoice | None) -> Iterator[str]:
    with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        kind = _kind(path, names)
        footer = file.metadata
        groups = f"{footer.num_rows} rows in {footer.num_row_groups} row groups"
        yield f"{path}: {kind or 'Parquet'}, {groups}"
        yield from (f"  {field.name}: {field.type}" for field in file.schema_arrow)
        if not kind and choice is not None:
            try:
                yield from _raw(path, rows, choice.open())
            except (FormatError, ForeignError) as error:
                yield f"  no raw file of source.reader: {error}"
            else:
                return
        if MULTIPLICITY in names:
            yield _multiplicities(file.read([MULTIPLICITY])[MULTIPLICITY].to_numpy(), "items")
        one_by_one = file.iter_batches(batch_size=1, use_threads=False)
        for batch in itertools.islice(one_by_one, rows):
            cells = (f"{name} {_cell(column[0])}" for name, column in zip(names, batch.columns, strict=True))
            yield "  " + ", ".join(cells)


def _kind(path: Path, names: list[str]) -> str:
    """Recognise what crpipe wrote, by its columns or by the manifest beside it; empty for other files."""
    if {SOURCE_FILE, SOURCE_ROW, MULTIPLICITY} <= {*names}:
        if "destination" in names:
            return "multiplicity table of a range"
        return "index of outliers" if "part" in names else "events of a shard"
    if (path.parent / MANIFEST).exists():
        item = read_layout(path.parent).item
        if path.name.endswith(f".{item}.parquet"):
            return f"{item} of a shard"
    return ""


def _raw(path: Path, rows: int, reader: CheckedReader) -> Iterator[str]:
    """Describe a raw file by what its reader yields; every event is read, a block at a time."""
    layout = reader.layout
    found = [np.zeros(0, np.uint32)]
    full: list[str] = []
    empty: list[str] = []
    for block in reader.rows(path):
        found.append(block.multiplicity)
        for lines, chosen in ((full, block.multiplicity > 0), (empty, block.multiplicity == 0)):
            wanted = np.flatnonzero(chosen)[: max(rows - len(lines), 0)]
            lines += [_event(block, int(index), reader) for index in wanted]
    yield f"{path}: raw file, read by {reader.name}: {layout.count(*reader.totals(path))}"
    yield from (f"  {each.name}: {each.dtype} {each.unit}".rstrip() for each in layout.events)
    yield from (f"  {layout.item}.{each.name}: {each.dtype} {each.unit}".rstrip() for each in layout.items)
    yield _multiplicities(np.concatenate(found), layout.item)
    yield from (full + empty)[:rows]


def _event(block: Events, index: int, reader: CheckedReader) -> str:
    values = (f"{name} {_value(column[index].item())}" for name, column in block.columns.items())
    items = block.part(index, index + 1).items
    some = _value(items[:_SHOWN_ITEMS].tolist())
    return f"  {', '.join(values)}, {len(items)} {reader.layout.item} {some}"


def _multiplicities(values: NDArray[Any], item: str) -> str:
    if not len(values):
        return "  no events"
    quantiles = np.quantile(values, _QUANTILES, method="inverted_cdf")
    named = ", ".join(f"{share:.0%} {value}" for share, value in zip(_QUANTILES, quantiles, strict=True))
    empty = int((values == 0).sum())
    return (
        f"  multiplicity: {len(values)} events, {int(values.sum(dtype=np.int64))} {item}, {empty} events "
        f"without; quantiles {named}; largest {values.max()}"
    )


def _cell(scalar: Any) -> str:
    """Write one value of a Parquet row; of a list only the first ones, because a giant has millions."""
    if not scalar.is_valid or not pa.types.is_list(scalar.type):
        return _value(scalar.as_py())
    return f"{len(scalar)} {_value(scalar.values.slice(0, _SHOWN_ITEMS).to_pylist())}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
