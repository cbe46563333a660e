"""Shards as plain Parquet files: one row per event, for tools that know nothing of crpipe."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.campaign.readers import ReaderChoice, WritesRaw, open_reader
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import ShardError
from crpipe.core.files import atomic_write
from crpipe.core.paths import MANIFEST, ROLES
from crpipe.events.batch import Events, regroup
from crpipe.events.layout import MULTIPLICITY, Layout
from crpipe.events.shard_manifest import groups_of, layout_of, open_manifest
from crpipe.events.shard_reader import Shards, no_events
from crpipe.events.shard_writer import OUTLIER_EVENTS, OUTLIER_ITEMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crpipe.core.text import Progress

    ToTable = Callable[[Events], pa.Table]

# A dictionary of floats is as long as the column: with one, ten million items take 2 GB to write.
_WRITER = {"compression": "zstd", "use_dictionary": False}


def export_shards(folders: list[Path], out: Path, choice: ReaderChoice | None, progress: Progress) -> int:
    """Write ``out/ROLE.parquet`` with all events of each role in the folders; return their number.

    The schema is that of the raw files where the reader of ``choice`` offers it (``WritesRaw``), else that of
    ``flat_table``. Raise ShardError when a shard is damaged or has another layout than the reader.
    """
    manifests = {folder: open_manifest(folder, None) for folder in folders}
    layouts = {folder: layout_of(manifest, folder) for folder, manifest in manifests.items()}
    total = sum(manifest.totals()[0] for manifest in manifests.values())
    done = 0
    for role in ROLES:
        holding = [folder for folder, manifest in manifests.items() if manifest.of_role(role)]
        if not holding:
            continue
        to_table = _converter(choice, holding[0], layouts[holding[0]])
        schema = to_table(no_events(layouts[holding[0]])).schema
        with (
            atomic_write(out / f"{role}.parquet") as part,
            contextlib.closing(pq.ParquetWriter(part, schema, **_WRITER)) as writer,
        ):
            for folder in holding:
                groups = groups_of(Shards(folder, role, layouts[folder]), layouts[folder])
                for events in regroup(groups, OUTLIER_EVENTS, OUTLIER_ITEMS):
                    writer.write_table(to_table(events))
                    done += len(events)
                    progress.update("export", done, total)
    return done


def flat_table(events: Events, layout: Layout) -> pa.Table:
    """Return one row per event: its columns, and a list column ``ITEM_NAME`` for each item column."""
    columns = {name: pa.array(values) for name, values in events.columns.items()}
    columns[MULTIPLICITY] = pa.array(events.multiplicity)
    starts = pa.array(events.offsets().astype(np.int32))
    for position, field in enumerate(layout.items):
        values = pa.array(np.ascontiguousarray(events.items[:, position]))
        columns[f"{layout.item}_{field.name}"] = pa.ListArray.from_arrays(starts, values)
    return pa.table(columns)


def _converter(choice: ReaderChoice | None, folder: Path, layout: Layout) -> ToTable:
    reader = open_reader(choice.name, choice.options) if choice else None
    if choice is None or not isinstance(reader, WritesRaw):
        return lambda events: flat_table(events, layout)
    if reader.layout.identity() != layout.identity():
        raise ShardError(
            f"{folder / MANIFEST}: its layout is not that of the reader {choice.name}; name the reader that "
            "the shards were made with as source.reader"
        )

    def to_table(events: Events) -> pa.Table:
        with plugin_errors(f"{folder}: the reader {choice.name} failed to write events in its own schema"):
            return reader.raw_table(events)

    return to_table
