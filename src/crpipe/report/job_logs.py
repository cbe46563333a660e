"""The logs that jobs of the workflow write: which there are, and what is added while a job runs."""

from __future__ import annotations

import codecs
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError
from crpipe.report.text import Column, moment, size, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from crpipe.core.paths import Paths

_CHUNK = 1 << 16
_GONE = -1


@dataclass(frozen=True, slots=True)
class JobLog:
    """One log. name: the range or link that the job worked on; empty for a job of the whole campaign.

    time: when it was last written; bytes: its size.
    """

    verb: str
    name: str
    path: Path
    time: float
    bytes: int


def job_logs(paths: Paths) -> list[JobLog]:
    """List the logs of a campaign and its run, the newest last."""
    found = []
    for top in (paths.results / "logs", paths.run_dir() / "logs"):
        for path in (*top.glob("*.log"), *top.glob("*/*.log")):
            verb, name = (path.stem, "") if path.parent == top else (path.parent.name, path.stem)
            with contextlib.suppress(FileNotFoundError):  # a retry of its job begins with a new one
                about = path.stat()
                found.append(JobLog(verb, name, path, about.st_mtime, about.st_size))
    return sorted(found, key=lambda log: (log.time, log.path))


def chosen(logs: Sequence[JobLog], name: str, verb: str) -> list[JobLog]:
    """Keep the logs of a range or link, and of a verb; empty: of any. Raise ConfigError when none is left."""
    kept = [log for log in logs if name in ("", log.name) and verb in ("", log.verb)]
    if not kept:
        wanted = " ".join(filter(None, (verb, name)))
        verbs = ", ".join(dict.fromkeys(log.verb for log in logs if name in ("", log.name)))
        if not wanted:
            raise ConfigError("logs: no job of the workflow has written a log yet; to run it: crpipe run")
        there = f"there are logs of: {verbs}" if verbs else "`crpipe logs` lists what there is"
        raise ConfigError(f"{wanted}: no job of the workflow has written a log yet; {there}")
    return kept


def list_logs(logs: Sequence[JobLog], width: int) -> str:
    """Write the logs as a table."""
    columns = [
        Column("written", [moment(log.time) for log in logs]),
        Column("job", [f"{log.verb} {log.name}".rstrip() for log in logs]),
        Column("size", [size(log.bytes) for log in logs], right=True),
        Column("file", [str(log.path) for log in logs]),
    ]
    return "\n".join(table(columns, width))


def read_on(path: Path, wait: Callable[[], None], said: Callable[[str], None]) -> Iterator[str]:
    """Yield the text of a log and then what is added to it; ``wait`` is called where there is nothing new.

    A retry of the job replaces the log: ``said`` gets a line, and the new log is read from its start.
    """
    number, place = 0, 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            with path.open("rb") as file:
                about = os.fstat(file.fileno())
                if number and (about.st_ino != number or about.st_size < place):
                    said(f"{path}: the job began again")
                    place = 0
                    decoder.reset()
                number = about.st_ino
                file.seek(place)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            # The next file may get the same inode.
            data, number = b"", number and _GONE
        place += len(data)
        if data:
            yield decoder.decode(data)
        else:
            wait()
