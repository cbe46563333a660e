"""Train one link of the chain: adopt what is finished, resume what is not, refuse what does not fit."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from crpipe.campaign import claims
from crpipe.campaign.code import record_run_code, used_code
from crpipe.campaign.records import Divergence, Receipt
from crpipe.campaign.split_record import is_manifest_damaged
from crpipe.core.errors import DataError, DivergenceError, ShardError
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.core.paths import MANIFEST
from crpipe.core.signals import StopRequest
from crpipe.core.text import NullProgress, Progress
from crpipe.events.shard_manifest import changed_shards, note_shards, shards_record
from crpipe.split.parts import refuse_unfit_ranges
from crpipe.train.checkpoints import CheckpointStore, load, write_receipt
from crpipe.train.deleted_checkpoints import deleted_receipt
from crpipe.train.link_plan import LinkPlan
from crpipe.train.link_start import Saved, key_of, refuse_diverged, start_of
from crpipe.train.loop import Trainer
from crpipe.train.numerics import hashes, numerics_of
from crpipe.train.ranks import (
    joined,
    keep_freed_memory,
    machine,
    refuse_slow_precision,
    use_deterministic,
    use_large_pages,
    use_threads,
)
from crpipe.train.step import named_out_of_memory
from crpipe.train.validation import BestValue
from crpipe.train.workload import open_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.campaign.campaign import Campaign
    from crpipe.train.ranks import World


def train_link(
    campaign: Campaign,
    name: str,
    progress: Progress,
    *,
    max_minutes: float = 0.0,
    profile_steps: int = 0,
    anomaly: bool = False,
    first: Callable[[], None] | None = None,
    packed: bool = False,
) -> None:
    """Train one link of the chain and write its receipt.

    profile_steps: steps at the beginning to write a trace of. anomaly: stop at the first operation whose
    gradient is not finite, and name it; very slow. first: called on the leading rank where nothing of the
    link is trained yet; raises what ends the job. packed: all ranges were compared when the link was packed,
    and are not here.

    Idempotent: a finished checkpoint of the same key is adopted, a snapshot is resumed. Raise ConfigError
    when the campaign has no such link or its run was started under other keys, LeaseError when another live
    job holds the link, CheckpointError when something does not fit, ShardError for damaged or foreign shards,
    DataError where files occur twice or the chain ends without any event, DivergenceError when losses exceed
    their limits, DeviceMemoryError when the GPU's memory is too small, Interrupted after a signal or when
    ``max_minutes`` are over.
    """
    train, budget_items = campaign.config.train, campaign.config.load.max_items
    plan = LinkPlan(campaign, campaign.chain.named(name))
    leads = os.environ.get("RANK", "0") == "0"
    if leads and not packed:
        refuse_unfit_ranges(campaign, campaign.chain.ranges_trained_by(plan.link))
    claims.record_train_keys(campaign)
    if leads:
        record_run_code(campaign, name, progress.message)
    stop = StopRequest(max_minutes)
    stop.listen()
    use_threads(train.threads)
    use_large_pages()
    keep_freed_memory()
    torch.backends.cuda.matmul.allow_tf32 = train.tf32
    use_deterministic(train.deterministic)
    with joined(train.device) as world, ExitStack() as stack:
        refuse_slow_precision(train.precision, world.device)
        check: Callable[[], object] = bool
        if world.leads:
            journal = Journal(campaign.paths.train_journal())
            stack.enter_context(journal.attempt("train", name))
            store_lease = lease(
                campaign.paths.store(name),
                say=progress.message,
                stopped=lambda: bool(stop.reason()),
            )
            check = stack.enter_context(store_lease).check
            code = [str(each) for each in used_code(campaign.paths.run_code()).values()]
            journal.add("machine", range=name, code=code, **machine(world))
            if first is not None and not any(campaign.paths.store(name).glob("*.pt")):
                first()
        world.any(False)  # no rank reads the store before the leading rank holds its lease
        remedy = (
            f"lower load.max_items ({budget_items:,} items are computed at once) or set "
            "train.precision: bfloat16, in a new run or a fork; with more memory the same command resumes"
        )
        with named_out_of_memory(remedy), torch.autograd.set_detect_anomaly(anomaly):
            _finish_link(plan, world, stop, progress if world.leads else NullProgress(), profile_steps, check)


def _finish_link(
    plan: LinkPlan,
    world: World,
    stop: StopRequest,
    progress: Progress,
    profile_steps: int,
    check: Callable[[], object],
) -> None:
    """Finish a link on one rank, inside the lease: adopt it, or train it; then write its receipt.

    check: raises LeaseError once the lease is lost.
    """
    campaign, link = plan.campaign, plan.link
    paths = campaign.paths
    start = start_of(campaign, link)
    key = key_of(campaign, link, start)
    store = CheckpointStore(paths.store(link.name), key, check)

    # Adopt what is finished, and train what is not.
    # Only the leading rank looks into the store: it may rename or delete what another rank is reading.
    finished = store.checkpoint(progress.message) if world.leads else None
    deleted = None
    if world.leads and finished is None:
        deleted = deleted_receipt(paths.run_dir(), link.name, key)
    if world.any(deleted is not None):
        progress.message(f"{link.name}: already trained; `crpipe clean` deleted its checkpoint, not needed")
        if deleted is not None:
            check()
            write_receipt(paths.receipt(link.name), deleted)
        return
    if world.leads:
        _check_shards(plan, store, begun=finished is not None or store.has_snapshot())
    if world.any(finished is not None):
        progress.message(f"{link.name}: already trained, its checkpoint is adopted")
    else:
        finished = _train(plan, store, start, world, stop, progress, profile_steps)

    # Write the receipts: the link is finished, and nothing resumes it any more.
    if finished is not None:
        check()
        store.drop_snapshots()
        if campaign.config.train.monitor:
            _adopt_best(plan, store)
        write_receipt(paths.receipt(link.name), _receipt(plan, store, start, finished))


def _check_shards(plan: LinkPlan, store: CheckpointStore, *, begun: bool) -> None:
    """Record the shards of a training that begins; raise ShardError where one went on with others."""
    record = shards_record(store.folder, store.key)
    for folder in filter(is_manifest_damaged, plan.shards):
        raise ShardError(
            f"{folder / MANIFEST}: damaged: its hash is not the recorded one; see what to type: "
            f"crpipe check {folder.name}"
        )
    if not begun:
        note_shards(record, plan.shards)
    for folder in changed_shards(record, plan.shards):
        keep, again = shlex.quote(str(record)), shlex.quote(str(store.folder))
        raise ShardError(
            f"{folder}: holds other shards than {plan.link.name} was trained on; restore them, or train on "
            f"these in a new run (key run). To keep what was trained all the same: rm {keep}; to give it up "
            f"and train from here on again: rm -rf {again}; then run the same command again"
        )


def _train(
    plan: LinkPlan,
    store: CheckpointStore,
    start: Saved | None,
    world: World,
    stop: StopRequest,
    progress: Progress,
    profile_steps: int,
) -> Saved | None:
    """Train a link, unless it ended in divergence before."""
    mark = plan.campaign.paths.diverged(plan.link.name, store.key)
    refuse_diverged(mark)
    campaign = plan.campaign
    workload = open_workload(campaign.config.train.workload, campaign.config.options(), campaign.tables)
    trainer = Trainer(plan, workload, world, progress, store, stop, start, profile_steps=profile_steps)
    try:
        return trainer.run()
    except DivergenceError as error:
        if world.leads:
            Divergence(error=str(error)).write(mark)
        raise


def _adopt_best(plan: LinkPlan, store: CheckpointStore) -> None:
    """Write the receipt of the finished link's best checkpoint again, from that file alone."""
    saved = store.best()
    if saved is None:
        return
    store.drop_replaced(saved.path.name)
    state = load(saved.path)
    counters, best = state["counters"], state["best"]
    steps = counters["step"], counters["range_step"]
    value = BestValue(best["metric"], best["value"], *steps, saved.path.name, saved.sha256)
    value.write(plan.campaign.paths.best_receipt(plan.link.name), plan.link.name, store.key)


def _receipt(plan: LinkPlan, store: CheckpointStore, start: Saved | None, saved: Saved) -> Receipt:
    campaign, link = plan.campaign, plan.link
    checkpoint = load(saved.path)
    counters = checkpoint["counters"]
    if link.name == campaign.chain.names[-1] and not counters["step"]:
        raise DataError(
            f"{link.name}: nothing to train on: the chain ends, and no range had a training event "
            f"({store.folder.parent} holds untrained weights only); lower split.validation_fraction and "
            "split.test_fraction, or add ranges, in a new results directory and run (keys results and run)"
        )
    numerics = numerics_of(checkpoint)
    return Receipt(
        range=link.name,
        ranges=tuple(link.ranges),
        round=link.round,
        key=store.key,
        checkpoint=saved.path.name,
        sha256=saved.sha256,
        parent=start.sha256 if start else "",
        fingerprint=campaign.fingerprint,
        step=counters["step"],
        events=counters["events"],
        items=counters["items"],
        skipped=counters["skipped"],
        metrics=checkpoint["metrics"],
        numerics=hashes(numerics) if numerics else None,
        stopped=checkpoint.get("stopped"),
    )
