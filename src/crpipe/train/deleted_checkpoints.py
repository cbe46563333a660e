"""The record of the checkpoints that `crpipe clean` deleted: their receipts, where no job deletes them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from crpipe.core.files import read_json, read_json_if_any, write_json
from crpipe.core.paths import DROPPED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_dropped(path: Path) -> dict[str, Any]:
    """Read the record: receipt, size and time by the name of the link; empty where nothing was deleted."""
    return read_json_if_any(path) or {}


def record_dropped(path: Path, receipts: Mapping[Path, int]) -> None:
    """Add links to the record, before their checkpoints go; receipts: those of the links, with the sizes."""
    rows = read_dropped(path)
    now = round(time.time(), 3)
    for receipt, size in receipts.items():
        row = read_json(receipt)
        rows[row["range"]] = {"receipt": row, "bytes": size, "time": now}
    write_json(path, rows)


def dropped_receipt(run: Path, link: str, key: str) -> dict[str, Any] | None:
    """Give the receipt of a finished link whose checkpoint was deleted; None when it is of another key."""
    receipt: dict[str, Any] = read_dropped(run / DROPPED).get(link, {}).get("receipt", {})
    return receipt if receipt.get("key") == key else None


def describe_dropped(checkpoint: Path) -> str:
    """Say that a missing checkpoint was deleted on purpose, and what to use; empty when it was not."""
    run = checkpoint.parents[2]  # runs/<run>/store/<link>/<checkpoint>
    row = read_dropped(run / DROPPED).get(checkpoint.parent.name)
    if row is None or row["receipt"]["checkpoint"] != checkpoint.name:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(row["time"]))
    kept = sorted({path.parent.name for path in run.glob("store/*/checkpoint-*.pt")})
    return (
        f"deleted by `crpipe clean` on {day}, after later links were finished; use the checkpoint of another "
        f"link ({', '.join(kept)}), copy it back from where `crpipe sync` sent it, or train again under "
        "another name (key run)"
    )
