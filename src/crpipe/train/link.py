"""One link of the chain, described once: everything that a training job needs to know, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.config.training import LoadSection, TrainSection
    from crpipe.events.tables import Tables
    from crpipe.loading.held_out import RangeShards


@dataclass(frozen=True, slots=True)
class Link:
    """Where a link is in the chain, and which events it trains on.

    parent: the link before it; empty for the first one.
    ranges: those it trains on; none for the consolidated outliers.
    round: which pass over the campaign it belongs to, from 1.
    shards, role: a folder of shards for each range, and which of them (``train`` or ``outliers``).
    validation: where the validation events are that every link of the run is judged on: those of its first
        link.
    counted: folders whose manifests have the histograms of its training events; for outliers, those of the
        whole campaign.
    seed: seed of the order of its events.
    epochs: passes over its events.
    progress: share of the campaign at its beginning and at its end, for the learning rate.
    max_items: items at which a batch ends early; None: only the number of events ends a batch.
    last: whether it ends the chain.
    """

    name: str
    parent: str
    ranges: tuple[str, ...]
    shards: tuple[Path, ...]
    role: str
    seed: tuple[int, ...]
    epochs: int
    progress: tuple[float, float]
    max_items: int | None = None
    validation: tuple[RangeShards, ...] = ()
    counted: tuple[Path, ...] = ()
    round: int = 1
    last: bool = False


@dataclass(frozen=True, slots=True)
class LinkFiles:
    """Where a training job reads and writes.

    store, receipt: checkpoints and snapshots of the link, and the declared output that points to one.
    best: what points to the best checkpoint, where one is kept.
    parent_store, parent_receipt, parent_best: the same of the link before it; None for the first one.
    events: TensorBoard's folder; event_file: the link's name in it, which sorts in the order of the chain.
    profile: the trace of a profiled job. loaded: which weights train.init_from gave.
    """

    store: Path
    receipt: Path
    best: Path
    parent_store: Path | None
    parent_receipt: Path | None
    parent_best: Path | None
    journal: Path
    events: Path
    event_file: str
    profile: Path
    loaded: Path


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One training job.

    options: those of the workload. tables: copies of the side tables.
    keys: everything that changes a checkpoint; fingerprint: their hash; data: hash of what shaped the shards.
    """

    link: Link
    files: LinkFiles
    workload: str
    options: Mapping[str, Any]
    tables: Tables
    keys: Mapping[str, Any]
    fingerprint: str
    data: str
    seed: int
    load: LoadSection
    train: TrainSection
