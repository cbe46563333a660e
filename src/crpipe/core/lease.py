"""Lease: at most one live job works on a directory, whoever started it twice."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import time
from typing import TYPE_CHECKING

from crpipe.core.errors import LeaseError
from crpipe.core.files import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_GRACE_S = 0.5


def owner_of(path: Path) -> str:
    """Describe who holds (or last held) the lease file."""
    try:
        row = json.loads(path.read_text())
    except (OSError, ValueError):
        return "an unknown process"
    job = f", Slurm job {row['slurm_job']}" if row.get("slurm_job") else ""
    return f"process {row['pid']} on {row['host']}{job}"


def is_held(path: Path) -> bool:
    """Return whether a live process holds the lease; never blocks, and never keeps it from anyone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def lease(
    folder: Path, *, wait_s: float, say: Callable[[str], None], stopped: Callable[[], bool] = bool
) -> Iterator[None]:
    """Hold ``folder/lease`` while the block runs; the kernel frees it when the process dies, however it dies.

    Wait at most ``wait_s`` seconds for a live owner to finish (it may be the orphan of a killed workflow that
    is just writing its snapshot), telling once through ``say`` whom the wait is for; then raise LeaseError.
    """
    path = folder / "lease"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, path, wait_s, say, stopped)
        row = {"host": platform.node(), "pid": os.getpid(), "since": round(time.time(), 3)}
        if os.environ.get("SLURM_JOB_ID"):
            row["slurm_job"] = os.environ["SLURM_JOB_ID"]
        with writing(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(row).encode(), 0)
        yield
    finally:
        os.close(handle)


def _acquire(
    handle: int, path: Path, wait_s: float, say: Callable[[str], None], stopped: Callable[[], bool]
) -> None:
    # `is_held` shares the lock for a moment; only who holds it for longer is an owner.
    begun = time.monotonic()
    reported = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = owner_of(path)
            waited = time.monotonic() - begun
            if waited < _GRACE_S:
                time.sleep(0.02)
                continue
            if stopped() or waited >= wait_s:
                raise LeaseError(
                    f"{path.parent}: already being worked on by {holder}; wait for it or stop it, "
                    "then run the same command again"
                ) from None
            if not reported:
                say(f"{path.parent}: waiting for {holder} to finish")
                reported = True
            time.sleep(0.2)
        else:
            return
