"""The record of the checkpoints that `crpipe clean` deleted: their receipts, where no job deletes them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from crpipe.campaign.records import DeletedCheckpoint, DeletedCheckpoints, Receipt
from crpipe.core.paths import DELETED_CHECKPOINTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_deleted(path: Path) -> Mapping[str, DeletedCheckpoint]:
    """Read the record by the names of the links; empty where nothing was deleted."""
    record = DeletedCheckpoints.read_if_any(path)
    return record.rows if record else {}


def record_deleted(path: Path, receipts: Mapping[Path, int]) -> None:
    """Add links to the record, before their checkpoints go; receipts: those of the links, with the sizes."""
    rows = dict(read_deleted(path))
    now = round(time.time(), 3)
    for file, size in receipts.items():
        receipt = Receipt.read(file)
        rows[receipt.range] = DeletedCheckpoint(receipt=receipt, bytes=size, time=now)
    DeletedCheckpoints(rows=rows).write(path)


def deleted_receipt(run: Path, link: str, key: str) -> Receipt | None:
    """Return the receipt of a finished link whose checkpoint was deleted; None when it is of another key."""
    row = read_deleted(run / DELETED_CHECKPOINTS).get(link)
    return row.receipt if row is not None and row.receipt.key == key else None


def describe_deleted(checkpoint: Path) -> str:
    """Describe that a missing checkpoint was deleted on purpose, and what to use; empty when it was not."""
    run = checkpoint.parent.parent.parent  # runs/<run>/store/<link>/<checkpoint>
    row = read_deleted(run / DELETED_CHECKPOINTS).get(checkpoint.parent.name)
    if row is None or row.receipt.checkpoint != checkpoint.name:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(row.time))
    kept = sorted({path.parent.name for path in run.glob("store/*/checkpoint-*.pt")})
    return (
        f"deleted by `crpipe clean` on {day}, after later links were finished; use the checkpoint of another "
        f"link ({', '.join(kept)}), copy it back from where `crpipe sync` sent it, or train again under "
        "another name (key run)"
    )
