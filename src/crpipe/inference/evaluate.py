"""Held-out evaluation: the generator of one checkpoint against validation events that it never saw."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from crpipe.core.errors import DataError
from crpipe.core.files import write_json
from crpipe.core.journal import Journal
from crpipe.core.paths import OUTLIERS
from crpipe.events.batch import Events, concatenate
from crpipe.inference.checkpoints import open_checkpoint
from crpipe.loading.loader import Loader
from crpipe.report.evaluations import ERROR, FLOOR
from crpipe.source.simulated import open_simulator
from crpipe.train.metrics_log import EventFile
from crpipe.train.ranks import find_device, use_threads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.inference.checkpoints import LoadedModel

SYNTHETIC = "synthetic://"


def evaluate_checkpoint(config: Config, name: str, progress: Progress) -> None:
    """Score the checkpoint of range ``name`` (or of ``outliers``) on the validation events of its chain.

    Computes with train.device and train.threads. Writes metrics.json (flat, numbers only; ``floor/…`` is a
    second simulation of the same primaries against the first, where the source is synthetic) and figures into
    the evaluation directory, and the same numbers into TensorBoard at the checkpoint's step.
    """
    paths = config.paths()
    with Journal(paths.train_journal()).attempt("evaluate", name):
        use_threads(config.train.threads)
        device = find_device(config.train.device)
        trained = open_checkpoint(paths.receipt(name), device)
        truth = held_out(config, name)
        folder = paths.evaluation(name)
        folder.mkdir(parents=True, exist_ok=True)
        scores = trained.workload.score(truth, _predict(config, trained, truth, device, progress), folder)
        if config.source.uri.startswith(SYNTHETIC):
            floor = _resimulated(config, truth)
            scores |= {
                f"floor/{key}": value
                for key, value in trained.workload.score(truth, floor, folder / "floor").items()
            }
        _write(config, name, trained, scores, folder)


def held_out(config: Config, name: str) -> Events:
    """Gather at most evaluate.events validation events, evenly from all ranges up to ``name``."""
    names = [str(item) for item in config.all_ranges()]
    chain = names if name == OUTLIERS else names[: names.index(name) + 1]
    share = -(-config.evaluate.events // len(chain))
    parts = [part for link in chain for part in _first_events(config, link, share)]
    if not parts:
        raise DataError(
            f"{config.paths().shards(chain[0])}: no validation events; raise split.validation_fraction"
        )
    found = concatenate(parts)
    return found.part(0, min(len(found), config.evaluate.events))


def _first_events(config: Config, name: str, limit: int) -> list[Events]:
    loader = Loader(
        config.paths().shards(name),
        "validation",
        batch_events=min(limit, config.evaluate.batch_events),
        seed=(config.seed,),
        epochs=1,
        prefetch=0,
    )
    parts: list[Events] = []
    found = 0
    for events, _ in loader.batches():
        parts.append(events.part(0, min(len(events), limit - found)))
        found += len(parts[-1])
        if found >= limit:
            break
    return parts


def _predict(
    config: Config, trained: LoadedModel, truth: Events, device: torch.device, progress: Progress
) -> Events:
    parts = []
    step = config.evaluate.batch_events
    for start in range(0, len(truth), step):
        generator = torch.Generator(device).manual_seed(config.seed + start)
        with torch.no_grad():
            chunk = truth.part(start, min(start + step, len(truth)))
            made = trained.workload.predict(trained.model, chunk, generator)
            assert isinstance(made, Events)
            parts.append(made)
        progress.advance("generate", min(start + step, len(truth)), len(truth))
    return concatenate(parts)


def _resimulated(config: Config, truth: Events) -> Events:
    simulator = open_simulator(config.source.simulator, config.options("simulator"))
    return simulator.again(truth.columns, config.seed + 1)


def _write(config: Config, name: str, trained: LoadedModel, scores: dict[str, float], folder: Path) -> None:
    paths = config.paths()
    step = trained.checkpoint["counters"]["step"]
    events = EventFile(paths.tensorboard(), f"evaluation.{name}", -1)
    events.scalars(step, time.time(), {f"evaluation/{key}": value for key, value in scores.items()})
    events.text(step, time.time(), "evaluation", table_of(scores))
    events.close()
    write_json(folder / "metrics.json", {"checkpoint": trained.sha256, "step": step, **scores})


def table_of(scores: Mapping[str, float]) -> str:
    """Lay out an evaluation as a Markdown table: each number with its error beside that of the floor."""
    names = [name for name in scores if not name.startswith(FLOOR) and not name.endswith(ERROR)]
    lines = ["| metric | generated | simulated again |", "|---|---|---|"]
    lines += [f"| {name} | {_cell(scores, name)} | {_cell(scores, FLOOR + name)} |" for name in names]
    return "\n".join(lines)


def _cell(scores: Mapping[str, float], name: str) -> str:
    if name not in scores:
        return ""
    error = scores.get(name + ERROR)
    return f"{scores[name]:.4g}" + ("" if error is None else f" ± {error:.2g}")
