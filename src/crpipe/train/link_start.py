"""The checkpoint that a link starts from: found, and checked against the hash in its name.

Without torch, which takes seconds: packs are written and read where nothing is trained.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.campaign.records import Divergence, Receipt
from crpipe.core.causes import expect, is_plain, is_present, retry_io
from crpipe.core.errors import CheckpointError, DivergenceError
from crpipe.core.files import drop_page_cache, read_json, sha256
from crpipe.core.ranges import HASH_DIGITS, ChainLink, checkpoint_key
from crpipe.train.deleted_checkpoints import describe_deleted

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign

_RESTORE = "restore it, or delete its receipt to train the range again"
_KEY = "train.pretrained"
_HASHED = re.compile(rf"-[0-9a-f]{{{HASH_DIGITS}}}$")


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint or snapshot on disk."""

    path: Path
    sha256: str


def start_of(campaign: Campaign, link: ChainLink) -> Saved | None:
    """Return the checkpoint that a link starts from; None for fresh weights.

    That of the link before it or, for the first one, what ``train.pretrained`` names.
    """
    paths, pretrained = campaign.paths, campaign.config.train.pretrained
    if link.parent:
        receipt = read_receipt(paths.receipt(link.parent))
        return Saved(paths.store(link.parent) / receipt.checkpoint, receipt.sha256)
    packed = next(paths.pretrained().glob("*.pt"), None)
    return find_source(str(packed or pretrained)) if pretrained else None


def key_of(campaign: Campaign, link: ChainLink, start: Saved | None) -> str:
    """Return the key of a link that starts so."""
    return checkpoint_key(link.name, campaign.fingerprint, start.sha256 if start else "", link.ranges)


def refuse_diverged(mark: Path) -> None:
    """Raise DivergenceError where a link ended in divergence: a retry would end the same way."""
    if is_present(mark):
        error = Divergence.read(mark).error
        raise DivergenceError(f"{error} (recorded in {mark}; delete it to try all the same)")


def read_receipt(path: Path) -> Receipt:
    """Read the receipt of a finished range; raise CheckpointError when there is none."""
    if not is_present(path):
        raise CheckpointError(f"{path}: missing; train that range first")
    return Receipt.read(path)


def find_source(init_from: str) -> Saved:
    """Find the checkpoint that ``train.pretrained`` names, itself or by a receipt, and check its hash."""
    named = Path(init_from)
    if not is_plain(named):
        raise CheckpointError(
            f"{_KEY}: {named} does not exist; name a checkpoint (.pt) or a receipt of one "
            "(runs/<run>/ranges/<link>.json)"
        )
    path = checkpoint_file(named)
    if not is_plain(path):
        raise CheckpointError(f"{_KEY}: {path}, to which {named} points, does not exist; restore it")
    return verified(path)


def verified(path: Path) -> Saved:
    """Check a checkpoint or snapshot against the hash in its name; raise CheckpointError when it differs."""
    if not retry_io(path.exists):
        if why := describe_deleted(path):
            raise CheckpointError(f"{path}: {why}")
        if not _remedy(path):
            raise CheckpointError(f"{path}: missing; {_RESTORE}")
        expect(path, _receipt_of(path), _remedy(path).removeprefix("; "))
    if not _HASHED.search(path.stem):
        raise CheckpointError(
            f"{path}: has no hash in its name, so it cannot be checked; give it back the name that "
            "training wrote it under (checkpoint-<key>-<hash>.pt)"
        )
    named = path.stem.rpartition("-")[2]
    full = sha256(path)
    if full[:HASH_DIGITS] != named:
        drop_page_cache(path)  # what is read once more comes from the disk, or its server
        full = sha256(path)
    if full[:HASH_DIGITS] != named:
        raise CheckpointError(
            f"{path}: damaged (its content does not match the hash in its name){_remedy(path)}"
        )
    return Saved(path, full)


def _remedy(path: Path) -> str:
    """Describe how the checkpoint of a finished link is made again; nothing for other files."""
    receipt = _receipt_of(path)
    if not (path.name.startswith("checkpoint-") and is_present(receipt)):
        return ""
    again = f"rm {shlex.quote(str(receipt))}, and run the workflow again"
    return f"; restore it, or train the link again: {again}"


def _receipt_of(path: Path) -> Path:
    return path.parent.parent.parent / "ranges" / f"{path.parent.name}.json"


def checkpoint_file(path: Path) -> Path:
    """Return the checkpoint that a receipt points to (also that of a best one); a checkpoint is itself."""
    if path.suffix != ".json":
        return path
    receipt = read_json(path)
    if not isinstance(receipt, dict) or "checkpoint" not in receipt:
        raise CheckpointError(
            f"{path}: not a receipt; name a checkpoint (.pt) or runs/<run>/ranges/<range>.json"
        )
    names = receipt.get("range"), receipt["checkpoint"]
    if not all(map(is_name, names)):
        raise CheckpointError(
            f"{path}: damaged: range and checkpoint are no names of files; restore it, or delete it and run "
            "the same command again"
        )
    return path.parent.parent.joinpath("store", *map(str, names))


def step_of(path: Path) -> int:
    """Return the step of the link in the name of a snapshot or best checkpoint."""
    return int(path.stem.split("-")[-2])


def is_name(value: Any) -> bool:
    """Return whether a value is the name of a file in a folder, and of nothing outside of it."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\0"} & {*value}
