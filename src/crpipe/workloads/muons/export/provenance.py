"""Where a checkpoint comes from: its chain, the data it saw, and how good it was found to be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.errors import ShardError
from crpipe.core.files import digest, read_json
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.events.layout import MULTIPLICITY
from crpipe.events.shard_manifest import read_manifest
from crpipe.inference.evaluate import SYNTHETIC
from crpipe.workloads.muons.layout import PRIMARY

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.inference.checkpoints import LoadedModel

Limits = dict[str, tuple[float, float]]

_HEAVIEST = 56.0  # of the built-in simulator


@dataclass(frozen=True, slots=True)
class Seen:
    """The training data: smallest and largest value of each condition, and where that is known from.

    events, muons: distinct ones in the training shards; 0 when these are not at hand.
    threshold: multiplicity above which events are outliers; None when a quantile chose it and is not known.
    """

    limits: Limits
    source: str
    threshold: int | None
    events: int = 0
    muons: int = 0


@dataclass(frozen=True, slots=True)
class Provenance:
    """All that a model card tells.

    chain: the links that this checkpoint was trained on, in order; only its own when no receipts are at hand.
    scores: the held-out evaluation of this very checkpoint; empty when there is none.
    """

    run: str
    name: str
    chain: tuple[str, ...]
    keys: dict[str, Any]
    counters: dict[str, Any]
    sha256: str
    fingerprint: str
    seen: Seen
    scores: dict[str, float]

    def synthetic(self) -> bool:
        """Tell whether the built-in simulator made the data."""
        return _synthetic(self.keys)


def provenance(trained: LoadedModel, config: Config, progress: Progress) -> Provenance:
    """Gather what stands beside a checkpoint; ``config`` says where the shards are."""
    checkpoint = trained.checkpoint
    run = trained.path.parents[2]  # runs/<run>/store/<range>/<checkpoint>
    name, keys = str(checkpoint["range"]), checkpoint["keys"]
    chain = _chain(run / "ranges", trained.sha256) or (name,)
    return Provenance(
        run.name,
        name,
        chain,
        keys,
        checkpoint["counters"],
        trained.sha256,
        digest(keys),
        _seen(config, keys, chain, progress),
        _scores(run / "evaluation" / name / "metrics.json", trained.sha256),
    )


def _chain(receipts: Path, sha256: str) -> tuple[str, ...]:
    """Follow the receipts from a checkpoint back to the first range."""
    made = {receipt["sha256"]: receipt for receipt in map(read_json, receipts.glob("*.json"))}
    names: list[str] = []
    while sha256 in made:
        names.append(made[sha256]["range"])
        sha256 = made[sha256]["parent"]
    return tuple(reversed(names))


def _scores(path: Path, sha256: str) -> dict[str, float]:
    scores: dict[str, Any] = read_json(path) if path.exists() else {}
    return scores if scores.get("checkpoint") == sha256 else {}


def _seen(config: Config, keys: dict[str, Any], chain: tuple[str, ...], progress: Progress) -> Seen:
    """Read the shards when they are those of the checkpoint, else believe its configuration."""
    data = config.data_keys()
    threshold = None if keys["split.quantile"] else keys["split.threshold"]
    if any(keys.get(name) != value for name, value in data.items()):
        return Seen(_configured(keys), _origin(keys, "the configuration given is another one"), threshold)
    paths = config.paths()
    folders = [paths.outliers(CONSOLIDATED) if link == OUTLIERS else paths.shards(link) for link in chain]
    try:
        manifests = [read_manifest(folder, digest(data)) for folder in folders]
    except ShardError:
        return Seen(_configured(keys), _origin(keys, "the shards are not all at hand"), threshold)
    limits: Limits = {}
    shards = [
        (folder, shard)
        for folder, manifest in zip(folders, manifests, strict=True)
        for shard in manifest["shards"]
        if shard["role"] != "validation"
    ]
    for number, (folder, shard) in enumerate(shards):
        _widen(limits, folder / f"{shard['name']}.events.parquet")
        progress.advance("read", number + 1, len(shards))
    events, muons = (sum(shard[kind] for _, shard in shards) for kind in ("events", "items"))
    return Seen(limits, "measured on the training shards", manifests[0]["threshold"], events, muons)


def _widen(limits: Limits, path: Path) -> None:
    """Take the values of one shard into the limits; the writer keeps no statistics, so they are read."""
    names = [*(field.name for field in PRIMARY), MULTIPLICITY]
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(columns=names):
            for name in names:
                found = pc.min_max(batch.column(name)).as_py()
                low, high = limits.get(name, (math.inf, -math.inf))
                limits[name] = (min(low, found["min"]), max(high, found["max"]))


def _synthetic(keys: dict[str, Any]) -> bool:
    uri: str = keys["source.uri"]
    return uri.startswith(SYNTHETIC)


def _origin(keys: dict[str, Any], why: str) -> str:
    if _synthetic(keys):
        return f"as configured for the simulator; not measured: {why}"
    return f"not known: {why}"


def _configured(keys: dict[str, Any]) -> Limits:
    if not _synthetic(keys):
        return {}
    given = {
        name: keys[f"synthetic.{name}"] for name in ("energy_min_gev", "energy_max_gev", "zenith_max_deg")
    }
    return {
        "energy_gev": (given["energy_min_gev"], given["energy_max_gev"]),
        "zenith_rad": (0.0, math.radians(given["zenith_max_deg"])),
        "mass_number": (1.0, _HEAVIEST),
        "depth_m": (keys["synthetic.depth_min_m"], keys["synthetic.depth_max_m"]),
    }
