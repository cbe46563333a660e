"""Raw Parquet files of the simulation's converter: nested rows in, bounded blocks of flat events out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import FormatError
from crpipe.core.raw_files import open_parquet
from crpipe.events.batch import Events
from crpipe.workloads.muons.layout import (
    BUNDLES,
    CONVERTED_MUON,
    CONVERTED_PRIMARY,
    MUON,
    PRIMARY,
    PRIMARY_IDS,
    RAW_MUONS,
    RAW_PRIMARY,
)
from crpipe.workloads.muons.nested_rows import nested_table
from crpipe.workloads.muons.reading.checks import (
    Location,
    check_owner,
    means_none,
    reading,
    refuse_twins,
    whole_numbers,
)
from crpipe.workloads.muons.reading.row_groups import (
    blocks,
    check_complete,
    decode,
    muon_column,
    primary_width,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.layout import Field, Layout
    from crpipe.events.tables import Tables

PRIMARY_NAMES = tuple(field.name for field in PRIMARY)
MUON_NAMES = tuple(field.name for field in MUON)
_CHOOSE = "choose the reader of its layout with source.reader"


@dataclass(frozen=True, slots=True)
class Bundles:
    """Reader of the simulation's files: ids in columns of their own, a primary of four values.

    primary, muon: names of the float32 values of one ``primary`` and of one of its ``muons``, in the order of
        the file; names that are no field of the layout are skipped.
    zeros_for_none: whether a single muon whose values are all 0, but for its ids, stands for no muon.

    An event field that is a column of its own is read from there, otherwise from ``primary``: ids in a
    uint64 column are exact, in a float32 list they are rounded. Ids inside a muon must be those of its
    primary. Files of another width, nulls, other types and damage are a FormatError.
    """

    primary: tuple[str, ...] = PRIMARY_NAMES
    muon: tuple[str, ...] = MUON_NAMES
    zeros_for_none: bool = False
    layout: Layout = BUNDLES
    needs: tuple[str, ...] = ()

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:  # noqa: ARG002
        """Yield all events in order, in blocks of about a million muons, or one larger event."""
        with reading(path), open_parquet(path) as file:
            names = self._columns(path, file)
            row = 0
            for group in range(file.num_row_groups):
                footer = file.metadata.row_group(group)
                read = found = 0
                for batch in blocks(decode(file, group, names)):
                    events, places = self._events(batch, Location(path, row + read))
                    read += len(events)
                    found += places
                    yield events
                check_complete(path, footer, read, found)
                row += read

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events and muons from the footer; read the file where that does not hold their numbers."""
        with reading(path), open_parquet(path) as file:
            self._columns(path, file)
            groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
            leaves = [(column.num_values, column.statistics) for column in map(muon_column, groups)]
        known = all(statistics is not None and statistics.has_null_count for _, statistics in leaves)
        if known and not self.zeros_for_none:
            values = sum(count - statistics.null_count for count, statistics in leaves)
            muons, left = divmod(values, len(self.muon))
            if left:
                raise FormatError(
                    f"{path}: {RAW_MUONS} holds {values} values, not a multiple of {len(self.muon)}; "
                    f"{_CHOOSE}"
                )
            return sum(footer.num_rows for footer in groups), muons
        read = [(len(events), len(events.items)) for events in self.rows(path, tables)]
        return sum(events for events, _ in read), sum(muons for _, muons in read)

    def raw_table(self, events: Events) -> pa.Table:
        """Return events in the simulation's own schema."""
        return nested_table(events.columns, events.multiplicity, events.items)

    def _columns(self, path: Path, file: pq.ParquetFile) -> list[str]:
        """Names of the columns to read; raise FormatError when one is missing or of another type."""
        schema = file.schema_arrow
        plain = [field for field in self.layout.events if field.name in schema.names]
        missing = {field.name for field in self.layout.events} - {*schema.names, *self.primary}
        missing |= {RAW_PRIMARY, RAW_MUONS} - {*schema.names}
        if missing:
            raise FormatError(
                f"{path}: no column {', '.join(sorted(missing))}; the file has {', '.join(schema.names)}; "
                f"{_readers_of(RAW_PRIMARY, primary_width(file)) or _CHOOSE}"
            )
        expected = {field.name: pa.from_numpy_dtype(np.dtype(field.dtype)) for field in plain}
        refuse_twins(path, schema.names, (*expected, RAW_PRIMARY, RAW_MUONS))
        for name, kind in expected.items():
            if schema.field(name).type != kind:
                raise FormatError(f"{path}: column {name}: expected {kind}, found {schema.field(name).type}")
        for name, depth in ((RAW_PRIMARY, 1), (RAW_MUONS, 2)):
            _check_nesting(path, name, schema.field(name).type, depth)
        return [*expected, RAW_PRIMARY, RAW_MUONS]

    def _events(self, batch: pa.RecordBatch, place: Location) -> tuple[Events, int]:
        """Give the events of a batch, and how many places of the column of values they took."""
        primary = _rows_of(batch.column(RAW_PRIMARY), self.primary, place.of(RAW_PRIMARY))
        starts, tracks = _unnest(batch.column(RAW_MUONS), place.of(RAW_MUONS))
        multiplicity = np.diff(starts).astype(np.uint32)
        inside = place.of(RAW_MUONS).inside(starts)
        muons = _rows_of(tracks, self.muon, inside, len(self.primary))
        places = muons.size + int((multiplicity == 0).sum())
        columns = {field.name: self._column(batch, primary, field, place) for field in self.layout.events}
        self._check_ids(columns, multiplicity, muons, place)
        if self.zeros_for_none:
            values = [place for place, name in enumerate(self.muon) if name not in self.layout.group]
            empty = means_none(multiplicity, muons[:, values])
            muons = muons[~np.repeat(empty, multiplicity)]
            multiplicity[empty] = 0
        wanted = [self.muon.index(field.name) for field in self.layout.items]
        if wanted != list(range(len(self.muon))):
            muons = np.ascontiguousarray(muons[:, wanted])
        return Events(columns, multiplicity, muons), places

    def _column(
        self, batch: pa.RecordBatch, primary: NDArray[np.float32], field: Field, place: Location
    ) -> NDArray[Any]:
        if field.name in batch.schema.names:
            column = batch.column(field.name)
            if column.null_count:
                raise place.of(field.name).error(_first_null(column), field.dtype, "null")
            return np.asarray(column.to_numpy())
        values = np.ascontiguousarray(primary[:, self.primary.index(field.name)])
        return values if field.dtype == "float32" else whole_numbers(values, place.of(field.name))

    def _check_ids(
        self,
        columns: dict[str, NDArray[Any]],
        multiplicity: NDArray[np.uint32],
        muons: NDArray[np.float32],
        place: Location,
    ) -> None:
        for name in self.layout.group:
            if name in self.muon:
                check_owner(columns[name], multiplicity, muons[:, self.muon.index(name)], place.of(name))


def _is_list(kind: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _check_nesting(path: Path, name: str, kind: pa.DataType, depth: int) -> None:
    inner = kind
    for _ in range(depth):
        inner = inner.value_type if _is_list(inner) else None
        if inner is None:
            break
    if inner != pa.float32():
        expected = "list<" * depth + "float32" + ">" * depth
        raise FormatError(f"{path}: column {name}: expected {expected}, found {kind}")


def _first_null(array: pa.Array) -> int:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))


def _unnest(array: pa.Array, place: Location) -> tuple[NDArray[np.int64], pa.Array]:
    """Strip one level of lists: offsets [N + 1] from 0, and the array of what the lists held."""
    if array.null_count:
        raise place.error(_first_null(array), "a list", "null")
    if pa.types.is_fixed_size_list(array.type):
        starts = np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size
        return starts, array.flatten()
    starts = array.offsets.to_numpy()
    first, last = int(starts[0]), int(starts[-1])
    return starts.astype(np.int64) - first, array.values.slice(first, last - first)


def _rows_of(
    array: pa.Array, names: tuple[str, ...], place: Location, primary: int = 0
) -> NDArray[np.float32]:
    """Turn lists of ``len(names)`` floats each into [N, len(names)], without a copy.

    primary: width of the rows' primaries, where it is known, for the message about another width.
    """
    width = len(names)
    if array.null_count:
        raise place.error(_first_null(array), f"{width} values", "null")
    if pa.types.is_fixed_size_list(array.type):
        values = array.flatten()
        if array.type.list_size != width and len(array):
            remedy = _readers_of(place.column, array.type.list_size, primary)
            raise place.error(0, _values(names), f"{array.type.list_size} values", remedy)
    else:
        starts = array.offsets.to_numpy()
        _check_width(starts, names, place, primary)
        values = array.values.slice(int(starts[0]), int(starts[-1] - starts[0]))
    if values.null_count:
        raise place.error(_first_null(values) // width, _values(names), "a null among them")
    return np.asarray(values.to_numpy()).reshape(-1, width)


def _check_width(starts: NDArray[Any], names: tuple[str, ...], place: Location, primary: int) -> None:
    step = 1 << 20  # a 10^7-muon event would need another 100 MB at once
    for first in range(0, len(starts) - 1, step):
        widths = np.diff(starts[first : first + step + 1])
        if (widths != len(names)).any():
            index = int(np.argmax(widths != len(names)))
            found = int(widths[index])
            remedy = _readers_of(place.column, found, primary)
            raise place.error(first + index, _values(names), f"{found} values", remedy)


def _values(names: tuple[str, ...]) -> str:
    return f"{len(names)} values ({', '.join(names)})"


_IDS = tuple(field.name for field in PRIMARY_IDS)


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

    primary: tuple[str, ...] = (*_IDS, *PRIMARY_NAMES)


@dataclass(frozen=True, slots=True)
class BundlesIdsMuons(Bundles):
    """A primary of six values and muons of five, which begin with the ids."""

    primary: tuple[str, ...] = (*_IDS, *PRIMARY_NAMES)
    muon: tuple[str, ...] = (*_IDS, *MUON_NAMES)


@dataclass(frozen=True, slots=True)
class BundlesConverted(Bundles):
    """A primary of seven values and muons of six: the rows of the HDF5 files, as Parquet.

    Both begin with the ids and have a time, which is skipped. Ids are as exact as float32 is.
    """

    primary: tuple[str, ...] = CONVERTED_PRIMARY
    muon: tuple[str, ...] = CONVERTED_MUON
    zeros_for_none: bool = True


_READERS = (Bundles, BundlesDepthTime, BundlesTimeDepth, BundlesIds, BundlesIdsMuons, BundlesConverted)


def _readers_of(column: str, width: int, primary: int = 0) -> str:
    """Name the readers of files in which ``column`` has this width; empty when there is none.

    primary: width of the primary, where it is known; 0: any.
    """
    names = []
    for kind in _READERS:
        reader = kind()
        widths = {RAW_PRIMARY: len(reader.primary), RAW_MUONS: len(reader.muon)}
        if widths.get(column) == width and primary in (0, widths[RAW_PRIMARY]):
            names.append(f"{__name__}:{kind.__name__}")
    if not names:
        return ""
    return f"such files are read with source.reader: {' or '.join(names)}"
