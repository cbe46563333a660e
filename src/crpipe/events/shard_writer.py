"""Writes shards: the pair NAME.events.parquet and NAME.<items>.parquet, and their entry for the manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core import checksums
from crpipe.core.destinations import LARGE_ROLES
from crpipe.core.files import forget_cached, replacing
from crpipe.events.encodings import item_options
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_reader import GROUPS_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.core.destinations import Role
    from crpipe.events.batch import Events
    from crpipe.events.layout import Layout

# A group of bulk events becomes one row group in each file: a loader decodes one at a time.
GROUP_EVENTS = 1 << 16
GROUP_ITEMS = 1 << 21

# Outliers: one giant event spans several row groups of items.
OUTLIER_EVENTS = 1 << 16
OUTLIER_ITEMS = 1 << 22

_WHOLE = 1 << 26  # rows of a row group: more than are ever written at once
_ZSTD = {"compression": "zstd", "compression_level": 1}
_WRITER = {
    "use_dictionary": False,
    "write_statistics": False,
    "max_rows_per_page": 1 << 30,
    "write_page_checksum": True,
}


class ShardWriter:
    """Writes one shard; each call of ``append`` makes one row group of events."""

    def __init__(self, events: Path, items: Path, layout: Layout, role: Role) -> None:
        self._layout = layout
        self._role = role
        self._schema = _schema(
            [*_event_types(layout), (MULTIPLICITY, "u4"), (SOURCE_FILE, "u4"), (SOURCE_ROW, "u4")]
        )
        self._item_schema = _schema([(field.name, field.dtype) for field in layout.items])
        floats = [field.name for field in layout.events if field.dtype == "float32"]
        self._events = pq.ParquetWriter(
            events, self._schema, use_byte_stream_split=floats, **_ZSTD, **_WRITER
        )
        self._items_path = items
        self._items: pq.ParquetWriter | None = None
        self._groups: list[int] = []
        self.events = 0
        self.items = 0

    def append(self, group: Events) -> None:
        """Append one group of events, with its items in one row group, or for outliers in several."""
        values = {**group.columns, MULTIPLICITY: group.multiplicity}
        columns = [pa.array(values[name]) for name in self._schema.names]
        self._events.write_table(pa.Table.from_arrays(columns, schema=self._schema), row_group_size=_WHOLE)
        step = OUTLIER_ITEMS if self._role in LARGE_ROLES else max(len(group.items), 1)
        starts = range(0, max(len(group.items), 1), step)
        for start in starts:
            part = group.items[start : start + step]
            columns = [pa.array(np.ascontiguousarray(part[:, column])) for column in range(part.shape[1])]
            table = pa.Table.from_arrays(columns, schema=self._item_schema)
            self._item_writer(group.items).write_table(table, row_group_size=_WHOLE)
        self._groups.append(len(starts))
        self.events += len(group)
        self.items += len(group.items)

    def close(self) -> None:
        """Write both footers."""
        self._events.add_key_value_metadata({GROUPS_KEY.decode(): json.dumps(self._groups)})
        self._events.close()
        self._item_writer(np.empty((0, len(self._layout.items)), np.float32)).close()

    def _item_writer(self, items: NDArray[np.float32]) -> pq.ParquetWriter:
        """Open the file of items; the first items decide how their columns are encoded."""
        if self._items is None:
            options = item_options(self._layout, items)
            self._items = pq.ParquetWriter(self._items_path, self._item_schema, **options, **_WRITER)
        return self._items


def write_shard(
    folder: Path, name: str, role: Role, layout: Layout, groups: Iterable[Events]
) -> dict[str, Any]:
    """Write one shard under its final name and return its entry for the manifest."""
    paths = {part: folder / f"{name}.{part}.parquet" for part in ("events", layout.item)}
    with replacing(paths["events"]) as events, replacing(paths[layout.item]) as items:
        writer = ShardWriter(events, items, layout, role)
        with contextlib.closing(writer):
            for group in groups:
                writer.append(group)
                del group  # the next one takes its memory
    files = {part: {"size": path.stat().st_size, **_hashes(path)} for part, path in paths.items()}
    for path in paths.values():
        forget_cached(path)
    return {"name": name, "role": role, "events": writer.events, "items": writer.items, "files": files}


def _hashes(path: Path) -> dict[str, str]:
    """Read a file once: sha256 says which file it is, the quick crc32c whether the disk gives it back."""
    found, checksum = hashlib.sha256(), checksums.new("crc32c")
    with path.open("rb") as handle:
        while piece := handle.read(checksums.CHUNK):
            found.update(piece)
            checksum.update(piece)
    return {"sha256": found.hexdigest(), "crc32c": checksum.hexdigest()}


def _event_types(layout: Layout) -> list[tuple[str, str]]:
    return [(field.name, field.dtype) for field in layout.events]


def _schema(columns: list[tuple[str, str]]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, pa.from_numpy_dtype(np.dtype(kind)), nullable=False) for name, kind in columns]
    )
