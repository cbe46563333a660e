"""Train one link of the chain: adopt what is finished, resume what is not, refuse what does not fit."""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crpipe import campaign
from crpipe.data.loader import Loader
from crpipe.errors import ConfigError, DivergenceError, ShardError
from crpipe.files import digest, read_json, write_json
from crpipe.journal import Journal
from crpipe.lease import lease
from crpipe.paths import CONSOLIDATED, OUTLIERS
from crpipe.progress import Silent
from crpipe.ranges import Range
from crpipe.signals import StopRequest
from crpipe.train.log import EventFile, MetricsFile
from crpipe.train.loop import Fit, Link
from crpipe.train.parallel import joined
from crpipe.train.state import Counters, TrainState
from crpipe.train.store import (
    Saved,
    Store,
    key_of,
    load,
    read_receipt,
    refuse_other_keys,
    verified,
    write_receipt,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from crpipe.config import Config
    from crpipe.progress import Progress
    from crpipe.train.parallel import World
    from crpipe.train.workload import Workload


@dataclass(frozen=True, slots=True)
class Place:
    """One link of the chain on disk: its data, what came before it, and its store."""

    name: str
    parent: str
    folder: Path
    role: str
    epochs: int
    progress: tuple[float, float]


def train_range(config: Config, name: str, progress: Progress, max_minutes: float = 0.0) -> None:
    """Train on range ``name`` (or on ``outliers``, after the last range) and write its receipt.

    Idempotent: a finished checkpoint of the same key is adopted, a snapshot is resumed. Raise LeaseError when
    another live job holds the range, CheckpointError or ConfigError when something does not fit, ShardError
    for damaged or foreign shards, DivergenceError when losses leave their band, Interrupted after a signal
    or when ``max_minutes`` are over.
    """
    stop = StopRequest(max_minutes)
    stop.listen()
    _use_threads(config)
    paths = config.paths()
    journal = Journal(paths.train_journal())
    with joined(config.train.device) as world, ExitStack() as stack:
        if world.leads:
            campaign.claim_train(config)
            stack.enter_context(journal.attempt("train", name))
            wait = config.train.lease_wait_s
            stack.enter_context(
                lease(paths.store(name), wait_s=wait, say=progress.say, stopped=lambda: bool(stop.reason()))
            )
        _train(config, name, world, stop, journal, progress if world.leads else Silent())


def build_workload(name: str, options: BaseModel) -> Workload:
    """Build the workload ``module:Class`` with its validated options."""
    module, _, attribute = name.partition(":")
    workload: Workload = getattr(import_module(module), attribute)(options)
    return workload


def find_place(config: Config, name: str) -> Place:
    """Find a link's data and parent; raise ConfigError when the campaign has no such range."""
    paths = config.paths()
    names = [str(item) for item in config.all_ranges()]
    if name == OUTLIERS:
        folder = paths.outliers(CONSOLIDATED)
        return Place(name, names[-1], folder, OUTLIERS, config.train.outlier_epochs, (1.0, 1.0))
    if name not in names:
        raise ConfigError(
            f"range {Range.parse(name)}: not a range of this campaign (ranges.first … ranges.last, skip)"
        )
    index = names.index(name)
    progress = (index / config.horizon(), (index + 1) / config.horizon())
    parent = names[index - 1] if index else ""
    return Place(name, parent, paths.shards(name), "train", config.train.epochs, progress)


def _train(
    config: Config, name: str, world: World, stop: StopRequest, journal: Journal, progress: Progress
) -> None:
    world.any(False)  # nobody looks at the store before the leading rank holds its lease
    place, paths = find_place(config, name), config.paths()
    parent = read_receipt(paths.receipt(place.parent)) if place.parent else None
    store = Store(paths.store(name), key_of(name, config.fingerprint(), parent["sha256"] if parent else ""))
    finished = store.checkpoint(progress.say)
    if finished is None:
        _refuse_diverged(store)
        finished = _fit(
            config, place, parent, store, world=world, stop=stop, journal=journal, progress=progress
        )
    else:
        progress.say(f"range {name}: already trained, its checkpoint is adopted")
    if world.leads:
        write_receipt(paths.receipt(name), _receipt(config, place, parent, store, finished))


def _fit(
    config: Config,
    place: Place,
    parent: dict[str, Any] | None,
    store: Store,
    *,
    world: World,
    stop: StopRequest,
    journal: Journal,
    progress: Progress,
) -> Saved:
    workload = build_workload(config.train.workload, config.options())
    loader = _loader(config, place, world)
    torch.manual_seed(config.seed)
    state = TrainState(workload.model(), workload.phases(), config.seed, world.device)
    extra = _start(config, place, parent, store, state, progress)
    keys = config.train_keys()

    def snapshot(metrics: dict[str, Any]) -> None:
        saved = store.save_snapshot({**state.state(keys), "extra": metrics}, state.counters.range_step)
        journal.add("snapshot", range=place.name, step=state.counters.step, file=saved.path.name)

    seed = (config.seed, zlib.crc32(place.name.encode()))
    with ExitStack() as stack:
        outputs = _outputs(config, place, state) if world.leads else None
        if outputs is not None:
            stack.enter_context(closing(outputs[1]))
        fit = Fit(
            config,
            workload,
            state,
            loader,
            Link(place.name, seed, place.epochs, *place.progress),
            world=world,
            stop=stop,
            snapshot=snapshot,
            outputs=outputs,
            journal=journal.add if world.leads else _say_nothing,
            progress=progress,
        )
        if extra is not None:
            fit.restore(extra)
        metrics = _run(fit, store, world)
    if not world.leads:
        return Saved(store.folder, "")
    finished = store.save_checkpoint({**state.state(keys), "metrics": metrics, "range": place.name})
    store.drop_snapshots()
    return finished


def _run(fit: Fit, store: Store, world: World) -> dict[str, float]:
    """Run to the end; leave a mark when that is divergence, so that a retry does not repeat it."""
    try:
        return fit.run()
    except DivergenceError as error:
        if world.leads:
            write_json(_diverged(store), {"error": str(error)})
        raise


def _start(
    config: Config,
    place: Place,
    parent: dict[str, Any] | None,
    store: Store,
    state: TrainState,
    progress: Progress,
) -> dict[str, Any] | None:
    """Put ``state`` where training goes on; return what a snapshot held beside it.

    The order: newest whole snapshot of this key, the parent's checkpoint, train.init_from, fresh weights.
    """
    snapshot = store.newest_snapshot(progress.say)
    if snapshot is not None:
        state.restore(snapshot)
        progress.say(f"range {place.name}: resumes at step {state.counters.range_step}")
        extra: dict[str, Any] = snapshot["extra"]
        return extra
    if parent is not None:
        path = config.paths().store(place.parent) / parent["checkpoint"]
        checkpoint = load(verified(path).path)
        refuse_other_keys(checkpoint, config.train_keys(), path)
        state.restore(checkpoint)
        state.counters = _anew(state.counters)
        progress.say(f"range {place.name}: starts from the checkpoint of {place.parent}")
    elif config.train.init_from:
        foreign = load(Path(config.train.init_from))
        progress.say(state.init_from(foreign))
        progress.say(state.load_optimizers(foreign, config.train.on_optimizer_change))
    else:
        progress.say(f"range {place.name}: starts from fresh weights")
    return None


def _anew(counters: Counters) -> Counters:
    """Keep the chain's totals; the position inside the range starts at its beginning."""
    kept = ("step", "events", "muons", "skipped", "skipped_in_row")
    return Counters(**{name: getattr(counters, name) for name in kept})


def _loader(config: Config, place: Place, world: World) -> Loader:
    manifest = read_json(place.folder / "manifest.json")
    if manifest["data"] != digest(config.data_keys()):
        raise ShardError(
            f"{place.folder}: made under another configuration; delete it and run the same command again to "
            "make it anew, or restore the configuration"
        )
    return Loader(
        place.folder,
        place.role,
        batch_events=config.load.batch_events,
        seed=(config.seed, zlib.crc32(place.name.encode())),
        epochs=place.epochs,
        rank=world.rank,
        ranks=world.size,
        prefetch=config.load.prefetch,
    )


def _outputs(config: Config, place: Place, state: TrainState) -> tuple[MetricsFile, EventFile]:
    paths, step = config.paths(), state.counters.step
    names = [*(str(item) for item in config.all_ranges()), OUTLIERS]
    # TensorBoard reads the files of a folder in the order of their names: that of the chain.
    name = f"{names.index(place.name):06d}.{place.name}"
    metrics = MetricsFile(paths.store(place.name) / "metrics.jsonl", step)
    return metrics, EventFile(paths.tensorboard(), name, step)


def _receipt(
    config: Config, place: Place, parent: dict[str, Any] | None, store: Store, saved: Saved
) -> dict[str, Any]:
    checkpoint = load(saved.path)
    counters = checkpoint["counters"]
    return {
        "range": place.name,
        "key": store.key,
        "checkpoint": saved.path.name,
        "sha256": saved.sha256,
        "parent": parent["sha256"] if parent else "",
        "fingerprint": config.fingerprint(),
        **{name: counters[name] for name in ("step", "events", "muons", "skipped")},
        "metrics": checkpoint["metrics"],
    }


def _diverged(store: Store) -> Path:
    return store.folder / f"diverged-{store.key}.json"


def _refuse_diverged(store: Store) -> None:
    """Refuse to repeat what ended in divergence: the workflow retries crashes, and this is none."""
    path = _diverged(store)
    if path.exists():
        raise DivergenceError(
            f"{read_json(path)['error']} (recorded in {path}; delete it to try all the same)"
        )


def _use_threads(config: Config) -> None:
    given = int(os.environ.get("SLURM_CPUS_PER_TASK", "0")) or len(os.sched_getaffinity(0))
    torch.set_num_threads(config.train.threads or given)


def _say_nothing(*_: Any, **__: Any) -> None:
    """Stand in for the journal on ranks that do not lead."""
