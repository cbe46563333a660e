"""Train one link of the chain: adopt what is finished, resume what is not, refuse what does not fit."""

from __future__ import annotations

import zlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crpipe.config import record
from crpipe.core.errors import CheckpointError, ConfigError, DivergenceError, ShardError
from crpipe.core.files import digest, read_json, write_json
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.progress import Silent
from crpipe.core.ranges import Range
from crpipe.core.signals import StopRequest
from crpipe.loading.loader import Loader
from crpipe.train.checkpoints import (
    Saved,
    Store,
    key_of,
    load,
    read_receipt,
    refuse_other_keys,
    verified,
    write_receipt,
)
from crpipe.train.loop import Fit, Link
from crpipe.train.metrics_log import EventFile, MetricsFile
from crpipe.train.profiling import Profiler
from crpipe.train.ranks import joined, use_threads
from crpipe.train.state import Counters, TrainState
from crpipe.train.workload import build_workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.train.ranks import World


@dataclass(frozen=True, slots=True)
class Place:
    """One link of the chain: its data, what comes before it, and its share of the campaign."""

    name: str
    parent: str
    folder: Path
    role: str
    epochs: int
    progress: tuple[float, float]


def train_range(
    config: Config, name: str, progress: Progress, *, max_minutes: float = 0.0, profile_steps: int = 0
) -> None:
    """Train on range ``name`` (or on ``outliers``, after the last range) and write its receipt.

    Idempotent: a finished checkpoint of the same key is adopted, a snapshot is resumed. Raise LeaseError when
    another live job holds the range, CheckpointError or ConfigError when something does not fit, ShardError
    for damaged or foreign shards, DivergenceError when losses leave their band, Interrupted after a signal
    or when ``max_minutes`` are over.
    """
    stop = StopRequest(max_minutes)
    stop.listen()
    use_threads(config.train.threads)
    _use_tf32(config)
    paths = config.paths()
    place = find_place(config, name)
    with joined(config.train.device) as world, ExitStack() as stack:
        if world.leads:
            record.claim_train(paths, config.train_keys())
            stack.enter_context(Journal(paths.train_journal()).attempt("train", name))
            wait = config.train.lease_wait_s
            stack.enter_context(
                lease(paths.store(name), wait_s=wait, say=progress.say, stopped=lambda: bool(stop.reason()))
            )
        world.any(False)  # nobody looks at the store before the leading rank holds its lease
        _Job(config, place, world, stop, progress if world.leads else Silent()).run(profile_steps)


def find_place(config: Config, name: str) -> Place:
    """Find a link's data and parent; raise ConfigError when the campaign has no such range."""
    paths = config.paths()
    names = [str(item) for item in config.all_ranges()]
    if name == OUTLIERS:
        folder = paths.outliers(CONSOLIDATED)
        return Place(name, names[-1], folder, OUTLIERS, config.train.outlier_epochs, (1.0, 1.0))
    if name not in names:
        raise ConfigError(
            f"range {Range.parse(name)}: not a range of this campaign (see ranges in the config)"
        )
    index = names.index(name)
    share = (index / config.horizon(), (index + 1) / config.horizon())
    parent = names[index - 1] if index else ""
    return Place(name, parent, paths.shards(name), "train", config.train.epochs, share)


class _Job:
    """One execution on one rank, inside the lease."""

    def __init__(
        self, config: Config, place: Place, world: World, stop: StopRequest, progress: Progress
    ) -> None:
        self.config, self.place, self.world, self.stop, self.progress = config, place, world, stop, progress
        self.paths = config.paths()
        self.keys = config.train_keys()
        self.parent = read_receipt(self.paths.receipt(place.parent)) if place.parent else None
        self.parent_sha256 = self.parent["sha256"] if self.parent else ""
        key = key_of(place.name, digest(config.train_keys()), self.parent_sha256)
        self.store = Store(self.paths.store(place.name), key)
        self.journal = Journal(self.paths.train_journal()) if world.leads else None

    def run(self, profile_steps: int) -> None:
        # The leading rank alone looks into the store: what it sets aside or deletes, another could trip over.
        finished = self.store.checkpoint(self.progress.say) if self.world.leads else None
        if self.world.any(finished is not None):
            self.progress.say(f"range {self.place.name}: already trained, its checkpoint is adopted")
        else:
            self._refuse_diverged()
            finished = self._train(profile_steps)
        if finished is not None:
            self.store.drop_snapshots()
            write_receipt(self.paths.receipt(self.place.name), self._receipt(finished))

    def _train(self, profile_steps: int) -> Saved | None:
        workload = build_workload(self.config.train.workload, self.config.options())
        loader = self._loader()
        torch.manual_seed(self.config.seed)
        state = TrainState(workload.model(), workload.phases(), self.config.seed, self.world.device)
        extra = self._start(state)

        def snapshot(metrics: dict[str, Any]) -> None:
            saved = self.store.save_snapshot(
                {**state.state(self.keys), "extra": metrics, "ranks": self.world.size},
                state.counters.range_step,
            )
            self._note("snapshot", range=self.place.name, step=state.counters.step, file=saved.path.name)

        with ExitStack() as stack:
            outputs = self._outputs(state)
            if outputs is not None:
                stack.enter_context(closing(outputs[1]))
            fit = Fit(
                self.config,
                workload,
                state,
                loader,
                Link(self.place.name, self._seed(), self.place.epochs, *self.place.progress),
                world=self.world,
                stop=self.stop,
                snapshot=snapshot,
                outputs=outputs,
                journal=self._note,
                profiler=self._profiler(profile_steps),
                progress=self.progress,
            )
            if extra is not None:
                fit.restore(extra)
            metrics = self._fit(fit)
            if outputs is not None:
                outputs[1].hyper_parameters(state.counters.step, self.keys, metrics)
        if not self.world.leads:
            return None
        return self.store.save_checkpoint(
            {**state.state(self.keys), "metrics": metrics, "range": self.place.name}
        )

    def _profiler(self, steps: int) -> Profiler:
        path = self.paths.run_dir() / "profile.json"
        return Profiler(steps if self.world.leads else 0, path, self.progress.say)

    def _fit(self, fit: Fit) -> dict[str, float]:
        """Run to the end; leave a mark when that is divergence, so that a retry does not repeat it."""
        try:
            return fit.run()
        except DivergenceError as error:
            if self.world.leads:
                write_json(self._diverged(), {"error": str(error)})
            raise

    def _start(self, state: TrainState) -> dict[str, Any] | None:
        """Put ``state`` where training goes on; return what a snapshot held beside it.

        The order: newest whole snapshot of this key, the parent's checkpoint, train.init_from, fresh weights.
        """
        name, say = self.place.name, self.progress.say
        found = self.world.gather(self._newest_snapshot())[0]
        if found is not None:
            snapshot = load(found)
            self._refuse_other_ranks(snapshot, found)
            state.restore(snapshot)
            say(f"range {name}: resumes at step {state.counters.range_step}")
            extra: dict[str, Any] = snapshot["extra"]
            return extra
        if self.parent is not None:
            path = self.paths.store(self.place.parent) / self.parent["checkpoint"]
            checkpoint = load(verified(path).path)
            refuse_other_keys(checkpoint, self.keys, path)
            state.restore(checkpoint)
            state.counters = _anew(state.counters)
            say(f"range {name}: starts from the checkpoint of {self.place.parent}")
        elif self.config.train.init_from:
            foreign = load(Path(self.config.train.init_from))
            say(state.init_from(foreign))
            say(state.load_optimizers(foreign, self.config.train.on_optimizer_change))
        else:
            say(f"range {name}: starts from fresh weights")
        return None

    def _newest_snapshot(self) -> Path | None:
        if not self.world.leads:
            return None
        self.store.drop_parts()
        return self.store.newest_snapshot(self.progress.say)

    def _refuse_other_ranks(self, snapshot: Mapping[str, Any], path: Path) -> None:
        """Raise CheckpointError when the snapshot's place in the data is that of another number of ranks."""
        if snapshot["ranks"] != self.world.size:
            raise CheckpointError(
                f"{path}: made by {snapshot['ranks']} ranks, this job has {self.world.size}: it would train "
                "on some events twice and on others never; restore train.gpus and train.nodes, or delete the "
                "snapshots of this range to train it from its beginning"
            )

    def _seed(self) -> tuple[int, int]:
        return (self.config.seed, zlib.crc32(self.place.name.encode()))

    def _loader(self) -> Loader:
        place, load_options = self.place, self.config.load
        manifest = read_json(place.folder / "manifest.json")
        if manifest["data"] != digest(self.config.data_keys()):
            raise ShardError(
                f"{place.folder}: made under another configuration; delete it and run the same command again "
                "to make it anew, or restore the configuration"
            )
        return Loader(
            place.folder,
            place.role,
            batch_events=load_options.batch_events,
            seed=self._seed(),
            epochs=place.epochs,
            rank=self.world.rank,
            ranks=self.world.size,
            prefetch=load_options.prefetch,
            # Thousands of outliers in one batch would not fit into memory; bulk batches keep their size.
            max_items=load_options.budget_items if place.role == OUTLIERS else None,
        )

    def _outputs(self, state: TrainState) -> tuple[MetricsFile, EventFile] | None:
        if not self.world.leads:
            return None
        name, step = self.place.name, state.counters.step
        names = [*(str(item) for item in self.config.all_ranges()), OUTLIERS]
        # TensorBoard reads the files of a folder in the order of their names: that of the chain.
        events = EventFile(self.paths.tensorboard(), f"{names.index(name):06d}.{name}", step)
        return MetricsFile(self.paths.store(name) / "metrics.jsonl", step), events

    def _receipt(self, saved: Saved) -> dict[str, Any]:
        checkpoint = load(saved.path)
        counters = checkpoint["counters"]
        return {
            "range": self.place.name,
            "key": self.store.key,
            "checkpoint": saved.path.name,
            "sha256": saved.sha256,
            "parent": self.parent_sha256,
            "fingerprint": digest(self.config.train_keys()),
            **{name: counters[name] for name in ("step", "events", "muons", "skipped")},
            "metrics": checkpoint["metrics"],
        }

    def _diverged(self) -> Path:
        return self.store.folder / f"diverged-{self.store.key}.json"

    def _refuse_diverged(self) -> None:
        """Refuse to repeat what ended in divergence: the workflow retries crashes, and this is none."""
        path = self._diverged()
        if path.exists():
            told = read_json(path)["error"]
            raise DivergenceError(f"{told} (recorded in {path}; delete it to try all the same)")

    def _note(self, what: str, **fields: Any) -> None:
        if self.journal is not None:
            self.journal.add(what, **fields)


def _anew(counters: Counters) -> Counters:
    """Keep the chain's totals; the position inside the range starts at its beginning."""
    kept = ("step", "events", "muons", "skipped", "skipped_in_row")
    return Counters(**{name: getattr(counters, name) for name in kept})


def _use_tf32(config: Config) -> None:
    torch.backends.cuda.matmul.allow_tf32 = config.train.tf32
