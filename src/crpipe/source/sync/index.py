"""What a second copy of a run holds: which files are sent, and the index by which they are verified."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_present
from crpipe.core.errors import TransferError
from crpipe.core.paths import DROPPED, FORKS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.core.paths import Paths

INDEX = "index.json"
RESULTS = "results"  # in the copy: the few small files of the results that belong to the run
# In turn: the one that the index names is never replaced, nor one that a new index may name that seemed lost.
_SNAPSHOTS = ("snapshot-1.pt", "snapshot-2.pt", "snapshot-3.pt")
# Receipts first: one that is listed has its checkpoint on the disk when that is looked for.
_OF_RUN = (
    *("ranges/*.json", "campaign.json", "init_from.json", DROPPED, FORKS),
    *("store/*/checkpoint-*.pt", "store/*/best-*.pt", "store/*/metrics.jsonl"),
    *("tensorboard/**/*", "evaluation/**/*", "journal.jsonl"),
)
_OF_RESULTS = ("campaign.json", "layout.json", "positions.*", "manifests/*.parquet")


def file_here(paths: Paths, name: str) -> Path:
    """Return where a file of the copy is here: in the run's directory, or in the results."""
    top, _, rest = name.partition("/")
    return paths.results / rest if top == RESULTS else paths.run_dir() / name


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """One file of the copy: its name there, size in bytes, sha256, and time of its last change in ns."""

    at: str
    size: int
    sha256: str
    mtime_ns: int


Files = dict[str, CopiedFile]


def list_files(
    paths: Paths, before: Mapping[str, CopiedFile], named: Mapping[str, CopiedFile]
) -> dict[str, str]:
    """List what is sent: names below the run (or ``results/``), and the names in the copy.

    before: what the copy holds; named: what its index names, where the newest one may not have arrived.
    Of the snapshots only the newest one of an unfinished link is sent.
    """
    found: dict[str, str] = {}
    run_dir = paths.run_dir()
    for top, patterns, prefix in ((run_dir, _OF_RUN, ""), (paths.results, _OF_RESULTS, f"{RESULTS}/")):
        for pattern in patterns:
            for path in sorted(top.glob(pattern)):
                parts = path.relative_to(top).parts
                if path.is_file() and not any(part.startswith(".") for part in parts):
                    name = prefix + "/".join(parts)
                    found[name] = name
    open_links = [
        path
        for path in run_dir.glob("store/*/snapshot-*.pt")
        if not is_present(paths.receipt(path.parent.name))
    ]
    for path in sorted(open_links, key=lambda path: path.stem.split("-")[-2])[-1:]:
        name = str(path.relative_to(run_dir))
        used = {file.at for file in (*before.values(), *named.values())}
        free = next((each for each in _SNAPSHOTS if each not in used), _SNAPSHOTS[0])
        found[name] = before[name].at if name in before else free
    return found


def kept_snapshot(files: Files, before: Files) -> Files:
    """Return the snapshot of ``before`` that is needed as long as ``files`` has no newer one or receipt."""
    if any(file.at in _SNAPSHOTS for file in files.values()):
        return {}
    return {
        name: file
        for name, file in before.items()
        if file.at in _SNAPSHOTS and f"ranges/{PurePosixPath(name).parent.name}.json" not in files
    }


def without_torn_links(paths: Paths, files: Files) -> Files:
    """Leave out each receipt whose checkpoint exists here and is not in the copy yet, and damaged ones."""
    receipts = {name for name in files if PurePosixPath(name).match("ranges/*.json")}
    return {
        name: file for name, file in files.items() if name not in receipts or _is_backed(paths, files, name)
    }


def _is_backed(paths: Paths, files: Files, receipt: str) -> bool:
    try:
        row = json.loads(file_here(paths, receipt).read_text())
        checkpoint = f"store/{row['range']}/{row['checkpoint']}"
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return checkpoint in files or not is_present(file_here(paths, checkpoint))


def index_text(files: Files) -> str:
    """Write an index; equal files give equal bytes."""
    rows = {name: asdict(file) for name, file in files.items()}
    return json.dumps({"files": rows}, indent=1, sort_keys=True) + "\n"


def read_index(text: str, where: str) -> Files:
    """Read an index; raise TransferError when it is none, or names a place outside of the campaign."""
    try:
        rows: Mapping[str, Any] = json.loads(text)["files"]
        files = {name: CopiedFile(**row) for name, row in rows.items()}
        good = all(_is_inside(name) and _is_inside(file.at) for name, file in files.items())
        good = good and all(_is_whole(file) for file in files.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TransferError(
            f"{where}: damaged ({error}); where the run is, type `crpipe sync --verify`, then restore it"
        ) from error
    if not good:
        raise TransferError(f"{where}: not an index that crpipe wrote; nothing was restored")
    return files


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and all(part[0] not in "./" and "\\" not in part for part in parts)


def _is_whole(file: CopiedFile) -> bool:
    numbers = isinstance(file.size, int) and isinstance(file.mtime_ns, int)
    return numbers and isinstance(file.sha256, str) and isinstance(file.at, str)
