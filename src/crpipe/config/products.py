"""Whether anything was made under the recorded keys of a campaign or run; else other keys replace them."""

from __future__ import annotations

import os
import platform
import shlex
from typing import TYPE_CHECKING

from crpipe.core.causes import is_present
from crpipe.core.journal import Journal
from crpipe.core.paths import FINISHED, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from crpipe.core.paths import Paths

# Keys that say what is read from the source; all others concern what is made of the copies.
_COPIED = ("source.", "simulator.")
_FREE = frozenset({"source.reader"})
_ASIDE = frozenset({"source.on_bad_file", "source.max_quarantined"})  # of the staged table


def data_may_change(paths: Paths, changed: Collection[str]) -> bool:
    """Return whether the data keys ``changed`` may replace the recorded ones: nothing follows from those."""
    if _is_split(paths) or _is_busy(paths.data_journal()):
        return False
    if not copied(paths):
        return True
    return not any(_says_what_is_copied(name, paths) for name in changed)


def deletion_of_copies(paths: Paths) -> str:
    """Give the command that deletes what was listed and copied; empty where more than that was made."""
    found = [] if _is_split(paths) or _is_busy(paths.data_journal()) else copied(paths)
    return shlex.join(["rm", "-r", *map(str, found)]) if found else ""


def copied(paths: Paths) -> list[Path]:
    """Name the files and folders of what was listed and copied."""
    tables = paths.tables()
    folders = [paths.manifest("x").parent, paths.staged("x").parent, tables.with_suffix("")]
    files = [tables, paths.positions(), paths.position_names()]
    return [folder for folder in folders if _holds(folder, "*")] + [
        file for file in files if is_present(file)
    ]


def run_may_change(paths: Paths, changed: Collection[str]) -> bool:  # noqa: ARG001 - every key shapes it
    """Return whether the keys of a run may be replaced: it has no checkpoint, snapshot or receipt."""
    folder = paths.run_dir()
    patterns = ("ranges/*.json", "store/*/*.pt", "evaluation/*/metrics.json")
    return not any(_holds(folder, pattern) for pattern in patterns) and not _is_busy(paths.train_journal())


def _is_split(paths: Paths) -> bool:
    patterns = ["ledgers/*.json", "multiplicity/*", paths.threshold().name, f"outliers/*/{MANIFEST}"]
    patterns += [f"shards/*/{MANIFEST}", f"shards/*/{FINISHED}/*"]
    return any(_holds(paths.results, pattern) for pattern in patterns)


def _holds(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None


def _says_what_is_copied(name: str, paths: Paths) -> bool:
    if name in _ASIDE:
        return _holds(paths.staged("x").parent, "*.parquet")
    return name == "seed" or (name.startswith(_COPIED) and name not in _FREE)


def _is_busy(journal: Path) -> bool:
    """Return whether a job may be at work: on another host it is asked for its end, here for its process."""
    running = {}
    for row in Journal(journal).rows():
        if isinstance(row, dict) and row.get("what") in ("start", "finished", "failed"):
            place = (row.get("verb"), row.get("range"), row.get("pid"))
            if row["what"] == "start":
                running[place] = row
            else:
                running.pop(place, None)
    return any(_may_live(row) for row in running.values())


def _may_live(row: dict[str, object]) -> bool:
    if row.get("host") != platform.node():
        return True
    pid = row.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
