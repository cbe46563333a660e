"""Where a checkpoint comes from: its chain, the data it was trained on, and how good it was found to be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.causes import is_present
from crpipe.core.destinations import TRAINED_ROLES
from crpipe.core.errors import CheckpointError, ShardError
from crpipe.core.files import digest, read_json, read_json_if_any
from crpipe.core.paths import BEST, OUTLIERS
from crpipe.events.layout import MULTIPLICITY
from crpipe.events.shard_manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crpipe.core.progress import Progress
    from crpipe.events.layout import Layout
    from crpipe.inference.checkpoints import LoadedModel

Limits = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The shards of a campaign, as far as they exist.

    keys: those that shaped the shards; data: their hash. shards, outliers: folders by range, and the
    consolidated outliers. Without a campaign all are empty, and nothing is measured.
    """

    keys: Mapping[str, Any]
    data: str
    shards: Mapping[str, Path]
    outliers: Path | None

    def folders(self, chain: Sequence[TrainedLink]) -> list[Path | None]:
        """Find the shards that a chain was trained on, those of each range once; None for unknown ones."""
        found = [self.shards.get(name) for name in ranges_of(chain)]
        return [*found, *(self.outliers for link in chain if link.name == OUTLIERS)]


@dataclass(frozen=True, slots=True)
class TrainedLink:
    """One link that a checkpoint was trained on, from its receipt."""

    name: str
    ranges: tuple[str, ...]
    round: int = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """The training data: smallest and largest value of each event column, and of the multiplicity.

    unknown: why there are no limits; empty where they were measured.
    events, items: distinct ones in the training shards; 0 where these do not exist any more.
    threshold: multiplicity above which events are outliers; None when a quantile chose it and is not known.
    """

    limits: Limits
    unknown: str
    threshold: int | None
    events: int = 0
    items: int = 0


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything that a model card says about the making of a checkpoint.

    chain: the links that this checkpoint was trained on, in order; only its own without receipts.
    receipt: name of the file in runs/<run>/ranges that points to it.
    evaluation: the metrics.json of this very checkpoint; empty when there is none.
    """

    run: str
    name: str
    chain: tuple[TrainedLink, ...]
    receipt: str
    keys: dict[str, Any]
    counters: dict[str, Any]
    sha256: str
    fingerprint: str
    layout: Layout
    seen: Seen
    evaluation: dict[str, Any]

    @property
    def ranges(self) -> tuple[str, ...]:
        """The ranges of all links, each once, in order."""
        return ranges_of(self.chain)


def ranges_of(chain: Sequence[TrainedLink]) -> tuple[str, ...]:
    """List the ranges of a chain, each once, in order."""
    return tuple(dict.fromkeys(name for link in chain for name in link.ranges))


def provenance(
    trained: LoadedModel, layout: Layout, training: TrainingData, progress: Progress
) -> Provenance:
    """Gather what is known about a checkpoint from the files beside it and from the training shards.

    Raise CheckpointError when it does not name its source.
    """
    checkpoint = trained.checkpoint
    if "range" not in checkpoint or "source.uri" not in checkpoint["keys"]:
        raise CheckpointError(
            f"{trained.path}: does not say which range of which source it was trained on; name the "
            "checkpoint of a link of a training"
        )
    run = trained.path.parents[2]  # runs/<run>/store/<range>/<checkpoint>
    name, keys = str(checkpoint["range"]), checkpoint["keys"]
    own = () if name == OUTLIERS else (name,)
    chain = _chain(run / "ranges", trained.sha256) or (TrainedLink(name, own),)
    best = read_json_if_any(run / "ranges" / f"{name}{BEST}") or {}
    return Provenance(
        run.name,
        name,
        chain,
        f"{name}{BEST}" if best.get("sha256") == trained.sha256 else f"{name}.json",
        keys,
        checkpoint["counters"],
        trained.sha256,
        digest(keys),
        layout,
        _seen(training, layout, keys, chain, progress),
        _evaluation(run / "evaluation", (name, f"{name}.best"), trained.sha256),
    )


def _chain(folder: Path, sha256: str) -> tuple[TrainedLink, ...]:
    """Follow the receipts from a checkpoint back to the first link; a best checkpoint is one of its link."""
    paths = sorted(folder.glob("*.json"))
    receipts = [read_json(path) for path in paths if not path.name.endswith(BEST)]
    made = {receipt["sha256"]: receipt for receipt in receipts}
    finished = {receipt["key"]: receipt for receipt in receipts if "key" in receipt}
    for best in (read_json(path) for path in paths if path.name.endswith(BEST)):
        if best["sha256"] not in made and best["key"] in finished:
            made[best["sha256"]] = finished[best["key"]]
    links: list[TrainedLink] = []
    while sha256 in made:
        receipt = made[sha256]
        links.append(TrainedLink(receipt["range"], tuple(receipt["ranges"]), receipt["round"]))
        sha256 = receipt["parent"]
    return tuple(reversed(links))


def _evaluation(folder: Path, names: Sequence[str], sha256: str) -> dict[str, Any]:
    paths = [folder / name / "metrics.json" for name in names]
    found: list[dict[str, Any]] = [read_json(path) for path in paths if is_present(path)]
    return next((each for each in found if each.get("checkpoint") == sha256), {})


def _seen(
    training: TrainingData,
    layout: Layout,
    keys: dict[str, Any],
    chain: tuple[TrainedLink, ...],
    progress: Progress,
) -> Seen:
    """Measure the shards of the chain, if they are those that the checkpoint was trained on."""
    threshold = None if keys.get("split.quantile") else keys.get("split.threshold")
    if any(keys.get(name) != value for name, value in training.keys.items()):
        return Seen({}, "the configuration given is another one", threshold)
    wanted = training.folders(chain)
    folders = [folder for folder in wanted if folder is not None]
    try:
        manifests = [read_manifest(folder, training.data) for folder in folders]
    except ShardError:
        manifests = []
    if len(manifests) < len(wanted):
        return Seen({}, "the training shards do not all exist any more", threshold)
    shards = [
        (folder, shard)
        for folder, manifest in zip(folders, manifests, strict=True)
        for shard in manifest["shards"]
        if shard["role"] in TRAINED_ROLES
    ]
    limits: Limits = {}
    for number, (folder, shard) in enumerate(shards):
        _widen(limits, folder / f"{shard['name']}.events.parquet", _measured(layout))
        progress.advance("read", number + 1, len(shards))
    events, items = (sum(shard[kind] for _, shard in shards) for kind in ("events", "items"))
    return Seen(limits, "", manifests[0]["threshold"], events, items)


def _measured(layout: Layout) -> list[str]:
    """Name the columns whose limits mean something: not those that only identify an event."""
    identify = {*layout.group, *layout.key}
    names = [field.name for field in layout.events if field.name not in identify]
    return [*names, MULTIPLICITY]


def _widen(limits: Limits, path: Path, names: list[str]) -> None:
    """Include the values of one shard in the limits; the writer keeps no statistics, so they are read."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(columns=names):
            for name in names:
                found = pc.min_max(batch.column(name)).as_py()
                if found["min"] is None:
                    continue
                low, high = limits.get(name, (math.inf, -math.inf))
                limits[name] = (min(low, float(found["min"])), max(high, float(found["max"])))
