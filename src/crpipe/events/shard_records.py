"""The manifest of a folder of shards as classes: shards, their files, and what all of them follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crpipe.core.paths import MANIFEST
from crpipe.core.records import Record, RecordTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile(Record):
    """Size and hashes of one file of a shard; an earlier crpipe recorded no crc32c."""

    size: int
    sha256: str
    crc32c: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry(Record):
    """One shard: ``files`` has its events and its items, by the ends of their names."""

    name: str
    role: str
    events: int
    items: int
    files: Mapping[str, ShardFile]


@dataclass(frozen=True, kw_only=True)
class ShardManifest(Record, files=MANIFEST):
    """manifest.json: the shards of a folder, the range and the digest of the data keys they were made from.

    histograms: of the training events, by columns. inputs, shard_mib: of merged outliers, what went in.
    """

    range: str
    data: str
    shards: tuple[ShardEntry, ...]
    layout: Any = None
    threshold: int | None = None
    histograms: Mapping[str, Any] | None = None
    inputs: Mapping[str, str] | None = None
    shard_mib: int | None = None

    def totals(self) -> tuple[int, int]:
        """Return the events and items of all shards."""
        return sum(entry.events for entry in self.shards), sum(entry.items for entry in self.shards)

    def of_role(self, role: str) -> list[ShardEntry]:
        """Return the shards of a role."""
        return [entry for entry in self.shards if entry.role == role]


@dataclass(frozen=True, kw_only=True)
class TrainedShards(RecordTable):
    """What a training began with: digests of the manifests by the names of their folders."""

    manifests: Mapping[str, str]
