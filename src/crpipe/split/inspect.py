"""Describes a data file for people: a shard, another Parquet table, or a raw file of ``source.reader``.

Rows of any Parquet file are shown in bounded memory and bounded text, with "…" for what cannot be shown.
"""

from __future__ import annotations

import contextlib
import errno
import shlex
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.campaign.raw_files import read_manifest
from crpipe.core.causes import OF_FORM, is_folder, is_present, refuse_machine_error, retry_io
from crpipe.core.errors import DataError, FormatError, PluginError
from crpipe.core.paths import MANIFEST
from crpipe.core.text import counted
from crpipe.events.file_formats import format_of, open_parquet, refuse_unread
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_manifest import read_layout
from crpipe.events.shard_reader import DAMAGE
from crpipe.split.parts import add_counts, quantile_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from crpipe.campaign.readers import CheckedReader, ReaderChoice
    from crpipe.events.batch import Events

_PARQUET = "Parquet"
_LEFT = OF_FORM | {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}  # a name that was typed
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_MOST_TEXT = 300  # characters of an error of a library
_MOST_NAMES = 10_000  # of a folder
_SHOWN_ITEMS = 3
_UNSHOWN = "…"
_SHOWN_TEXT, _SHOWN_BYTES, _SHOWN_FIELDS, _SHOWN_DEPTH = 80, 24, 20, 6
_ROWS = 1024
# Bytes of a column in one row group, unpacked: a single value of a small file may have gigabytes.
_MOST_BYTES = 128 << 20
# What Arrow and Python raise for values that they cannot give: dates beyond the year 9999, broken UTF-8, …
_UNSHOWN_FOR = (pa.ArrowException, OSError, ValueError, OverflowError, TypeError, LookupError, RecursionError)


@dataclass(slots=True)
class FileFacts:
    """What a file holds; the fields of ``crpipe inspect --json``.

    kind: what it is. columns: types of a Parquet file's columns. row_groups: of a Parquet file, else null.
    reader, read_as: what read it, and the columns that it gives with type and unit; refused: why it does not;
    notes: what it converted, or did not read.
    events, items, empty: rows or events, their items, and how many have none; quantiles, largest: of the
    items in an event. item: what an item is called. first: the first events, those with items first; of an
    event's items, or of a list, only the first ones and ``count``.
    """

    file: str
    kind: str
    events: int = 0
    row_groups: int | None = None
    columns: dict[str, str] = field(default_factory=dict)
    reader: str = ""
    read_as: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    notes: list[str] = field(default_factory=list)
    item: str = "items"
    items: int | None = None
    empty: int | None = None
    quantiles: dict[str, int] = field(default_factory=dict)
    largest: int | None = None
    first: list[dict[str, Any]] = field(default_factory=list)


def inspect_file(path: Path, rows: int, choice: ReaderChoice | None) -> str:
    """Describe a file in words; see ``facts_of``."""
    return "\n".join(_lines_of(facts_of(path, rows, choice)))


def facts_of(path: Path, rows: int, choice: ReaderChoice | None) -> FileFacts:
    """Collect schema, rows, multiplicities and the first ``rows`` events, those with items first.

    Shards and tables that crpipe wrote are described by their columns, anything else by the
    reader of ``choice``. Raise FormatError when the file is missing or damaged, or neither Parquet nor
    readable by that reader.
    """
    try:
        if is_folder(path):
            raise FormatError(f"{path}: a folder; name a file in it{_first_file(path)}")
        form = retry_io(lambda: format_of(path), path)
        if form.name == _PARQUET:
            return retry_io(lambda: _parquet(path, rows, choice), path)
    except DAMAGE as error:
        refuse_machine_error(error, path, _LEFT, _LEFT)
        text = " ".join(str(error).split())[:_MOST_TEXT]
        raise FormatError(f"{path}: cannot be read whole ({text}); it is missing or damaged") from error
    if choice is None:
        raise FormatError(
            f"{path}: this is {form.words}, and no reader is configured; "
            f"{form.remedy or 'name the reader of its format with --set source.reader=module:Name'}"
        )
    facts = FileFacts(str(path), "raw file")
    _add_events(facts, path, rows, choice.open())
    return facts


def _first_file(folder: Path) -> str:
    some = islice((each for each in folder.rglob("*") if each.is_file()), _MOST_NAMES)
    first = min(some, key=lambda each: (each.suffix != ".parquet", len(each.parts), each), default=None)
    return f": crpipe inspect {shlex.quote(str(first))}" if first else " (it holds none)"


def _parquet(path: Path, rows: int, choice: ReaderChoice | None) -> FileFacts:
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        kind = _kind(path, names)
        facts = FileFacts(
            str(path),
            kind or "Parquet",
            events=file.metadata.num_rows,
            row_groups=file.metadata.num_row_groups,
            columns={field.name: _shorten(str(field.type)) for field in file.schema_arrow},
        )
        try:
            refuse_unread(path, file.metadata)
            if not kind and choice is not None:
                _add_events(facts, path, rows, choice.open())
                return facts
        except (FormatError, PluginError) as error:
            facts.refused = str(error)
        chosen = np.arange(min(rows, facts.events))
        if (counts := _counts_of(file)) is not None:
            _add_counts(facts, [counts])
            chosen = np.concatenate([np.flatnonzero(counts > 0)[:rows], np.flatnonzero(counts == 0)])[:rows]
        sources = _source_names(path) if SOURCE_FILE in names else []
        for row in _shown_rows(file, chosen):
            number = row.get(SOURCE_FILE)
            if isinstance(number, int) and 0 <= number < len(sources):
                row[SOURCE_FILE] = f"{number} ({sources[number]})"
            facts.first.append(row)
    return facts


def _counts_of(file: pq.ParquetFile) -> NDArray[np.uint32] | None:
    """Read the multiplicities of a table of crpipe; None where it has none, or a column of another kind."""
    if [each.type for each in file.schema_arrow if each.name == MULTIPLICITY] != [pa.uint32()]:
        return None
    counts = file.read([MULTIPLICITY])[MULTIPLICITY]
    return None if counts.null_count else counts.to_numpy()


def _kind(path: Path, names: list[str]) -> str:
    """Recognise what crpipe wrote, by its columns or by the manifest beside it; empty for other files."""
    if {SOURCE_FILE, SOURCE_ROW, MULTIPLICITY} <= {*names}:
        if "part" in names:
            return "index of outliers"
        return "multiplicity table of a range" if "destination" in names else "events of a shard"
    if is_present(path.parent / MANIFEST):
        item = read_layout(path.parent).item
        if path.name.endswith(f".{item}.parquet"):
            return f"{item} of a shard"
    return ""


def _source_names(path: Path) -> list[str]:
    """Name the raw files of the range of a shard or multiplicity table, by their numbers; none if unknown."""
    folders = path.absolute().parents
    for name, results in ((folders[0].name, folders[2]), (path.stem, folders[1])):
        try:
            return sorted(entry.path for entry in read_manifest(results / "manifests" / f"{name}.parquet"))
        except DataError:
            continue
    return []


def _add_events(facts: FileFacts, path: Path, rows: int, reader: CheckedReader) -> None:
    """Describe a raw file by what its reader yields; every event is read, a block at a time."""
    layout = reader.layout
    multiplicities: list[NDArray[np.uint32]] = []
    full: list[dict[str, Any]] = []
    empty: list[dict[str, Any]] = []
    for block in reader.rows(path):
        multiplicities.append(block.multiplicity)
        for first, chosen in ((full, block.multiplicity > 0), (empty, block.multiplicity == 0)):
            indices = np.flatnonzero(chosen)[: max(rows - len(first), 0)]
            first += [_event(block, int(index), layout.item) for index in indices]
    facts.events, facts.items = reader.totals(path)
    facts.notes = reader.notes
    facts.kind, facts.reader, facts.item = "raw file", reader.name, layout.item
    for prefix, fields in (("", layout.events), (f"{layout.item}.", layout.items)):
        facts.read_as |= {f"{prefix}{each.name}": f"{each.dtype} {each.unit}".rstrip() for each in fields}
    for name in layout.group:
        facts.read_as[name] += ", group: rows with equal values stay in one part"
    _add_counts(facts, multiplicities)
    facts.first = (full + empty)[:rows]


def _event(block: Events, index: int, item: str) -> dict[str, Any]:
    values = {name: column[index].item() for name, column in block.columns.items()}
    items = block.part(index, index + 1).items
    return values | {item: {"count": len(items), "first": items[:_SHOWN_ITEMS].tolist()}}


def _add_counts(facts: FileFacts, multiplicities: Iterable[NDArray[Any]]) -> None:
    counts: dict[int, int] = {}
    for block in multiplicities:
        add_counts(counts, block)
    facts.items, facts.empty = sum(value * events for value, events in counts.items()), counts.get(0, 0)
    if counts:
        facts.quantiles = {f"{share:.4g}": quantile_of(counts, share) for share in _QUANTILES}
        facts.largest = max(counts)


def _lines_of(facts: FileFacts) -> Iterator[str]:
    groups = "" if facts.row_groups is None else f" in {counted(facts.row_groups, 'row group')}"
    if facts.columns:
        kind = "Parquet" if facts.reader else facts.kind
        yield f"{facts.file}: {kind}, {counted(facts.events, 'row')}{groups}"
        yield from (f"  {name}: {kind}" for name, kind in facts.columns.items())
    if facts.reader:
        yield (
            f"{facts.file}: raw file, read by {facts.reader}: {counted(facts.events, 'event')} with "
            f"{facts.items:,} "
            f"{facts.item}"
        )
        yield from (f"  {name}: {kind}" for name, kind in facts.read_as.items())
    yield from (f"  {note}" for note in facts.notes)
    if facts.refused:
        yield f"  as a raw file it is refused: {facts.refused}"
    if facts.items is not None:
        yield _multiplicities(facts)
    if facts.first:
        yield _label(facts)
    yield from ("  " + _line(row) for row in facts.first)


def _label(facts: FileFacts) -> str:
    """Return which events follow."""
    if facts.empty is None:
        return f"first {counted(len(facts.first), 'row')}:"
    some = min(len(facts.first), facts.events - facts.empty)
    label = (
        f"first {counted(some, 'event')} with {facts.item}"
        if some
        else f"no event has {facts.item}: first events"
    )
    rest = len(facts.first) - some
    return f"{label}{f', and {rest} without' if some and rest else ''} ({facts.empty} of all are empty):"


def _multiplicities(facts: FileFacts) -> str:
    if facts.largest is None:
        return "  no events"
    named = ", ".join(f"{float(share):.3g}: {value}" for share, value in facts.quantiles.items())
    share = (facts.empty or 0) / facts.events
    return (
        f"  multiplicity: {counted(facts.events, 'event')}, {facts.items:,} {facts.item}, {facts.empty:,} "
        f"({share:.0%}) without; quantiles {named}; largest {facts.largest}"
    )


def _line(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{value['count']} {name} {_value(value['first'])}"
        if isinstance(value, dict) and value.keys() == {"count", "first"}
        else f"{name} {_value(value)}"
        for name, value in row.items()
    )


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + _line(value) + "}"
    return str(value)


# Rows of any Parquet file as values to show.


def _shown_rows(file: pq.ParquetFile, chosen: NDArray[Any]) -> Iterator[dict[str, Any]]:
    """Yield chosen rows as values to show, in their order; a value that cannot be read is "…"."""
    numbers, schema = chosen.tolist(), file.schema_arrow
    columns: dict[str, dict[int, Any]] = {name: {} for name in schema.names}
    for each in schema:
        try:
            if schema.names.count(each.name) == 1:  # a column is chosen by its name
                _collect(file, each, numbers, columns[each.name])
        except _UNSHOWN_FOR as error:
            refuse_machine_error(error, leave=OF_FORM, behind=OF_FORM)
    for number in numbers:
        yield {name: cells.get(number, _UNSHOWN) for name, cells in columns.items()}


def _collect(file: pq.ParquetFile, column: pa.Field, numbers: list[int], cells: dict[int, Any]) -> None:
    """Show one column at some rows, as far as it can be read: a small batch at a time."""
    start = 0
    for group in range(file.num_row_groups):
        footer = file.metadata.row_group(group)
        here = {number - start for number in numbers if start <= number < start + footer.num_rows}
        if here and _size(footer, column.name) <= _MOST_BYTES:
            step = 1 if pa.types.is_nested(column.type) else _ROWS
            batches = file.iter_batches(step, row_groups=[group], columns=[column.name], use_threads=False)
            for first, batch in zip(range(0, max(here) + 1, step), batches, strict=False):
                for index in (each for each in here if first <= each < first + len(batch)):
                    cells[start + index] = _shown(batch.column(0)[index - first], _SHOWN_DEPTH)
        start += footer.num_rows


def _size(footer: pq.RowGroupMetaData, name: str) -> int:
    """Add up the unpacked bytes of a column's parts in a row group."""
    leaves = [footer.column(index) for index in range(footer.num_columns)]
    parts = [leaf for leaf in leaves if f"{leaf.path_in_schema}.".startswith(f"{name}.")]
    return sum(leaf.total_uncompressed_size for leaf in parts)


def _shown(scalar: Any, depth: int) -> Any:
    """Return one value, cut to what a person reads; of a list only the first ones, a giant has millions."""
    with contextlib.suppress(*_UNSHOWN_FOR):
        if not scalar.is_valid:
            return None
        if depth:
            return (_nested if pa.types.is_nested(scalar.type) else _single)(scalar, depth - 1)
    return _UNSHOWN


def _nested(scalar: Any, depth: int) -> Any:
    if pa.types.is_struct(scalar.type):
        names = [field.name for field in islice(scalar.type, _SHOWN_FIELDS)]
        return {name: _shown(scalar[index], depth) for index, name in enumerate(names)}
    values = scalar.values  # of every kind of list, and the pairs of a map
    outer = depth == _SHOWN_DEPTH - 1
    most = min(len(values), _SHOWN_ITEMS if outer else _SHOWN_FIELDS)
    first = [_shown(values[index], depth) for index in range(most)]
    if outer:
        return {"count": len(values), "first": first}
    return [*first, _UNSHOWN] if most < len(values) else first


def _single(scalar: Any, depth: int) -> Any:
    if isinstance(scalar, pa.ExtensionScalar | pa.DictionaryScalar):
        return _shown(scalar.value, depth)
    if hasattr(scalar, "as_buffer"):  # texts and bytes
        return _text(scalar)
    value = scalar.as_py()
    return value if isinstance(value, bool | int | float) else _shorten(str(value))


def _text(scalar: Any) -> str:
    buffer = scalar.as_buffer()
    begin = buffer.slice(0, min(buffer.size, 4 * _SHOWN_TEXT)).to_pybytes()
    if isinstance(scalar, pa.StringScalar):
        return _shorten(begin.decode(errors="replace"))
    more = f"{_UNSHOWN} ({buffer.size} bytes)" if buffer.size > _SHOWN_BYTES else ""
    return f"{begin[:_SHOWN_BYTES]!r}{more}"


def _shorten(text: str) -> str:
    """Cut a text to a length that fits on a line."""
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}{_UNSHOWN}"
