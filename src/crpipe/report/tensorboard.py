"""The TensorBoard files of a run, and how those of many campaigns are collected below one folder."""

from __future__ import annotations

import datetime as dt
import fnmatch
import os
import re
import shutil
from typing import TYPE_CHECKING

from crpipe.core.causes import look_at
from crpipe.core.errors import ConfigError, DataError
from crpipe.core.files import atomic_write, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crpipe.core.paths import Paths
    from crpipe.core.ranges import Chain

EVENT_FILE = "*tfevents*"
_OF_LINKS = f"events.out.tfevents.{'[0-9]' * 6}.*"


def curve_of(chain: Chain, link: str) -> str:
    """Return how the event file of a link ends: TensorBoard reads a folder in the order of the names."""
    return f"{chain.names.index(link):06d}.{link}"


def drop_moved(paths: Paths, chain: Chain) -> None:
    """Delete the event files of links that are not in the chain any more, or moved in it.

    They are trained again, and others before them: their steps would be there twice.
    """
    ends = {curve_of(chain, name) for name in chain.names}
    for path in paths.tensorboard().glob(_OF_LINKS):
        if path.name.removeprefix("events.out.tfevents.") not in ends:
            path.unlink(missing_ok=True)


def merge_runs(
    destination: Path,
    sources: Sequence[Path],
    *,
    since: str = "",
    match: str = "",
    glob: str = "*",
    mode: str,
) -> list[str]:
    """Link or copy runs below ``destination`` and return their names; a run is a folder of event files.

    A run's name is its path below its source's parent. since: only runs that wrote at or after this day or
    time (2026-01-05, 2026-01-05T12:00, 20260105-120000; of this machine's zone unless it names one); match:
    only names in which this regular expression is found; glob: only names of this pattern. mode: ``symlink``
    follows a run that still writes, ``copy`` survives the deletion of the run.
    Files that are already there are kept; raise DataError when a different file has the same name.
    """
    pattern, earliest = _compiled(match), _moment(since)
    merged = []
    for source in sources:
        if not source.is_dir():
            raise ConfigError(f"--src {source}: no such directory")
        for folder, files in _runs(source):
            name = str(folder.absolute().relative_to(source.absolute().parent))
            newest = max(file.stat().st_mtime for file in files)
            if newest >= earliest and pattern.search(name) and fnmatch.fnmatch(name, glob):
                for file in files:
                    _add(file, destination / name / file.name, mode)
                merged.append(name)
    return merged


def _runs(source: Path) -> Iterator[tuple[Path, list[Path]]]:
    folders = {file.parent for file in source.rglob(EVENT_FILE)}
    for folder in sorted(folders):
        yield folder, sorted(folder.glob(EVENT_FILE))


def _add(file: Path, target: Path, mode: str) -> None:
    if mode == "copy":
        status = look_at(target)
        if not (status and status.st_size == file.stat().st_size):
            with atomic_write(target) as part:
                shutil.copy2(file, part)
        return
    make_folder(target.parent)
    if target.is_symlink() and target.resolve() == file.resolve():
        return
    if os.path.lexists(target):
        raise DataError(f"{target}: a different file exists here; choose an empty --dst, or --mode copy")
    target.symlink_to(file.resolve())


def _compiled(match: str) -> re.Pattern[str]:
    try:
        return re.compile(match)
    except re.error as error:
        raise ConfigError(f"--match {match}: not a regular expression ({error})") from error


def _moment(since: str) -> float:
    if not since:
        return 0.0
    try:
        return dt.datetime.fromisoformat(since).astimezone().timestamp()
    except ValueError as error:
        raise ConfigError(
            f"--since {since}: expected a day or a time, such as 2026-11-01, 2026-11-01T12:00 or "
            "20261101-120000"
        ) from error
