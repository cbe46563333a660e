"""What no longer follows from the records that it was made from; the workflow makes it again.

In: the records of a campaign. Out: outputs whose jobs start again, and adopt, redo or refuse. Times decide
nothing: the kernel's time of a change, which no program can set, only saves reading what did not change.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from crpipe.campaign.raw_files import read_manifest
from crpipe.campaign.records import BestReceipt, EvaluationRecord, Receipt
from crpipe.campaign.split_record import KEY, SplitRecord
from crpipe.core.causes import is_present
from crpipe.core.errors import DataError
from crpipe.core.files import digest
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.ranges import checkpoint_key
from crpipe.core.records import Record
from crpipe.events.shard_manifest import changed_shards, shards_record
from crpipe.events.shard_records import ShardManifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign

Kind = TypeVar("Kind", bound=Record)


def outdated(campaign: Campaign) -> list[Path]:
    """List finished outputs whose inputs have other contents than they were made from.

    What is damaged is left to the jobs that read it, and to `crpipe check`.
    """
    return [*_ranges(campaign), *_consolidated(campaign), *_trained(campaign), *_evaluated(campaign)]


def _ranges(campaign: Campaign) -> Iterator[Path]:
    """Name the ledgers of ranges that lack an output, or whose listing is another one now.

    Snakemake does not miss what only finished outputs need; an output is restored from the split's record.
    Another listing is refused by the staging, which says why.
    """
    for name in campaign.ranges:
        record = SplitRecord.of(campaign.paths, name)
        if not is_present(record.folder / KEY):
            continue
        if not all(is_present(path) for path in campaign.paths.split_outputs(name)):
            yield record.ledger
        elif _changed_after(record.listing, record.ledger):
            with contextlib.suppress(DataError):
                if record.changes(read_manifest(record.listing)):
                    yield record.ledger


def _consolidated(campaign: Campaign) -> Iterator[Path]:
    paths = campaign.paths
    merged = _read(ShardManifest, paths.outlier_manifest(CONSOLIDATED))
    manifests = {name: _read(ShardManifest, paths.outlier_manifest(name)) for name in campaign.ranges}
    digests = {name: digest(each.as_json() if each else {}) for name, each in manifests.items()}
    # One that is missing differs, too: a person gave its range up, and Snakemake does not miss it.
    if merged is not None and merged.inputs is not None and merged.inputs != digests:
        yield paths.outlier_manifest(CONSOLIDATED)


def _trained(campaign: Campaign) -> Iterator[Path]:
    """Name the receipts that follow from another checkpoint or other shards, and all receipts after one."""
    paths, stale = campaign.paths, False
    for link in campaign.chain.links:
        path = paths.receipt(link.name)
        receipt = _read(Receipt, path)
        if receipt is None:
            continue
        before = _read(Receipt, paths.receipt(link.parent)) if link.parent else None
        if before or not link.parent:
            # Which checkpoint train.pretrained names is known to the first link alone.
            pretrained = receipt.parent if campaign.config.train.pretrained else ""
            sha256 = before.sha256 if before else pretrained
            key = checkpoint_key(link.name, campaign.fingerprint, sha256, link.ranges)
            stale = stale or key != receipt.key
        folders = [paths.shards(name) for name in link.ranges]
        folders = [paths.outliers(CONSOLIDATED)] if link.name == OUTLIERS else folders
        record = shards_record(paths.store(link.name), receipt.key)
        if any(_changed_after(folder / "manifest.json", path) for folder in folders):
            stale = stale or bool(changed_shards(record, folders))
        if stale:
            yield path


def _evaluated(campaign: Campaign) -> Iterator[Path]:
    paths = campaign.paths
    for name in campaign.chain.names:
        path = paths.evaluation(name) / "metrics.json"
        evaluation, judged = _read(EvaluationRecord, path), campaign.receipt_to_evaluate(name)
        best = _read(BestReceipt, judged) if judged == paths.best_receipt(name) else None
        receipt = best or _read(Receipt, paths.receipt(name))
        if evaluation is not None and receipt is not None and evaluation.checkpoint != receipt.sha256:
            yield path


def _changed_after(path: Path, other: Path) -> bool:
    try:
        return path.stat().st_ctime_ns >= other.stat().st_ctime_ns
    except FileNotFoundError:
        return False


def _read(kind: type[Kind], path: Path) -> Kind | None:
    try:
        return kind.read_if_any(path)
    except DataError:
        return None
