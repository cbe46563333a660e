"""One link of the chain, described once: everything that a training job needs to know, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.train.checkpoints import load, refuse_not_finite
from crpipe.train.numerics import judge, recorded
from crpipe.train.pretrained import has_seen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from crpipe.campaign.ledger import Tables
    from crpipe.config.sections import LoadSection, TrainSection
    from crpipe.loading.loader import RangeShards
    from crpipe.train.checkpoints import Saved
    from crpipe.train.numerics import Numerics
    from crpipe.train.state import TrainState


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


# The first link of a run that starts from a checkpoint of another one.


def begin_from(
    source: Saved,
    state: TrainState,
    job: TrainJob,
    here: Numerics,
    say: Callable[[str], None],
    *,
    records: bool,
) -> None:
    """Start the first link from weights of another training, or go on after a link of another run.

    here: how this process computes.
    records: whether to write which weights were loaded (on the leading rank).
    """
    train, saved = job.train, load(source.path)
    warning = has_seen(source, saved["keys"])
    if warning:
        say(f"warning: {warning}")
    if train.start_after:
        judge(recorded(saved), here, str(source.path), train.numerics, say)
        say(state.continue_from(saved, train.on_optimizer_change))
        _check_weights(source, state)
        say(f"link {job.link.name}: goes on after {train.start_after}, from {source.path}")
        return
    match = state.init_from(saved, train.init_map)
    _check_weights(source, state)
    say(match.describe())
    if not train.init_map:
        say(state.load_optimizers(saved, train.on_optimizer_change))
    if records:
        match.record(source, warning).write(job.files.loaded)


def _check_weights(source: Saved, state: TrainState) -> None:
    """Raise CheckpointError when what was loaded is not finite."""
    for weights in (dict(state.model.named_parameters()), state.average):
        refuse_not_finite(source.path, weights)
