"""The results of an evaluation once more: a workflow deletes outputs of a job that it starts, but not these.

In: the folder of an evaluation. Out: its declared files, put back where the checkpoint is gone.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.errors import CheckpointError
from crpipe.core.files import digest, make_folder, read_json, replacing, write_json, writing
from crpipe.core.paths import EVALUATED, EVALUATED_KEY, FINISHED, KEY_DIGEST
from crpipe.train.checkpoints import checkpoint_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any


def keep_results(folder: Path, key: Mapping[str, Any]) -> None:
    """Give the finished results of an evaluation a second name each; no second copy on most disks."""
    record = folder / FINISHED
    with writing(record):
        make_folder(record)
        (record / EVALUATED_KEY).unlink(missing_ok=True)
    for name in EVALUATED:
        _name_again(folder / name, record / name)
    write_json(record / EVALUATED_KEY, {**key, KEY_DIGEST: digest(dict(key))})


def restore_results(receipt: Path, folder: Path, key: Mapping[str, Any]) -> bool:
    """Put the results back where the receipt's checkpoint is gone; return whether they are those of ``key``.

    Raise CheckpointError where they were made with other settings: nothing can make them again.
    """
    record = folder / FINISHED
    if (
        receipt.suffix != ".json"
        or not is_present(record / EVALUATED_KEY)
        or is_present(checkpoint_file(receipt))
    ):
        return False
    there, wanted = read_json(record / EVALUATED_KEY), {**key, "checkpoint": read_json(receipt).get("sha256")}
    there.pop(KEY_DIGEST, None)
    if there.get("checkpoint") != wanted["checkpoint"]:
        return False
    differing = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
    if differing:
        values = "; ".join(
            f"{name}: {there.get(name)!r} then, {wanted.get(name)!r} now" for name in differing
        )
        raise CheckpointError(
            f"{checkpoint_file(receipt)}: gone, so its evaluation cannot be made again; the one in {record} "
            f"was made with other settings ({values}): give them back their values, or restore the checkpoint"
        )
    for name in EVALUATED:
        _name_again(record / name, folder / name)
    return True


def _name_again(source: Path, target: Path) -> None:
    with writing(target):
        target.unlink(missing_ok=True)  # two names of one file cannot be renamed onto each other
    with replacing(target) as part:
        try:
            os.link(source, part)
        except OSError:  # the file system has no links
            shutil.copyfile(source, part)
