"""Append-only journal of attempts: one JSON object per line, readable while jobs run and after they died."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import MachineWatch, look_at
from crpipe.core.errors import CrpipeError, Interrupted
from crpipe.core.files import disk_errors, make_folder, open_regular_file
from crpipe.core.signals import is_alive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_TRIES, _PAUSE_S = 100, 0.01


class Journal:
    """Appends rows ``{"time", "what", …}``; a row is one write, so rows of two processes never mix.

    Two hosts can write to the same place of a file on NFS: they append under a lock. Where locks hold within
    one host only, a row may be lost there; nothing but reports is made from it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, what: str, **fields: Any) -> None:
        """Append one row with the time, the host and the process."""
        job = os.environ.get("SLURM_JOB_ID")
        row = {
            "time": round(time.time(), 3),
            "what": what,
            "host": platform.node(),
            "pid": os.getpid(),
            **fields,
        }
        if job:
            row["slurm_job"] = job
        self._append(json.dumps(row))

    def merge(self, other: Path) -> None:
        """Append the rows of another journal that are not there yet, as they are."""
        known = {json.dumps(row) for row in self.rows()}
        for row in Journal(other).rows():
            if (line := json.dumps(row)) not in known:
                self._append(line)

    def _append(self, text: str) -> None:
        with disk_errors(self.path):
            make_folder(self.path.parent)
            descriptor = open_regular_file(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            with open(descriptor, "ab+", buffering=0) as handle:  # noqa: PTH123 - a descriptor, not a path
                _lock(handle.fileno())
                line = (text + "\n").encode()
                if _ends_in_a_cut_line(handle.fileno()):
                    line = b"\n" + line
                if handle.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def rows(self) -> list[dict[str, Any]]:
        """Read all whole rows; a last line cut by a crash is left out."""
        return tail(self.path, sys.maxsize) if self.path.is_file() else []

    @contextlib.contextmanager
    def attempt(self, verb: str, name: str) -> Iterator[None]:
        """Record start and end of one execution of ``verb`` on range ``name``, whatever ends it."""
        self.add("start", verb=verb, range=name)
        try:
            with MachineWatch():
                yield
        except BaseException as error:
            text = str(error) if isinstance(error, CrpipeError) else f"{type(error).__name__}: {error}"
            # A full disk may refuse the journal's row too: the job's own error matters more.
            with contextlib.suppress(CrpipeError, OSError):
                what = "paused" if isinstance(error, Interrupted) else "failed"
                self.add(what, verb=verb, range=name, kind=type(error).__name__, error=text)
            raise
        self.add("finished", verb=verb, range=name)


def _lock(handle: int) -> None:
    """Lock a journal for one row; closing it unlocks it.

    Whoever holds the lock for long is suspended, and a file system may have no locks: neither may stop a job.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:
            return
        else:
            return


def _ends_in_a_cut_line(handle: int) -> bool:
    """Return whether a process died, or a disk was full, inside the last row: the next one must not join."""
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


# The last rows of append-only JSON-lines files, and the attempts at each range from the journals.


Row = dict[str, Any]

# Only the end of a long journal is read: 1 MiB holds about 4,000 attempts and takes about 25 ms.
JOURNAL_BYTES = 1 << 20
METRICS_BYTES = 64 << 10
ENDS = ("finished", "paused", "failed")  # of an attempt; an earlier crpipe wrote `failed` for a pause, too
# Failures by which a job was stopped from outside: its range is interrupted, not failed.
_STOPPED = frozenset({"Interrupted", "KeyboardInterrupt", "SystemExit"})
_PLACE = {"range_step", "range_steps", "step", "time"}
_LARGEST = 1e18
_ATTEMPT: dict[str, Any] = {**dict.fromkeys(("verb", "range", "what", "host"), str), "pid": int}


def tail(path: Path, limit: int, only: bytes = b"", since: int = 0) -> list[Row]:
    """Read the rows with ``only`` in them among the last ``limit`` bytes; none when there is no file.

    since: the byte after which rows are read.

    A line cut by the limit or by a crash is left out.
    """
    try:
        with path.open("rb") as handle:
            start = max(since, os.fstat(handle.fileno()).st_size - limit)
            # Start one byte earlier: if that byte ends a line, the next line is whole.
            handle.seek(max(0, start - 1))
            lines = handle.read().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for line in lines[1:] if start else lines:
        if only in line:
            with contextlib.suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def attempts(path: Path, since: int = 0, limit: int = JOURNAL_BYTES) -> list[Row]:
    """Read the newest rows of a journal that start or end an attempt: those with a verb.

    Rows of another form are left out, as those are that a crash cut.
    """
    rows = [row for row in tail(path, limit, b'"verb"', since) if _is_small(row.get("time"))]
    return [row for row in rows if all(isinstance(row.get(name), kind) for name, kind in _ATTEMPT.items())]


def ends_of(*paths: Path) -> dict[Path, int]:
    """Return the sizes of journals now, in bytes.

    What is new is known by its place: the clocks of nodes may differ from that of the head.
    """
    return {path: status.st_size if (status := look_at(path)) else 0 for path in paths}


def metric_rows(rows: Iterable[Any]) -> list[Row]:
    """Choose the rows of metrics that have a form to compute with: numbers, and where they belong."""
    return [row for row in rows if isinstance(row, dict) and row.keys() >= _PLACE and _is_measured(row)]


def _is_measured(row: Row) -> bool:
    places = [row[name] for name in _PLACE]
    values = [value for name, value in row.items() if name not in _PLACE and name != "range"]
    return (
        isinstance(row.get("range"), str)
        and all(map(_is_small, places))
        and all(isinstance(value, float) or _is_small(value) for value in values)
    )


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _LARGEST


@dataclass(slots=True)
class History:
    """The attempts at one range, by verb: their number, the open one, and the last one if it failed."""

    attempts: dict[str, int] = field(default_factory=dict)
    open: dict[str, Row] = field(default_factory=dict)
    failed: dict[str, Row] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Count the next row."""
        verb = row["verb"]
        if row["what"] == "start":
            self.attempts[verb] = self.attempts.get(verb, 0) + 1
            self.open[verb] = row
        elif row["what"] in ENDS:
            self.open.pop(verb, None)
            self.failed.pop(verb, None)
            if row["what"] != "finished":
                self.failed[verb] = row

    def error(self, verb: str) -> str:
        """Return the error of the last try of ``verb``, else of the evaluation, which has no own state."""
        if verb in self.failed:
            return str(self.failed[verb].get("error", ""))
        return f"evaluate: {self.failed['evaluate'].get('error', '')}" if "evaluate" in self.failed else ""

    def has_failed(self, verb: str) -> bool:
        """Return whether the last attempt failed; a killed one that began after it counts as interrupted."""
        row = self.failed.get(verb)
        return row is not None and verb not in self.open and row.get("kind") not in _STOPPED

    def running(self, verb: str) -> bool:
        """Return whether an attempt has started and not ended, and its process may be alive."""
        return verb in self.open and may_live(self.open[verb])


def histories(rows: Iterable[Row]) -> dict[str, History]:
    """Group the rows of attempts by range."""
    by_range: dict[str, History] = {}
    for row in rows:
        by_range.setdefault(row["range"], History()).add(row)
    return by_range


def may_live(row: Row) -> bool:
    """Return whether the process of a journal row is alive; assume so on another host."""
    return row["host"] != platform.node() or is_alive(row["pid"])
