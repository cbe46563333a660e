"""Export a trained checkpoint: weights, options, side tables, layout and a model card.

A workload that is Exportable adds graphs and scripts that run without crpipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
import yaml

from crpipe import __version__
from crpipe.config.loading import PARTS_FIRST, fixed_keys
from crpipe.config.plugins import called_now
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import require
from crpipe.core.files import atomic_write, copy_file, sha256, write_json, write_text
from crpipe.core.ranges import Range, make_ranges
from crpipe.inference.card import Provenance, model_card, provenance, side_tables
from crpipe.inference.checkpoints import LoadedModel, nested, open_its_reader, open_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from torch import nn

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.records import Tables
    from crpipe.core.text import Progress

FORMAT = 2
WEIGHTS = "model.safetensors"
CAMPAIGN = "campaign.yaml"
CONFIG = "config.json"
CARD = "MODEL_CARD.md"
TABLES = "tables"


@dataclass(frozen=True, slots=True)
class Graphs:
    """What a workload added to an export.

    files: their names in the folder. description: JSON values for config.json, for the scripts beside it.
    """

    files: tuple[str, ...]
    description: Mapping[str, Any]


@runtime_checkable
class Exportable(Protocol):
    """A workload whose models can be used without crpipe."""

    def graphs(self, model: nn.Module, made: Provenance, folder: Path) -> Graphs:
        """Write graphs and scripts into ``folder``, and check that they compute what the model does."""

    def card(self, made: Provenance, graphs: Graphs) -> Mapping[str, Sequence[str]]:
        """Return Markdown lines by section title (see crpipe.inference.card), in place of the engine's."""


def export_model(campaign: Campaign, checkpoint: Path, out: Path, progress: Progress) -> None:
    """Write everything about one checkpoint (or that of a receipt) into the directory ``out``.

    Raise CheckpointError when the checkpoint is damaged or does not fit the campaign's side tables, or when
    the workload's graphs do not compute what the model does.
    """
    _safetensors()  # before any work
    trained = open_model(campaign, checkpoint)
    layout = open_its_reader(trained).layout
    origin = provenance(trained, layout, campaign, progress)
    _write_weights(out / WEIGHTS, trained, origin)
    files = [WEIGHTS, *_copy_tables(campaign.tables, origin, out)]
    graphs, added = Graphs((), {}), {}
    if isinstance(trained.workload, Exportable):
        progress.message("writing and checking the graphs")
        with torch.random.fork_rng([]), plugin_errors(f"{trained.name}: the export failed"):
            torch.manual_seed(0)  # an example of random inputs is the same each time
            graphs = trained.workload.graphs(trained.model, origin, out)
            added = {title: list(lines) for title, lines in trained.workload.card(origin, graphs).items()}
    elif hasattr(trained.workload, "graphs"):
        progress.message(f"warning: {trained.name}.graphs is not called: it needs `card` beside it")
    write_text(out / CAMPAIGN, yaml.safe_dump(_campaign(origin), sort_keys=False))
    write_text(out / CARD, model_card(origin, added))
    names = [*files, *graphs.files, CAMPAIGN, CARD]
    write_json(out / CONFIG, {**graphs.description, **_description(out, origin, names)})


def _safetensors() -> ModuleType:
    return require("safetensors.torch", extra="export", why="to export the weights of a model")


def _write_weights(path: Path, trained: LoadedModel, origin: Provenance) -> None:
    """Write all weights, averaged ones where training averaged them."""
    about = {"fingerprint": origin.fingerprint}  # one entry: safetensors writes several in any order
    with atomic_write(path) as part:
        part.write_bytes(_safetensors().save(trained.model.state_dict(), about))


def _copy_tables(tables: Tables, origin: Provenance, out: Path) -> Iterable[str]:
    """Copy the side tables that the model was trained with, as far as the campaign has them."""
    for name in side_tables(origin):
        if name in tables:
            copy = out / TABLES / tables[name].name
            copy_file(tables[name], copy)
            yield f"{TABLES}/{copy.name}"


def _campaign(origin: Provenance) -> dict[str, Any]:
    """Return the configuration that trains this model again, as far as it shapes the result."""
    left_out = ("layout.", "tables.", PARTS_FIRST, *fixed_keys())  # what is recorded, and is no key
    recorded = {called_now(name): value for name, value in origin.keys.items()}
    keys = {name: value for name, value in recorded.items() if not name.startswith(left_out)}
    tree: dict[str, Any] = {"run": origin.run, **nested(keys)}
    ranges = [Range.parse(name) for name in origin.ranges]
    if ranges:
        # The names of the links hold skipped ranges, too, which decide which ranges form a link.
        links = [Range.parse(link.name.partition(".")[0]) for link in origin.chain if link.ranges]
        first, last = links[0].first, max(link.last for link in links)
        step = ranges[0].last - ranges[0].first + 1
        every = make_ranges(first, last, step, frozenset(), ragged=True)
        skipped = [str(tile) for tile in every if tile not in ranges]
        tree["ranges"] = {"first": first, "last": last, "size": step, "skip": skipped}
        rounds = max(link.round for link in origin.chain)
        if rounds > 1:
            # As many as the learning rate ran over: fewer would be refused.
            needed = -(-origin.keys.get("train.horizon_ranges", 0) // len(every))
            tree["train"]["passes"] = max(rounds, needed)
    return tree


def _description(out: Path, origin: Provenance, names: Sequence[str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "crpipe": __version__,
        "fingerprint": origin.fingerprint,
        "checkpoint": origin.sha256,
        "run": origin.run,
        "links": [link.name for link in origin.chain],
        "ranges": list(origin.ranges),
        "counters": {name: origin.counters[name] for name in ("step", "events", "items", "skipped")},
        "keys": origin.keys,
        "layout": origin.layout.describe(),
        "tables": side_tables(origin),
        "code": {key: code.as_json() for key, code in origin.code.items()},
        "limits": {name: list(ends) for name, ends in origin.seen.limits.items()},
        "limits_unknown": origin.seen.unknown,
        "threshold": origin.seen.threshold,
        "evaluation": origin.evaluation.as_json() if origin.evaluation else {},
        "files": {name: sha256(out / name) for name in names},
    }
