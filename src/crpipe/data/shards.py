"""Shards on the disk: the pair NAME.events.parquet and NAME.<items>.parquet, and their manifest.

Groups of events come in and become aligned row groups; what a manifest promises can be checked at any time.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.data.batch import Events
from crpipe.data.pairs import GROUPS_KEY, MEND, Shards
from crpipe.errors import DataError, ShardError
from crpipe.fields import BUNDLES, MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.files import read_json, replacing, sha256
from crpipe.paths import CONSOLIDATED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from crpipe.config import Config
    from crpipe.fields import Layout

Role = Literal["train", "validation", "outliers"]
LAYOUTS = {"bundles": BUNDLES}
MANIFEST = "manifest.json"

# A group of bulk events becomes one row group in each file: a loader decodes one at a time.
GROUP_EVENTS = 1 << 16
GROUP_ITEMS = 1 << 21
# Outliers: one giant event spans several row groups of items.
OUTLIER_EVENTS = 1 << 16
OUTLIER_ITEMS = 1 << 22

_WHOLE = 1 << 26  # rows of a row group: more than we ever write at once
_WRITER = {
    "use_dictionary": False,
    "write_statistics": False,
    "compression": "zstd",
    "compression_level": 1,
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
        self._events = pq.ParquetWriter(events, self._schema, use_byte_stream_split=floats, **_WRITER)
        self._items = pq.ParquetWriter(items, self._item_schema, use_byte_stream_split=True, **_WRITER)
        self._groups: list[int] = []
        self.events = 0
        self.items = 0

    def append(self, group: Events) -> None:
        """Append one group of events, with its items in one row group, or for outliers in several."""
        values = {**group.columns, MULTIPLICITY: group.multiplicity}
        columns = [pa.array(values[name]) for name in self._schema.names]
        self._events.write_table(pa.Table.from_arrays(columns, schema=self._schema), row_group_size=_WHOLE)
        step = OUTLIER_ITEMS if self._role == "outliers" else max(len(group.items), 1)
        starts = range(0, max(len(group.items), 1), step)
        for start in starts:
            part = group.items[start : start + step]
            columns = [pa.array(np.ascontiguousarray(part[:, column])) for column in range(part.shape[1])]
            table = pa.Table.from_arrays(columns, schema=self._item_schema)
            self._items.write_table(table, row_group_size=_WHOLE)
        self._groups.append(len(starts))
        self.events += len(group)
        self.items += len(group.items)

    def close(self) -> None:
        """Write both footers."""
        self._events.add_key_value_metadata({GROUPS_KEY.decode(): json.dumps(self._groups)})
        self._events.close()
        self._items.close()


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
    files = {part: {"size": path.stat().st_size, "sha256": sha256(path)} for part, path in paths.items()}
    return {"name": name, "role": role, "events": writer.events, "items": writer.items, "files": files}


def read_manifest(folder: Path, data: str | None) -> dict[str, Any]:
    """Read a folder's manifest; raise ShardError when it is missing, damaged or of other data keys.

    ``data`` is the digest of the configuration's data keys; None accepts any.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = read_json(path)
    except DataError as error:
        raise ShardError(str(error)) from error
    lacking = {"range", "data", "layout", "threshold", "shards"} - {*manifest}
    if lacking:
        raise ShardError(f"{path}: the key {min(lacking)} is missing; {MEND}")
    if data is not None and manifest["data"] != data:
        raise ShardError(
            f"{path}: made under other data keys ({manifest['data']}, the configuration has {data}); "
            "restore the configuration, or set `results` to a new directory"
        )
    return manifest


def layout_of(manifest: dict[str, Any], folder: Path) -> Layout:
    """Find the layout that a manifest names."""
    name = manifest["layout"]
    if name not in LAYOUTS:
        raise ShardError(f"{folder / MANIFEST}: no layout {name!r}, only {', '.join(LAYOUTS)}; update crpipe")
    return LAYOUTS[name]


def verify(folder: Path, *, deep: bool) -> tuple[int, int]:
    """Check that a folder holds what its manifest says, and return its events and items.

    Sizes and row counts always; with ``deep`` also every file's hash and every page's checksum. Raise
    ShardError naming the first file that does not fit.
    """
    manifest = read_manifest(folder, None)
    layout = layout_of(manifest, folder)
    for role in ("train", "validation", "outliers"):
        entries = [entry for entry in manifest["shards"] if entry["role"] == role]
        shards = Shards(folder, role, layout)  # checks sizes, columns and rows
        if deep:
            for entry in entries:
                check_hashes(folder, entry)
            for _ in groups_of(shards, layout):
                pass
    totals = [(entry["events"], entry["items"]) for entry in manifest["shards"]]
    return sum(events for events, _ in totals), sum(items for _, items in totals)


def verifiable(config: Config, names: Iterable[str]) -> Iterator[Path]:
    """Folders of the shards of the named ranges, or of all that are made; bulk and outliers.

    ``consolidated`` names the merged outliers. Raise ShardError for a name that has no shards.
    """
    paths = config.paths()
    asked = list(names)
    for name in asked or [*map(str, config.all_ranges()), CONSOLIDATED]:
        folders = (
            [paths.outliers(name)] if name == CONSOLIDATED else [paths.shards(name), paths.outliers(name)]
        )
        made = [folder for folder in folders if (folder / MANIFEST).exists()]
        if asked and not made:
            raise ShardError(f"{folders[0] / MANIFEST}: missing; run `crpipe split {name}` first")
        yield from made


def check_hashes(folder: Path, entry: dict[str, Any]) -> None:
    """Raise ShardError unless both files of a manifest's entry have the recorded hash."""
    for part, recorded in entry["files"].items():
        path = folder / f"{entry['name']}.{part}.parquet"
        if sha256(path) != recorded["sha256"]:
            raise ShardError(f"{path}: damaged: its bytes are not those the manifest names; {MEND}")


def groups_of(shards: Shards, layout: Layout) -> Iterator[Events]:
    """Read all events of all shards, one row group of events at a time."""
    for number, pair in enumerate(shards.pairs):
        for index in range(pair.events.footer.num_row_groups):
            yield read_group(shards, number, index, layout)


def read_group(shards: Shards, shard: int, index: int, layout: Layout) -> Events:
    """Read one row group of events with its items."""
    group = shards.group(shard, index)
    low, high = int(group.item_rows[0]), int(group.item_rows[-1])
    items = np.empty((high - low, len(layout.items)), np.float32)
    shards.items(shard, low, high, items)
    return Events(group.columns, group.multiplicity, items)


def _event_types(layout: Layout) -> list[tuple[str, str]]:
    return [(field.name, field.dtype) for field in layout.events]


def _schema(columns: list[tuple[str, str]]) -> pa.Schema:
    return pa.schema(
        [pa.field(name, pa.from_numpy_dtype(np.dtype(kind)), nullable=False) for name, kind in columns]
    )
