"""Writes shards, each item column in the encoding that suits it, and their entries for the manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core import checksums
from crpipe.core.files import atomic_write, drop_page_cache
from crpipe.core.paths import LARGE_ROLES, Role
from crpipe.events.layout import LARGE, MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Layout
from crpipe.events.shard_reader import GROUPS_KEY
from crpipe.events.shard_records import ShardEntry, ShardFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.batch import Events

# A group of bulk events becomes one row group in each file: a loader decodes one at a time.
GROUP_EVENTS = 1 << 16
GROUP_ITEMS = 1 << 21

# Outliers: one giant event spans several row groups of items.
OUTLIER_EVENTS = 1 << 16
OUTLIER_ITEMS = 1 << 22

SAMPLE = 1 << 16  # values of each column that are compressed to choose
# LZ4 is decoded in half the time of zstd. It may take so much more of a column's uncompressed bytes: mostly
# constant columns get it. A column of real measurements would grow by 6 to 25 % of them.
GROWTH = 0.02
LARGE_GROWTH = 0.08  # where events have one large number of items, so that reading them is mostly decoding
_LEVEL = 1

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


def write_shard(folder: Path, name: str, role: Role, layout: Layout, groups: Iterable[Events]) -> ShardEntry:
    """Write one shard under its final name and return its entry for the manifest."""
    paths = {part: folder / f"{name}.{part}.parquet" for part in ("events", layout.item)}
    with atomic_write(paths["events"]) as events, atomic_write(paths[layout.item]) as items:
        writer = ShardWriter(events, items, layout, role)
        with contextlib.closing(writer):
            for group in groups:
                writer.append(group)
                del group  # the next one takes its memory
    files = {part: _describe(path) for part, path in paths.items()}
    for path in paths.values():
        drop_page_cache(path)
    return ShardEntry(name=name, role=role, events=writer.events, items=writer.items, files=files)


def _describe(path: Path) -> ShardFile:
    """Read a file once: sha256 says which file it is, the quick crc32c whether the disk gives it back."""
    sha256, checksum = hashlib.sha256(), checksums.new("crc32c")
    with path.open("rb") as handle:
        while piece := handle.read(checksums.CHUNK):
            sha256.update(piece)
            checksum.update(piece)
    return ShardFile(size=path.stat().st_size, sha256=sha256.hexdigest(), crc32c=checksum.hexdigest())


def _event_types(layout: Layout) -> list[tuple[str, str]]:
    return [(field.name, field.dtype) for field in layout.events]


def _schema(columns: list[tuple[str, str]]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, pa.from_numpy_dtype(np.dtype(kind)), nullable=False) for name, kind in columns]
    )


def item_options(layout: Layout, items: NDArray[np.float32]) -> dict[str, Any]:
    """Choose for the columns of ``items``, [M, K], from its first rows alone: options of a ParquetWriter.

    Each column is written with zstd and its bytes split into streams, or with LZ4, split or not.
    """
    growth = LARGE_GROWTH if layout.fixed >= LARGE else GROWTH
    codecs = {
        field.name: _choose(items[:SAMPLE, column], growth) for column, field in enumerate(layout.items)
    }
    zstd = [name for name, (codec, _) in codecs.items() if codec == "zstd"]
    return {
        "compression": {name: codec for name, (codec, _) in codecs.items()},
        "compression_level": dict.fromkeys(zstd, _LEVEL),
        "use_byte_stream_split": [name for name, (_, split) in codecs.items() if split],
    }


def _choose(values: NDArray[np.float32], growth: float) -> tuple[str, bool]:
    """Return the codec of a column, and whether its bytes are split into streams."""
    plain = np.ascontiguousarray(values).view(np.uint8)
    split = np.ascontiguousarray(plain.reshape(-1, values.itemsize).T)
    zstd = len(pa.Codec("zstd", _LEVEL).compress(split.tobytes()))
    lz4 = pa.Codec("lz4_raw")
    sizes = {False: len(lz4.compress(plain.tobytes())), True: len(lz4.compress(split.tobytes()))}
    smaller = sizes[True] <= sizes[False]
    if sizes[smaller] <= zstd + growth * plain.size:
        return "lz4", smaller
    return "zstd", True
