"""Raw Parquet files of the simulation's converter: nested rows in, bounded blocks of flat events out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events
from crpipe.events.notes import note
from crpipe.workloads.common.raw_files import note_unread, open_parquet, refuse_twins, say_missing
from crpipe.workloads.muons.layout import (
    BUNDLES,
    CONVERTED_MUON,
    CONVERTED_PRIMARY,
    EXPECTATIONS,
    MUON,
    PRIMARY,
    RAW_MUONS,
    RAW_PRIMARY,
    nested_table,
)
from crpipe.workloads.muons.reading.checks import (
    Location,
    as_float32,
    check_owner,
    means_none,
    whole_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.events.expectations import Expectations
    from crpipe.events.layout import Field, Layout

# Row groups of a raw Parquet file: what their footers say, and bounded blocks of their rows.

# Arrow takes 65 to 85 bytes a muon while it decodes nested floats: up to 28 a value. A row group above the
# limit is decoded row by row (20 us each), because its muons may sit in a few adjacent giants.
_BYTES_PER_VALUE = 28
_BYTES_PER_WIDE_VALUE = 40  # of eight bytes, which become four
_DECODE_BYTES = 256 << 20
_BLOCK_BYTES = 16 << 20
_WIDE = ("DOUBLE", "INT64")


def muon_column(file: pq.ParquetFile, group: int) -> pq.ColumnChunkMetaData:
    """Find the column of the values of muons in the footer of a row group."""
    footer, prefix = file.metadata.row_group(group), f"{RAW_MUONS}."
    beside = tuple(
        f"{name}." for name in file.schema_arrow.names if name.startswith(prefix)
    )  # such as muons.n
    for index in range(footer.num_columns):
        path = f"{footer.column(index).path_in_schema}."
        if path.startswith(prefix) and not path.startswith(beside):
            return footer.column(index)
    raise pa.ArrowInvalid(f"a row group has no column {RAW_MUONS}")


def decode(file: pq.ParquetFile, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Decode columns of one row group, at once, or row by row where its muons might not fit into memory."""
    footer = file.metadata.row_group(group)
    if footer.num_rows <= 0:  # below 0 in a damaged footer
        return iter(())
    leaf = muon_column(file, group)
    width = _BYTES_PER_WIDE_VALUE if leaf.physical_type in _WIDE else _BYTES_PER_VALUE
    large = leaf.num_values * width > _DECODE_BYTES
    return file.iter_batches(
        batch_size=1 if large else footer.num_rows, row_groups=[group], columns=names, use_threads=False
    )


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


def check_complete(path: Path, file: pq.ParquetFile, group: int, rows: int, values: int) -> None:
    """Compare what was decoded with the footer: each empty event takes one place in the column of values."""
    listed = file.metadata.row_group(group).num_rows
    expected = (listed, muon_column(file, group).num_values if listed else 0)
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


PRIMARY_NAMES = tuple(field.name for field in PRIMARY)
MUON_NAMES = tuple(field.name for field in MUON)
_WRITE = "rename them, or write a reader of your own: docs/workload.md"


@dataclass(frozen=True, slots=True)
class Bundles:
    """Reader of the simulation's files: ids in columns of their own, a primary of four values.

    primary, muon: names of the float32 values of one ``primary`` and of one of its ``muons``, in the order of
        the file; names that are no field of the layout are skipped.
    zeros_for_none: whether a single muon whose values are all 0, but for its ids, stands for no muon.

    Ids that are columns of their own are read from there, otherwise from ``primary``: in a column of integers
    they are exact, in a float32 list they are rounded. Other values come from ``primary`` where it has them.
    Ids inside a muon must be those of its primary. Other types of numbers are accepted where each value can
    be kept: integers as ids, and float64, which is rounded to float32, as values. Lists without a type are
    empty. Files of another width, nulls, other types and damage are a FormatError.
    """

    primary: tuple[str, ...] = PRIMARY_NAMES
    muon: tuple[str, ...] = MUON_NAMES
    zeros_for_none: bool = False
    layout: Layout = BUNDLES
    needs: tuple[str, ...] = ()
    formats: ClassVar[tuple[str, ...]] = ("Parquet",)
    expectations: ClassVar[Expectations] = EXPECTATIONS

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:  # noqa: ARG002
        """Yield all events in order, in blocks of about a million muons, or one larger event."""
        with open_parquet(path) as file:
            names = self._columns(path, file)
            row = 0
            for group in range(file.num_row_groups):
                read = values = 0
                for batch in blocks(decode(file, group, names)):
                    events, places = self._events(batch, Location(path, row + read))
                    read += len(events)
                    values += places
                    yield events
                check_complete(path, file, group, read, values)
                row += read

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events and muons from the footer; read the file where that does not hold their numbers."""
        with open_parquet(path) as file:
            self._columns(path, file)
            groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
            self._note(file.schema_arrow)
            by_arrow = file.metadata.created_by.startswith("parquet-cpp-arrow")
            leaves = [
                (column.num_values, column.statistics)
                for column in (muon_column(file, at) for at, group in enumerate(groups) if group.num_rows)
            ]
        has_counts = all(statistics is not None and statistics.has_null_count for _, statistics in leaves)
        nulls = sum(statistics.null_count for _, statistics in leaves) if has_counts else 0
        # Polars before version 2 counts no empty event as a null: without any there may be many.
        if has_counts and (nulls or by_arrow) and not self.zeros_for_none:
            muons, left = divmod(sum(count for count, _ in leaves) - nulls, len(self.muon))
            if not left:  # else the row that is wrong is named where it is read
                return sum(footer.num_rows for footer in groups), muons
        read = [(len(events), len(events.items)) for events in self.rows(path, tables)]
        return sum(events for events, _ in read), sum(muons for _, muons in read)

    def raw_table(self, events: Events) -> pa.Table:
        """Return events in the simulation's own schema."""
        return nested_table(events.columns, events.multiplicity, events.items)

    def _columns(self, path: Path, file: pq.ParquetFile) -> list[str]:
        """Names of the columns to read; raise FormatError when one is missing or of another type."""
        schema = file.schema_arrow
        plain = [field for field in self.layout.events if field.name in schema.names and self._is_own(field)]
        missing = {field.name for field in self.layout.events} - {*schema.names, *self.primary}
        lists = {RAW_PRIMARY, RAW_MUONS} - {*schema.names}
        if missing | lists:
            other = "" if lists else _readers_of(RAW_PRIMARY, primary_width(file), but=type(self))
            raise FormatError(
                f"{path}: {say_missing(sorted(missing | lists), schema.names, other or _WRITE)}"
            )
        refuse_twins(path, schema.names, (*(field.name for field in plain), RAW_PRIMARY, RAW_MUONS))
        for field in plain:
            kind = schema.field(field.name).type
            if not (_is_whole(kind) if field.dtype == "uint64" else _is_number(kind)):
                raise FormatError(
                    f"{path}: column {field.name}: expected {field.dtype}, found {kind}; have the file "
                    f"made again{_CAST_IDS if field.dtype == 'uint64' else ''}"
                )
        for name, depth in ((RAW_PRIMARY, 1), (RAW_MUONS, 2)):
            _check_nesting(path, name, schema.field(name).type, depth)
        return [*(field.name for field in plain), RAW_PRIMARY, RAW_MUONS]

    def _is_own(self, field: Field) -> bool:
        """Return whether a field is read from a column of its own where there is one."""
        return field.dtype == "uint64" or field.name not in self.primary

    def _note(self, schema: pa.Schema) -> None:
        """Describe which columns are converted, and which are not read."""
        dtypes = {field.name: field.dtype for field in self.layout.events if self._is_own(field)}
        for field in schema:
            if field.name in dtypes and str(field.type) != _ARROW_NAMES[dtypes[field.name]]:
                note(f"column {field.name}: {field.type} is read as {dtypes[field.name]}")
            elif field.name in (RAW_PRIMARY, RAW_MUONS):
                leaf = _leaf(field.type, 1 if field.name == RAW_PRIMARY else 2)
                if leaf not in (pa.float32(), pa.null()):
                    note(f"column {field.name}: values of type {leaf} are read as float32")
        note_unread(schema.names, (*dtypes, RAW_PRIMARY, RAW_MUONS))

    def _events(self, batch: pa.RecordBatch, where: Location) -> tuple[Events, int]:
        """Return the events of a batch, and how many places of the column of values they took."""
        primary = _rows_of(_lists_of(batch.column(RAW_PRIMARY), 1), self.primary, where.of(RAW_PRIMARY))
        starts, tracks = _unnest(_lists_of(batch.column(RAW_MUONS), 2), where.of(RAW_MUONS))
        multiplicity = np.diff(starts).astype(np.uint32)
        inside = where.of(RAW_MUONS).inside(starts)
        muons = _rows_of(tracks, self.muon, inside, len(self.primary))
        places = muons.size + int((multiplicity == 0).sum())
        columns = {field.name: self._column(primary, field, where, batch) for field in self.layout.events}
        return self._assembled(columns, multiplicity, muons, where), places

    def _assembled(
        self,
        columns: dict[str, NDArray[Any]],
        multiplicity: NDArray[np.uint32],
        muons: NDArray[Any],
        where: Location,
    ) -> Events:
        """Check the ids of muons, [M, len(self.muon)], and leave out what stands for none."""
        for name in self.layout.group:
            if name in self.muon:
                check_owner(columns[name], multiplicity, muons[:, self.muon.index(name)], where.of(name))
        if self.zeros_for_none:
            empty = self._none(multiplicity, muons)
            muons = muons[~np.repeat(empty, multiplicity)]
            multiplicity = np.where(empty, 0, multiplicity).astype(np.uint32)
        indices = [self.muon.index(field.name) for field in self.layout.items]
        if indices != list(range(len(self.muon))):
            muons = np.ascontiguousarray(muons[:, indices])
        return Events(columns, multiplicity, as_float32(muons))

    def _none(self, multiplicity: NDArray[np.uint32], muons: NDArray[Any]) -> NDArray[np.bool_]:
        """Find the events whose only muon is all 0 but for its ids."""
        values = [index for index, name in enumerate(self.muon) if name not in self.layout.group]
        return means_none(multiplicity, muons[:, values])

    def _column(
        self, primary: NDArray[Any], field: Field, where: Location, batch: pa.RecordBatch | None = None
    ) -> NDArray[Any]:
        if batch is not None and field.name in batch.schema.names:
            column = batch.column(field.name)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if column.null_count:
                raise where.of(field.name).error(_first_null(column), field.dtype, "null")
            values = np.asarray(column.to_numpy(zero_copy_only=False))
        else:
            values = np.ascontiguousarray(primary[:, self.primary.index(field.name)])
        if values.dtype == field.dtype:
            return values
        return as_float32(values) if field.dtype == "float32" else whole_numbers(values, where.of(field.name))


_ARROW_NAMES = {"uint64": "uint64", "float32": "float"}
_CAST_IDS = " with ids of a whole type (in pandas: .astype('uint64')), which are not rounded"


def _is_list(kind: pa.DataType) -> bool:
    kinds = pa.types
    plain = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
    return bool(plain or kinds.is_list_view(kind) or kinds.is_large_list_view(kind))


def _is_whole(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def _is_number(kind: pa.DataType) -> bool:
    return _is_whole(kind) or bool(pa.types.is_floating(kind))


def _leaf(kind: pa.DataType, depth: int) -> pa.DataType | None:
    """Return the type inside of so many lists; a list without a type is one of any depth, None no list."""
    for _ in range(depth):
        if pa.types.is_null(kind):
            break
        if not _is_list(kind):
            return None
        kind = kind.value_type
    return kind


def _check_nesting(path: Path, name: str, kind: pa.DataType, depth: int) -> None:
    leaf = _leaf(kind, depth)
    if leaf is None or not _is_number(leaf):
        expected = "list<" * depth + "float32" + ">" * depth
        raise FormatError(
            f"{path}: column {name}: expected {expected}, found {kind}; write lists of numbers, as "
            "docs/own-data.md shows, or a reader of your own: docs/workload.md"
        )


def _lists_of(array: pa.Array, depth: int) -> pa.Array:
    """Return any kind of lists as plain ones of the same values; those without a type inside hold none."""
    leaf = _leaf(array.type, depth)
    target = pa.float32() if pa.types.is_null(leaf) else leaf
    for _ in range(depth):
        target = pa.list_(target)
    if "list_view" in str(array.type):
        array = _without_views(array, depth)
    return array if array.type == target else array.cast(target)


def _without_views(array: pa.Array, depth: int) -> pa.Array:
    """Return list views as lists; pyarrow's own cast forgets the last offset (26.0.1)."""
    if depth == 0 or pa.types.is_null(array.type):
        return array
    ends = pc.fill_null(pc.list_value_length(array), 0).to_numpy().cumsum(dtype=np.int64)
    inside = _without_views(array.flatten(), depth - 1)
    missing = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(np.append(0, ends)), inside, mask=missing)


def _first_null(array: pa.Array) -> int:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))


def _unnest(array: pa.Array, where: Location) -> tuple[NDArray[np.int64], pa.Array]:
    """Strip one level of lists: offsets [N + 1] from 0, and the array of what the lists held."""
    if array.null_count:
        raise where.error(_first_null(array), "a list", "null")
    starts = array.offsets.to_numpy()
    first, last = int(starts[0]), int(starts[-1])
    return starts.astype(np.int64) - first, array.values.slice(first, last - first)


def _rows_of(array: pa.Array, names: tuple[str, ...], where: Location, primary: int = 0) -> NDArray[Any]:
    """Turn lists of ``len(names)`` numbers each into [N, len(names)] of their type, without a copy.

    primary: width of the rows' primaries, where it is known, for the message about another width.
    """
    width = len(names)
    if array.null_count:
        raise where.error(_first_null(array), f"{width} values", "null")
    starts = array.offsets.to_numpy()
    _check_width(starts, names, where, primary)
    values = array.values.slice(int(starts[0]), int(starts[-1] - starts[0]))
    if values.null_count:
        raise where.error(_first_null(values) // width, _values(names), "a null among them")
    return np.asarray(values.to_numpy()).reshape(-1, width)


def _check_width(starts: NDArray[Any], names: tuple[str, ...], where: Location, primary: int) -> None:
    step = 1 << 20  # a 10^7-muon event would need another 100 MB at once
    for first in range(0, len(starts) - 1, step):
        widths = np.diff(starts[first : first + step + 1])
        if (widths != len(names)).any():
            index = int(np.argmax(widths != len(names)))
            width = int(widths[index])
            remedy = _readers_of(where.column, width, primary)
            raise where.error(first + index, _values(names), f"{width} values", remedy)


def _values(names: tuple[str, ...]) -> str:
    return f"{len(names)} values ({', '.join(names)})"


@dataclass(frozen=True, slots=True)
class BundlesDepthTime(Bundles):
    """A primary of five values, with a time after the depth."""

    primary: tuple[str, ...] = (*PRIMARY_NAMES, "time")


@dataclass(frozen=True, slots=True)
class BundlesTimeDepth(Bundles):
    """A primary of five values, with a time before the depth."""

    primary: tuple[str, ...] = (*PRIMARY_NAMES[:3], "time", PRIMARY_NAMES[3])


@dataclass(frozen=True, slots=True)
class BundlesIds(Bundles):
    """A primary of six values that begins with the ids."""

    primary: tuple[str, ...] = (*BUNDLES.group, *PRIMARY_NAMES)


@dataclass(frozen=True, slots=True)
class BundlesIdsMuons(Bundles):
    """A primary of six values and muons of five, which begin with the ids."""

    primary: tuple[str, ...] = (*BUNDLES.group, *PRIMARY_NAMES)
    muon: tuple[str, ...] = (*BUNDLES.group, *MUON_NAMES)


@dataclass(frozen=True, slots=True)
class BundlesConverted(Bundles):
    """A primary of seven values and muons of six: the rows of the HDF5 files, as Parquet.

    Both begin with the ids and have a time, which is skipped. Ids are as exact as float32 is.
    """

    primary: tuple[str, ...] = CONVERTED_PRIMARY
    muon: tuple[str, ...] = CONVERTED_MUON
    zeros_for_none: bool = True


_READERS = (Bundles, BundlesDepthTime, BundlesTimeDepth, BundlesIds, BundlesIdsMuons, BundlesConverted)


def _readers_of(column: str, width: int, primary: int = 0, but: type[Bundles] | None = None) -> str:
    """Name the readers of files in which ``column`` has this width; empty when there is none.

    primary: width of the primary, where it is known; 0: any. but: the one that does not read the file.
    """
    names = []
    for kind in _READERS:
        if kind is but:
            continue
        reader = kind()
        widths = {RAW_PRIMARY: len(reader.primary), RAW_MUONS: len(reader.muon)}
        if widths.get(column) == width and primary in (0, widths[RAW_PRIMARY]):
            names.append(f"{__name__}:{kind.__name__}")
    if not names:
        return ""
    return f"such files are read with source.reader: {' or '.join(names)}"
