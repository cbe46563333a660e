"""What no longer follows from the records that it was made from; the workflow makes it again.

In: the records of a campaign. Out: outputs whose jobs start again, and adopt, redo or refuse. Times decide
nothing: the kernel's time of a change, which no program can set, only saves reading what did not change.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from crpipe.campaign.raw_files import read_manifest
from crpipe.campaign.split_record import KEY, SplitRecord
from crpipe.core.causes import is_present
from crpipe.core.errors import DataError
from crpipe.core.files import digest, read_json
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.ranges import key_of
from crpipe.events.shard_manifest import changed_shards, shards_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign


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
                if record.differs(read_manifest(record.listing)):
                    yield record.ledger


def _consolidated(campaign: Campaign) -> Iterator[Path]:
    paths = campaign.paths
    merged = _read(paths.outlier_manifest(CONSOLIDATED)).get("inputs")
    there = {name: digest(_read(paths.outlier_manifest(name))) for name in campaign.ranges}
    # One that is missing differs, too: a person gave its range up, and Snakemake does not miss it.
    if merged is not None and merged != there:
        yield paths.outlier_manifest(CONSOLIDATED)


def _trained(campaign: Campaign) -> Iterator[Path]:
    """Name the receipts that follow from another checkpoint or other shards, and all receipts after one."""
    paths, stale = campaign.paths, False
    for link in campaign.chain.links:
        path = paths.receipt(link.name)
        receipt = _read(path)
        if not receipt:
            continue
        # What the first link began with is its own affair.
        before = _read(paths.receipt(link.parent)) if link.parent else {"sha256": receipt.get("parent")}
        if before:
            key = key_of(link.name, campaign.fingerprint, str(before.get("sha256")), link.ranges)
            stale = stale or key != receipt.get("key")
        folders = [paths.shards(name) for name in link.ranges]
        folders = [paths.outliers(CONSOLIDATED)] if link.name == OUTLIERS else folders
        record = shards_record(paths.store(link.name), str(receipt.get("key")))
        if any(_changed_after(folder / "manifest.json", path) for folder in folders):
            stale = stale or bool(changed_shards(record, folders))
        if stale:
            yield path


def _evaluated(campaign: Campaign) -> Iterator[Path]:
    paths = campaign.paths
    for name in campaign.chain.names:
        path = paths.evaluation(name) / "metrics.json"
        judged, receipt = _read(path).get("checkpoint"), _read(paths.receipt(name)).get("sha256")
        if judged is not None and receipt is not None and judged != receipt:
            yield path


def _changed_after(path: Path, other: Path) -> bool:
    try:
        return path.stat().st_ctime_ns >= other.stat().st_ctime_ns
    except FileNotFoundError:
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path) if is_present(path) else {}
    except DataError:
        return {}
    return found if isinstance(found, dict) else {}
