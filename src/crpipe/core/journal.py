"""Append-only journal of attempts: one JSON object per line, readable while jobs run and after they died."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import CrpipeError
from crpipe.core.files import disk_watched, writing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Journal:
    """Appends rows ``{"time", "what", …}``; a row is one write, so rows of two processes never mix."""

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
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+", buffering=0) as handle:
                line = (json.dumps(row) + "\n").encode()
                if _ends_in_a_cut_line(handle.fileno()):
                    line = b"\n" + line
                if handle.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def rows(self) -> list[dict[str, Any]]:
        """Read all whole rows; a last line cut by a crash is left out."""
        rows = []
        if self.path.exists():
            for line in self.path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    rows.append(json.loads(line))
        return rows

    @contextlib.contextmanager
    def attempt(self, verb: str, name: str) -> Iterator[None]:
        """Record start and end of one execution of ``verb`` on range ``name``, whatever ends it."""
        self.add("start", verb=verb, range=name)
        try:
            with disk_watched():
                yield
        except BaseException as error:
            text = str(error) if isinstance(error, CrpipeError) else f"{type(error).__name__}: {error}"
            # A full disk may refuse the journal's row too: the job's own error matters more.
            with contextlib.suppress(CrpipeError, OSError):
                self.add("failed", verb=verb, range=name, kind=type(error).__name__, error=text)
            raise
        self.add("finished", verb=verb, range=name)


def _ends_in_a_cut_line(handle: int) -> bool:
    """Return whether a process died, or a disk was full, inside the last row: the next one must not join."""
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"
