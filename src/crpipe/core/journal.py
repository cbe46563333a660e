"""Append-only journal of attempts: one JSON object per line, readable while jobs run and after they died."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import time
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import MachineWatch
from crpipe.core.errors import CrpipeError
from crpipe.core.files import make_folder, open_plain, writing

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        with writing(self.path):
            make_folder(self.path.parent)
            descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            with open(descriptor, "ab+", buffering=0) as handle:  # noqa: PTH123 - a descriptor, not a path
                _lock(handle.fileno())
                line = (json.dumps(row) + "\n").encode()
                if _ends_in_a_cut_line(handle.fileno()):
                    line = b"\n" + line
                if handle.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def rows(self) -> list[dict[str, Any]]:
        """Read all whole rows; a last line cut by a crash is left out."""
        rows = []
        if self.path.is_file():
            for line in self.path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    rows.append(json.loads(line))
        return rows

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
                self.add("failed", verb=verb, range=name, kind=type(error).__name__, error=text)
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
