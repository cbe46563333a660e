"""What follows once a split is recorded: its files get their final names, and its raw copies are deleted."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import lease_folder
from crpipe.core.causes import is_present
from crpipe.core.files import clear_tree, replacing
from crpipe.core.lease import lease
from crpipe.events.shard_manifest import check_on_disk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.core.text import Progress


def deliver(record: Path, places: Mapping[str, Path]) -> None:
    """Give the record's files their final names, the shards' manifest last."""
    for source, target in places.items():
        if is_present(target) and target.samefile(record / source):
            os.utime(target)  # renaming one link of a file over another would leave both
            continue
        with replacing(target) as part:
            _copy(record / source, part)


def _copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy where the file system has no links; its time is now."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
    os.utime(target)


def remove_raw(raw: Path, shards: tuple[Path, ...], workers: int, wait_s: float, progress: Progress) -> None:
    """Delete the raw copies, once every byte of the shards was read back from the disk.

    Raise ShardError when one is not what was written, LeaseError when a job stages the range and does not end
    within ``wait_s`` seconds; the raw copies are then kept.
    """
    if not is_present(raw):
        return
    check_on_disk(shards, workers)
    with lease(lease_folder(raw), wait_s=wait_s, say=progress.say):
        held = clear_tree(raw)
    if held:
        progress.say(
            f"{raw}: deleted, but for {len(held)} files that another process has open; the next head deletes "
            "them"
        )
