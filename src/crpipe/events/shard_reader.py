"""Shards open for reading: the pair NAME.events.parquet and NAME.<items>.parquet, checked when read.

A manifest's shards come in; row groups as arrays come out. Damage of any kind is a ShardError with the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.causes import OF_FORM, is_there, refuse_machine_error, retry_io
from crpipe.core.errors import DataError, ShardError
from crpipe.core.paths import MANIFEST
from crpipe.events.batch import Events, offsets
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Layout
from crpipe.events.shard_records import ShardEntry, ShardManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


GROUPS_KEY = b"crpipe:groups"  # JSON in the events file: item row groups of each events row group
# What pyarrow raises for bytes that do not fit; a damaged name is a ValueError: it is not UTF-8.
DAMAGE = (OSError, ValueError, pa.ArrowException)
REMEDY = "type what `crpipe check` prints for it; nothing that is whole is deleted"
_LOOK = (
    "look whether the file server shows it, and run the same command again; if somebody deleted it, type "
    "what `crpipe check` prints for it"
)


@dataclass(frozen=True, slots=True)
class Table:
    """One Parquet file: what its footer says about rows.

    rows: [G + 1] first row of each row group, and the end.
    """

    path: Path
    rows: NDArray[np.int64]

    @property
    def groups(self) -> int:
        """The number of row groups."""
        return len(self.rows) - 1

    def open(self, group: int, buffer_size: int = 0) -> pq.ParquetFile:
        """Open the file to decode a row group; raise ShardError when it has other rows than before.

        buffer_size: bytes read at once from a column; 0: all of it.
        """
        return retry_io(lambda: self._opened(group, buffer_size), self.path)

    def _opened(self, group: int, buffer_size: int) -> pq.ParquetFile:
        status = self.path.stat()
        footer, rows = _footer(self.path, (status.st_ino, status.st_size, status.st_mtime_ns))
        if not np.array_equal(rows, self.rows):
            raise self.damaged(group, "the file was replaced while it was in use")
        return pq.ParquetFile(
            self.path,
            metadata=footer,
            pre_buffer=False,
            page_checksum_verification=True,
            buffer_size=buffer_size,
        )

    def read(self, group: int, columns: list[str]) -> dict[str, NDArray[Any]]:
        """Decode columns of one row group; raise ShardError when a page does not match its checksum."""
        try:
            return retry_io(lambda: self._decoded(group, columns))
        except DAMAGE as error:
            raise self.damaged(group, error) from error

    def _decoded(self, group: int, columns: list[str]) -> dict[str, NDArray[Any]]:
        with self.open(group) as file:
            table = file.read_row_group(group, columns=columns, use_threads=False)
        return {name: values_of(table[name]) for name in columns}

    def damaged(self, group: int, error: Exception | str) -> ShardError:
        """Name a row group whose bytes are wrong; raise MachineError where they could not be read."""
        if isinstance(error, Exception):
            refuse_machine_error(error, self.path, OF_FORM, OF_FORM)
        return ShardError(f"{self.path}: row group {group} cannot be read ({error}); {REMEDY}")


@dataclass(frozen=True, slots=True)
class ShardPair:
    """One shard.

    item_groups: [G + 1] first row group in ``items`` of each row group of ``events``, and the end.
    folder: number of its folder among those that were opened.
    """

    events: Table
    items: Table
    item_groups: NDArray[np.int64]
    folder: int

    @property
    def item_rows(self) -> NDArray[np.int64]:
        """First row of each row group of ``items``, and the end: [H + 1]."""
        return self.items.rows


@dataclass(frozen=True, slots=True)
class Group:
    """One decoded row group of events: columns and multiplicity [N]; first item row of each, and the end."""

    columns: dict[str, NDArray[Any]]
    multiplicity: NDArray[np.uint32]
    item_rows: NDArray[np.int64]

    def cut(self, first: int, last: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint32]]:
        """Columns and multiplicity of the events [first, last), without a copy."""
        columns = {name: column[first:last] for name, column in self.columns.items()}
        return columns, self.multiplicity[first:last]


class Shards:
    """The shards of one role in some folders; holds the last row group of each table."""

    def __init__(self, folders: Path | Iterable[Path], role: str, layout: Layout) -> None:
        numbered = enumerate(folders_of(folders))
        self.pairs = [pair for at, folder in numbered for pair in _open_all(folder, role, layout, at)]
        self._columns = list(event_columns(layout))
        self._items = [field.name for field in layout.items]
        self._group: tuple[tuple[int, int], Group] | None = None
        self._block: tuple[tuple[int, int], dict[str, NDArray[Any]]] | None = None

    def multiplicity(self, shard: int, group: int) -> NDArray[np.uint32]:
        """Multiplicities of one row group of events, [N]: 4 bytes an event."""
        pair = self.pairs[shard]
        return consistent(pair, group, pair.events.read(group, [MULTIPLICITY])[MULTIPLICITY])

    def multiplicities(self) -> NDArray[np.uint32]:
        """Multiplicities of all events, in the order of shards and row groups: [N]."""
        parts = [np.empty(0, np.uint32)]
        for shard, pair in enumerate(self.pairs):
            parts += [self.multiplicity(shard, group) for group in range(pair.events.groups)]
        return np.concatenate(parts)

    def group(self, shard: int, group: int) -> Group:
        """Decode one row group of events, or give the last one again."""
        if self._group is None or self._group[0] != (shard, group):
            self._group = None
            self._group = (shard, group), self.decode(shard, group)
        return self._group[1]

    def decode(self, shard: int, group: int) -> Group:
        """Decode one row group of events."""
        pair = self.pairs[shard]
        columns = pair.events.read(group, [*self._columns, MULTIPLICITY])
        multiplicity = consistent(pair, group, columns.pop(MULTIPLICITY))
        first = pair.item_rows[pair.item_groups[group]]
        return Group(columns, multiplicity, offsets(multiplicity) + first)

    def items(self, shard: int, low: int, high: int, out: NDArray[np.float32]) -> None:
        """Copy the item rows [low, high) of a shard into ``out``, [high - low, K]."""
        rows = self.pairs[shard].item_rows
        for block in range(*touched(rows, low, high)):
            columns = self._decoded(shard, block)
            start, stop = max(low, rows[block]), min(high, rows[block + 1])
            inside = slice(start - rows[block], stop - rows[block])
            for column, name in enumerate(self._items):
                out[start - low : stop - low, column] = columns[name][inside]

    def _decoded(self, shard: int, block: int) -> dict[str, NDArray[Any]]:
        if self._block is None or self._block[0] != (shard, block):
            self._block = None
            self._block = (shard, block), self.pairs[shard].items.read(block, self._items)
        return self._block[1]


def consistent(pair: ShardPair, group: int, multiplicity: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a row group's multiplicities if they add up to the rows of its items; raise ShardError."""
    low, high = pair.item_rows[pair.item_groups[group : group + 2]]
    counted = int(multiplicity.sum(dtype=np.int64))
    if counted != high - low:
        raise ShardError(
            f"{pair.events.path}: row group {group} counts {counted} items, "
            f"{pair.items.path.name} holds {high - low}; {REMEDY}"
        )
    return multiplicity


def values_of(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """The values of a column, copied only where it was decoded in several chunks."""
    whole = column
    if isinstance(column, pa.ChunkedArray):
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_boolean(whole.type):  # DLPack has no bits
        return np.from_dlpack(whole.cast(pa.uint8())).view(np.bool_)
    # Not to_numpy: it would import pandas, a quarter of a second of every process.
    values: NDArray[Any] = np.from_dlpack(whole)
    return values


def folders_of(folders: Path | Iterable[Path]) -> tuple[Path, ...]:
    """List one folder, or several."""
    return (folders,) if isinstance(folders, Path) else tuple(folders)


def event_columns(layout: Layout) -> dict[str, str]:
    """Names and dtypes of the columns that each event of a batch carries: its own, and where it came from."""
    dtypes = {field.name: field.dtype for field in layout.events}
    return dtypes | dict.fromkeys((SOURCE_FILE, SOURCE_ROW), "uint32")


def no_events(layout: Layout) -> Events:
    """Return events of a layout, of which there are none."""
    columns = {name: np.empty(0, dtype) for name, dtype in event_columns(layout).items()}
    return Events(columns, np.empty(0, np.uint32), np.empty((0, len(layout.items)), np.float32))


def touched(borders: NDArray[np.int64], low: int, high: int) -> tuple[int, int]:
    """Find the intervals between ascending ``borders`` that overlap [low, high): first, last + 1."""
    if low >= high:
        return 0, 0
    first = np.searchsorted(borders, low, side="right") - 1
    return int(first), int(np.searchsorted(borders, high, side="left"))


def _open_all(folder: Path, role: str, layout: Layout, number: int) -> Iterator[ShardPair]:
    path = folder / MANIFEST
    try:
        for entry in ShardManifest.read(path).of_role(role):
            yield open_shard(folder, entry, layout, number)
    except ShardError:
        raise
    except DataError as error:
        raise ShardError(str(error)) from error


def open_shard(folder: Path, entry: ShardEntry, layout: Layout, number: int = 0) -> ShardPair:
    """Open one shard of the manifest; raise ShardError when sizes, columns or rows are not as it says."""

    def open_part(part: str, columns: Mapping[str, str]) -> tuple[Table, bytes | None]:
        if part not in entry.files:
            raise ShardError(f"{folder / MANIFEST}: the key {part!r} is missing; {REMEDY}")
        return _table(folder / f"{entry.name}.{part}.parquet", entry.files[part].size, columns)

    events, listed = open_part("events", event_columns(layout) | {MULTIPLICITY: "uint32"})
    items, _ = open_part(layout.item, {field.name: field.dtype for field in layout.items})
    for table, rows in ((events, entry.events), (items, entry.items)):
        if table.rows[-1] != rows:
            raise ShardError(f"{table.path}: {table.rows[-1]} rows, the manifest says {rows}; {REMEDY}")
    return ShardPair(events, items, _item_groups(events, items, listed), number)


def _table(path: Path, size: int, columns: Mapping[str, str]) -> tuple[Table, bytes | None]:
    """Read a footer once: the rows of its groups, and what it says about the groups of items."""
    try:
        if not is_there(path):
            raise ShardError(f"{path}: missing, though the manifest names it; {_LOOK}")
        actual = retry_io(path.stat).st_size
        if actual != size:
            raise ShardError(f"{path}: {actual} bytes, the manifest says {size}; {REMEDY}")
        footer = retry_io(lambda: pq.read_metadata(path), path)
        types = {field.name: field.type for field in footer.schema.to_arrow_schema()}
    except DAMAGE as error:
        refuse_machine_error(error, path, OF_FORM, OF_FORM)
        raise ShardError(f"{path}: the footer cannot be read ({error}); {REMEDY}") from error
    for name, dtype in columns.items():
        if types.get(name) != pa.from_numpy_dtype(dtype):
            raise ShardError(f"{path}: no column {name} of {dtype}; {REMEDY}")
    return Table(path, _rows_of(footer)), (footer.metadata or {}).get(GROUPS_KEY)


@lru_cache(maxsize=64)
def _footer(path: Path, _same: tuple[int, ...]) -> tuple[pq.FileMetaData, NDArray[np.int64]]:
    """Read a footer and the rows of its row groups; ``_same`` tells a file from one that replaced it.

    Each column of each row group opens its file: parsing the footer again would be a tenth of decoding.
    """
    footer = pq.read_metadata(path)
    return footer, _rows_of(footer)


def _rows_of(footer: pq.FileMetaData) -> NDArray[np.int64]:
    """First row of each row group, and the end: [G + 1]."""
    groups = range(footer.num_row_groups)
    return offsets(np.array([footer.row_group(group).num_rows for group in groups], np.int64))


def _item_groups(events: Table, items: Table, listed: bytes | None) -> NDArray[np.int64]:
    """Row groups of ``items`` for each row group of ``events``: one each, or as listed."""
    groups = events.groups
    try:
        counts = json.loads(listed) if listed else [1] * groups
    except ValueError as error:
        raise ShardError(f"{events.path}: crpipe:groups is not JSON ({error}); {REMEDY}") from error
    if len(counts) != groups or sum(counts) != items.groups:
        raise ShardError(
            f"{events.path}: {groups} row groups do not match the {items.groups} of "
            f"{items.path.name}; {REMEDY}"
        )
    return offsets(np.array(counts, np.int64))
