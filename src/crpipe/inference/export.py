"""Export a trained checkpoint: weights, graphs and a sampler that a simulation chain calls without crpipe."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from crpipe import __version__
from crpipe.core.errors import ConfigError
from crpipe.core.extras import require
from crpipe.core.files import replacing, sha256, write_json, write_text
from crpipe.core.paths import OUTLIERS
from crpipe.core.ranges import Range, expand
from crpipe.inference.checkpoints import nested, open_checkpoint
from crpipe.workloads.muons.export.card import example, model_card
from crpipe.workloads.muons.export.graph import LAW, MUONS, check_graphs, write_graphs
from crpipe.workloads.muons.export.provenance import provenance
from crpipe.workloads.muons.layout import MUON, PRIMARY
from crpipe.workloads.muons.models.sampling import Exportable

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.workloads.muons.export.provenance import Limits, Provenance
    from crpipe.workloads.muons.models.sampling import SamplerGraphs

safetensors = require("safetensors.torch", extra="export", why="to export the weights of a model")

FORMAT = 1
WEIGHTS = "model.safetensors"
SCRIPT = "sample.py"
CAMPAIGN = "campaign.yaml"
CONFIG = "config.json"
CARD = "MODEL_CARD.md"

_CHECKED_EVENTS = 64


def export_checkpoint(config: Config, checkpoint: Path, out: Path, progress: Progress) -> None:
    """Write everything about one checkpoint (or that of a receipt) into the directory ``out``.

    ``config`` says where the training shards are, whose ranges the card tells; without them the ranges come
    from the checkpoint's own configuration. Raise CheckpointError when the checkpoint is damaged or the
    graphs do not say what it says, ConfigError when its workload has no sampler.
    """
    trained = open_checkpoint(checkpoint)
    if not isinstance(trained.workload, Exportable):
        raise ConfigError(f"{checkpoint}: {trained.checkpoint['keys']['train.workload']} has no sampler")
    sampler = trained.workload.sampler(trained.model)
    made = provenance(trained, config, progress)
    progress.say("writing and checking the graphs")
    primaries = _primaries(made.seen.limits)
    write_graphs(sampler, primaries, out)
    difference = check_graphs(sampler, primaries, out)
    _write_weights(out / WEIGHTS, trained, made)
    write_text(out / SCRIPT, files("crpipe.workloads.muons.export").joinpath("standalone.py").read_text())
    write_text(out / CAMPAIGN, yaml.safe_dump(_campaign(made), sort_keys=False))
    write_text(out / CARD, model_card(made, sampler, difference))
    write_json(out / CONFIG, _description(out, made, sampler, difference))


def _primaries(limits: Limits) -> NDArray[np.float32]:
    """Draw primaries to check the graphs with, from the ranges of the training data: [N, 4]."""
    rng = np.random.default_rng(0)
    anywhere = example(limits)
    columns = []
    for field in PRIMARY:
        low, high = limits.get(field.name, (anywhere[field.name],) * 2)
        columns.append(rng.uniform(low, high, _CHECKED_EVENTS))
    return np.stack(columns, axis=1).astype(np.float32)


def _write_weights(path: Path, trained: LoadedModel, made: Provenance) -> None:
    """Write all weights, averaged ones where training averaged them."""
    about = {"fingerprint": made.fingerprint}  # one entry: safetensors writes several in any order
    with replacing(path) as part:
        part.write_bytes(safetensors.save(trained.model.state_dict(), about))


def _campaign(made: Provenance) -> dict[str, Any]:
    """Give the configuration that trains this model again, as far as it shapes the result."""
    ranges = [Range.parse(link) for link in made.chain if link != OUTLIERS]
    tree: dict[str, Any] = {"run": made.run, **nested(made.keys)}
    if ranges:
        first, last, step = ranges[0].first, ranges[-1].last, ranges[0].last - ranges[0].first + 1
        skipped = [str(tile) for tile in expand(first, last, step, frozenset()) if tile not in ranges]
        tree["ranges"] = {"first": first, "last": last, "step": step, "skip": skipped}
    return tree


def _description(out: Path, made: Provenance, sampler: SamplerGraphs, difference: float) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "crpipe": __version__,
        "fingerprint": made.fingerprint,
        "checkpoint": made.sha256,
        "run": made.run,
        "ranges": list(made.chain),
        "counters": {name: made.counters[name] for name in ("step", "events", "muons", "skipped")},
        "keys": made.keys,
        "limits": {name: list(ends) for name, ends in made.seen.limits.items()},
        "limits_source": made.seen.source,
        "threshold": made.seen.threshold,
        "evaluation": made.scores,
        "units": {
            "primary": {field.name: field.unit for field in PRIMARY},
            "muon": {field.name: field.unit for field in MUON},
        },
        "sampler": {
            "noise": [
                {name: getattr(noise, name) for name in ("name", "rows", "columns", "law")}
                for noise in sampler.noise
            ],
            "whole": sampler.whole,
            "tolerance": sampler.tolerance,
            "difference": difference,
        },
        "files": {name: sha256(out / name) for name in (WEIGHTS, LAW, MUONS, SCRIPT, CAMPAIGN, CARD)},
    }
