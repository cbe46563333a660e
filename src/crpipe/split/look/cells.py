"""Rows of any Parquet file for people: bounded memory, bounded text, and "…" for what cannot be shown."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crpipe.core.causes import OF_FORM, refuse_machine_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

SHOWN_ITEMS = 3
UNSHOWN = "…"
_SHOWN_TEXT, _SHOWN_BYTES, _SHOWN_FIELDS, _SHOWN_DEPTH = 80, 24, 20, 6
_ROWS = 1024
# Bytes of a column in one row group, unpacked: a single value of a small file may have gigabytes.
_MOST_BYTES = 128 << 20
# What Arrow and Python raise for values that they cannot give: dates beyond the year 9999, broken UTF-8, …
_UNSHOWN_FOR = (pa.ArrowException, OSError, ValueError, OverflowError, TypeError, LookupError, RecursionError)


def shown_rows(file: pq.ParquetFile, chosen: NDArray[Any]) -> Iterator[dict[str, Any]]:
    """Yield chosen rows as values to show, in their order; a column that cannot be read is "…" in all."""
    numbers = chosen.tolist()
    names = file.schema_arrow.names
    columns = {name: _cells(file, place, numbers) for place, name in enumerate(names)}
    for number in numbers:
        yield {name: cells.get(number, UNSHOWN) for name, cells in columns.items()}


def shorten(text: str) -> str:
    """Cut a text to a length that fits on a line."""
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}{UNSHOWN}"


def _cells(file: pq.ParquetFile, place: int, numbers: list[int]) -> dict[int, Any]:
    """Show one column at some rows, as far as it can be read: a small batch at a time."""
    found: dict[int, Any] = {}
    try:
        _collect(file, place, set(numbers), found)
    except _UNSHOWN_FOR as error:
        refuse_machine_error(error, leave=OF_FORM, behind=OF_FORM)
    return found


def _collect(file: pq.ParquetFile, place: int, wanted: set[int], found: dict[int, Any]) -> None:
    field = file.schema_arrow.field(place)
    if file.schema_arrow.names.count(field.name) > 1:
        return  # a column is chosen by its name
    start = 0
    for group in range(file.num_row_groups):
        footer = file.metadata.row_group(group)
        here = {number - start for number in wanted if start <= number < start + footer.num_rows}
        if here and _size(footer, field.name) <= _MOST_BYTES:
            step = 1 if pa.types.is_nested(field.type) else _ROWS
            batches = file.iter_batches(step, row_groups=[group], columns=[field.name], use_threads=False)
            for first, batch in zip(range(0, max(here) + 1, step), batches, strict=False):
                for index in (each for each in here if first <= each < first + len(batch)):
                    found[start + index] = _shown(batch.column(0)[index - first], _SHOWN_DEPTH)
        start += footer.num_rows


def _size(footer: pq.RowGroupMetaData, name: str) -> int:
    """Add up the unpacked bytes of a column's parts in a row group."""
    leaves = [footer.column(place) for place in range(footer.num_columns)]
    chosen = [
        each for each in leaves if each.path_in_schema == name or each.path_in_schema.startswith(f"{name}.")
    ]
    return sum(each.total_uncompressed_size for each in chosen)


def _shown(scalar: Any, depth: int) -> Any:
    """Give one value, cut to what a person reads; of a list only the first ones, a giant has millions."""
    with contextlib.suppress(*_UNSHOWN_FOR):
        if not scalar.is_valid:
            return None
        if depth:
            return (
                _nested(scalar, depth - 1) if pa.types.is_nested(scalar.type) else _single(scalar, depth - 1)
            )
    return UNSHOWN


def _nested(scalar: Any, depth: int) -> Any:
    if pa.types.is_struct(scalar.type):
        names = [field.name for field in islice(scalar.type, _SHOWN_FIELDS)]
        return {name: _shown(scalar[place], depth) for place, name in enumerate(names)}
    values = scalar.values  # of every kind of list, and the pairs of a map
    outer = depth == _SHOWN_DEPTH - 1
    most = min(len(values), SHOWN_ITEMS if outer else _SHOWN_FIELDS)
    first = [_shown(values[place], depth) for place in range(most)]
    if outer:
        return {"count": len(values), "first": first}
    return [*first, UNSHOWN] if most < len(values) else first


def _single(scalar: Any, depth: int) -> Any:
    if isinstance(scalar, pa.ExtensionScalar):
        return _shown(scalar.value, depth)
    if pa.types.is_dictionary(scalar.type):
        return _shown(scalar.dictionary[scalar.index.as_py()], depth)
    if hasattr(scalar, "as_buffer"):  # texts and bytes
        return _text(scalar)
    value = scalar.as_py()
    return value if isinstance(value, bool | int | float) else shorten(str(value))


def _text(scalar: Any) -> str:
    held = scalar.as_buffer()
    begin = held.slice(0, min(held.size, 4 * _SHOWN_TEXT)).to_pybytes()
    if pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type) or _is_view(scalar.type):
        return shorten(begin.decode(errors="replace"))
    more = f"{UNSHOWN} ({held.size} bytes)" if held.size > _SHOWN_BYTES else ""
    return f"{begin[:_SHOWN_BYTES]!r}{more}"


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind))
