"""Shards back into the converter's schema, for tools that know nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from crpipe.core.errors import ShardError
from crpipe.core.files import replacing
from crpipe.events.batch import regroup
from crpipe.events.shard_manifest import groups_of, layout_of, read_manifest
from crpipe.events.shard_reader import Shards
from crpipe.events.shard_writer import OUTLIER_EVENTS, OUTLIER_ITEMS
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.nested_rows import SCHEMA, WRITER, nested_table

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.core.progress import Progress

ROLES = ("train", "validation", "outliers")


def export_shards(folders: list[Path], out: Path, progress: Progress) -> int:
    """Write ``out/<role>.parquet`` with all events of each role in the folders; return their number.

    Raise ShardError when a shard is damaged or does not hold muon bundles.
    """
    manifests = {folder: read_manifest(folder, None) for folder in folders}
    total = sum(entry["events"] for manifest in manifests.values() for entry in manifest["shards"])
    done = 0
    for role in ROLES:
        holding = [folder for folder, manifest in manifests.items() if _holds(folder, manifest, role)]
        if not holding:
            continue
        with replacing(out / f"{role}.parquet") as part, pq.ParquetWriter(part, SCHEMA, **WRITER) as writer:
            for folder in holding:
                for events in regroup(
                    groups_of(Shards(folder, role, BUNDLES), BUNDLES), OUTLIER_EVENTS, OUTLIER_ITEMS
                ):
                    writer.write_table(nested_table(events.columns, events.multiplicity, events.items))
                    done += len(events)
                    progress.advance("export", done, total)
    return done


def _holds(folder: Path, manifest: dict[str, Any], role: str) -> bool:
    if layout_of(manifest, folder) is not BUNDLES:
        raise ShardError(
            f"{folder}: holds {manifest['layout']}, only muon bundles have the converter's schema"
        )
    return any(entry["role"] == role for entry in manifest["shards"])
