"""The results of an evaluation once more: a workflow deletes outputs of a job it repeats."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_present
from crpipe.core.errors import CheckpointError
from crpipe.core.files import (
    atomic_write,
    digest,
    disk_errors,
    make_folder,
    read_json,
    write_hashes,
    write_json,
)
from crpipe.core.paths import EVALUATED, EVALUATED_KEY, FINISHED, KEY_DIGEST
from crpipe.train.link_start import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def keep_results(folder: Path, key: Mapping[str, Any]) -> None:
    """Keep each result of a finished evaluation under a second name; on most disks that is no second copy."""
    record = folder / FINISHED
    with disk_errors(record):
        make_folder(record)
        (record / EVALUATED_KEY).unlink(missing_ok=True)
    for name in EVALUATED:
        _link(folder / name, record / name)
    write_hashes(record, EVALUATED)
    write_json(record / EVALUATED_KEY, {**key, KEY_DIGEST: digest(dict(key))})


def restore_results(receipt: Path, folder: Path, key: Mapping[str, Any]) -> bool:
    """Restore the results where the receipt's checkpoint is gone; return whether they are those of ``key``.

    Raise CheckpointError where they were made with other settings: nothing can make them again.
    """
    record = folder / FINISHED
    if (
        receipt.suffix != ".json"
        or not is_present(record / EVALUATED_KEY)
        or is_present(checkpoint_file(receipt))
    ):
        return False
    recorded = read_json(record / EVALUATED_KEY)
    expected = {**key, "checkpoint": read_json(receipt).get("sha256")}
    recorded.pop(KEY_DIGEST, None)
    if recorded.get("checkpoint") != expected["checkpoint"]:
        return False
    differing = sorted(name for name in {*recorded, *expected} if recorded.get(name) != expected.get(name))
    if differing:
        values = "; ".join(
            f"{name}: {recorded.get(name)!r} then, {expected.get(name)!r} now" for name in differing
        )
        raise CheckpointError(
            f"{checkpoint_file(receipt)}: gone, so its evaluation cannot be made again; the one in {record} "
            f"was made with other settings ({values}): give them back their values, or restore the checkpoint"
        )
    for name in EVALUATED:
        _link(record / name, folder / name)
    return True


def _link(source: Path, target: Path) -> None:
    """Make ``target`` a second name of a file, or a copy where the file system has no links."""
    with disk_errors(target):
        target.unlink(missing_ok=True)  # two names of one file cannot be renamed onto each other
    with atomic_write(target) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
