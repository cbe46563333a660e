"""Run one training job: adopt what is finished, resume what is not, refuse what does not fit."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from crpipe.campaign.records import Divergence, Receipt
from crpipe.core.causes import is_present
from crpipe.core.errors import DataError, DivergenceError, ShardError
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.core.paths import MANIFEST
from crpipe.core.ranges import key_of
from crpipe.core.signals import StopRequest
from crpipe.core.text import Silent
from crpipe.events.histograms import check_wanted, read_histograms
from crpipe.events.shard_manifest import changed_shards, note_shards, shards_record
from crpipe.events.shard_records import ShardManifest
from crpipe.loading.loader import Loader
from crpipe.train.checkpoints import Saved, Store, load, read_receipt, write_receipt
from crpipe.train.deleted_checkpoints import dropped_receipt
from crpipe.train.loop import Trainer
from crpipe.train.metrics_log import find_loggers
from crpipe.train.numerics import recorded, short
from crpipe.train.pretrained import find_source
from crpipe.train.ranks import joined, keep_freed_memory, machine, use_large_pages, use_threads
from crpipe.train.step import named_out_of_memory
from crpipe.train.validation import BestValue, Inputs, find_metric, read_sample, write_best
from crpipe.train.workload import UsesHistograms, give_histograms, open_workload, wanted_histograms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from crpipe.core.text import Progress
    from crpipe.events.layout import Layout
    from crpipe.train.link import TrainJob
    from crpipe.train.ranks import World
    from crpipe.train.workload import Workload


def train_link(
    job: TrainJob, progress: Progress, *, max_minutes: float = 0.0, profile_steps: int = 0
) -> None:
    """Train one link of the chain and write its receipt.

    Idempotent: a finished checkpoint of the same key is adopted, a snapshot is resumed. Raise LeaseError when
    another live job holds the link, CheckpointError when something does not fit, ShardError for damaged or
    foreign shards, DataError where the chain ends without any event, DivergenceError when losses leave their
    band, DeviceMemoryError when the GPU's memory is too small, Interrupted after a signal or when
    ``max_minutes`` are over.
    """
    stop = StopRequest(max_minutes)
    stop.listen()
    use_threads(job.train.threads)
    use_large_pages()
    keep_freed_memory()
    torch.backends.cuda.matmul.allow_tf32 = job.train.tf32
    with joined(job.train.device) as world, ExitStack() as stack:
        check: Callable[[], object] = bool
        if world.leads:
            stack.enter_context(Journal(job.files.journal).attempt("train", job.link.name))
            held = lease(
                job.files.store,
                wait_s=job.train.lease_wait_s,
                say=progress.say,
                stopped=lambda: bool(stop.reason()),
            )
            check = stack.enter_context(held).check
            Journal(job.files.journal).add("machine", range=job.link.name, **machine(world))
        world.any(False)  # no rank reads the store before the leading rank holds its lease
        remedy = (
            f"lower load.budget_items ({job.load.budget_items:,} items are computed at once) or set "
            "train.precision: bfloat16, in a new run or a fork; with more memory the same command resumes"
        )
        with named_out_of_memory(remedy):
            _run(job, world, stop, progress if world.leads else Silent(), profile_steps, check)


def _run(
    job: TrainJob,
    world: World,
    stop: StopRequest,
    progress: Progress,
    profile_steps: int,
    check: Callable[[], object],
) -> None:
    """Execute the job on one rank, inside the lease; ``check`` raises LeaseError once it is lost."""
    parent = read_receipt(job.files.parent_receipt) if job.files.parent_receipt else None
    source = find_source(job.train.init_from) if job.train.init_from and not parent else None
    parent_sha256 = parent.sha256 if parent else source.sha256 if source else ""
    key = key_of(job.link.name, job.fingerprint, parent_sha256, job.link.ranges)
    store = Store(job.files.store, key, check)
    # Only the leading rank looks into the store: it may rename or delete what another rank is reading.
    finished = store.checkpoint(progress.say) if world.leads else None
    known = finished is not None or not world.leads
    dropped = None if known else dropped_receipt(job.files.store.parents[1], job.link.name, key)
    if world.any(dropped is not None):
        progress.say(f"{job.link.name}: already trained; `crpipe clean` deleted its checkpoint, not needed")
        if dropped is not None:
            check()
            write_receipt(job.files.receipt, dropped)
        return
    if world.leads:
        _check_shards(job, store, begun=finished is not None or store.has_snapshot())
    if world.any(finished is not None):
        progress.say(f"{job.link.name}: already trained, its checkpoint is adopted")
    else:
        mark = store.folder / f"diverged-{store.key}.json"
        _refuse_diverged(mark)
        workload = open_workload(job.workload, job.options, job.tables)
        loader = _open_loader(job, world)
        if not loader.events:
            progress.say(_nothing_to_train_on(job))
        _use_histograms(job, workload, loader.layout)
        validates = job.train.validate_steps > 0
        if validates:
            _refuse_foreign((folder for shards in job.link.validation for folder in shards), job.data)
        inputs = Inputs(
            job,
            workload,
            loader,
            store,
            parent,
            world,
            stop,
            progress,
            read_sample(job, world) if validates else None,
            find_metric(job.train.keep_best, workload, job.workload) if job.train.keep_best else None,
            find_loggers(job.train.loggers),
            profile_steps or job.train.profile_steps,
            source,
        )
        finished = _train(inputs, mark)
    if finished is not None:
        check()
        store.drop_snapshots()
        if job.train.keep_best:
            _adopt_best(job, store)
        write_receipt(job.files.receipt, _receipt(job, store, parent_sha256, finished))


def _check_shards(job: TrainJob, store: Store, *, begun: bool) -> None:
    """Record the shards of a training that begins; raise ShardError where one went on with others."""
    record = shards_record(store.folder, store.key)
    if not begun:
        note_shards(record, job.link.shards)
    for folder in changed_shards(record, job.link.shards):
        keep, again = shlex.quote(str(record)), shlex.quote(str(store.folder))
        raise ShardError(
            f"{folder}: holds other shards than {job.link.name} was trained on; restore them, or train on "
            f"these in a new run (key run). To keep what was trained all the same: rm {keep}; to give it up "
            f"and train from here on again: rm -rf {again}; then run the same command again"
        )


def _train(inputs: Inputs, mark: Path) -> Saved | None:
    """Train to the end; write ``mark`` when that is divergence, so that a retry does not repeat it."""
    with Trainer(inputs) as trainer:
        trainer.start()
        try:
            trainer.run()
        except DivergenceError as error:
            if inputs.world.leads:
                Divergence(error=str(error)).write(mark)
            raise
        return trainer.finish()


def _open_loader(job: TrainJob, world: World) -> Loader:
    """Open the shards of a link; raise ShardError when they were made under another configuration."""
    link = job.link
    _refuse_foreign(link.shards, job.data)
    return Loader(
        link.shards,
        link.role,
        batch_events=job.load.batch_events,
        seed=link.seed,
        epochs=link.epochs,
        rank=world.rank,
        ranks=world.size,
        prefetch=job.load.prefetch,
        max_items=link.max_items,
    )


def _nothing_to_train_on(job: TrainJob) -> str:
    if not job.link.ranges:
        return f"{job.link.name}: no training event is an outlier; the checkpoint before is passed on"
    return (
        f"warning: {job.link.name}: no training event in {', '.join(job.link.ranges)}: nothing is trained, "
        "the checkpoint before is passed on; look at the ledgers, or leave them out with ranges.skip"
    )


def _use_histograms(job: TrainJob, workload: Workload, layout: Layout) -> None:
    """Give the workload the histograms that it uses; raise ConfigError when one that it wants is missing."""
    wanted = wanted_histograms(workload)
    if wanted or isinstance(workload, UsesHistograms):
        _refuse_foreign(job.link.counted, job.data)
        histograms = read_histograms(job.link.counted)
        check_wanted(job.workload, wanted, histograms, layout)
        give_histograms(workload, job.workload, histograms)


def _refuse_foreign(folders: Iterable[Path], data: str) -> None:
    for folder in folders:
        if ShardManifest.read(folder / MANIFEST).data != data:
            raise ShardError(
                f"{folder}: made under another configuration; restore the values that "
                f"{folder.parents[1] / 'campaign.json'} records, or set `results` to a new directory"
            )


def _adopt_best(job: TrainJob, store: Store) -> None:
    """Write the receipt of the finished link's best checkpoint again, from that file alone."""
    saved = store.best()
    if saved is None:
        return
    store.drop_replaced(saved.path.name)
    state = load(saved.path)
    steps = state["counters"]["step"], state["counters"]["range_step"]
    note = state["best"]
    found = BestValue(note["metric"], note["value"], *steps, saved.path.name, saved.sha256)
    write_best(job.files.best, job.link.name, store, found)


def _refuse_diverged(mark: Path) -> None:
    """Refuse to repeat what ended in divergence: a retry by the workflow would end the same way."""
    if is_present(mark):
        raise DivergenceError(
            f"{Divergence.read(mark).error} (recorded in {mark}; delete it to try all the same)"
        )


def _receipt(job: TrainJob, store: Store, parent_sha256: str, saved: Saved) -> Receipt:
    checkpoint = load(saved.path)
    counters = checkpoint["counters"]
    if job.link.last and not counters["step"]:
        raise DataError(
            f"{job.link.name}: nothing to train on: the chain ends, and no range had a training event "
            f"({job.files.store.parent} holds untrained weights only); lower split.validation_fraction and "
            "split.test_fraction, or add ranges, in a new results directory and run (keys results and run)"
        )
    computed = recorded(checkpoint)
    return Receipt(
        range=job.link.name,
        ranges=tuple(job.link.ranges),
        round=job.link.round,
        key=store.key,
        checkpoint=saved.path.name,
        sha256=saved.sha256,
        parent=parent_sha256,
        fingerprint=job.fingerprint,
        step=counters["step"],
        events=counters["events"],
        items=counters["items"],
        skipped=counters["skipped"],
        metrics=checkpoint["metrics"],
        numerics=short(computed) if computed else None,
        stopped=checkpoint.get("stopped"),
    )
