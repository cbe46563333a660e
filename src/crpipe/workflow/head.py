"""The head: the one workflow process of a directory; the kernel frees its lease however it dies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crpipe.core.errors import LeaseError
from crpipe.core.lease import lease

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_S = 10.0


def take_lease(folder: Path, *, executes: bool, say: Callable[[str], None]) -> contextlib.ExitStack | None:
    """Take the lease of ``folder``; closing the result, or the end of the process, gives it back.

    A call that runs no jobs gets None where another head works, one that ``executes`` raises LeaseError.
    """
    claim = contextlib.ExitStack()
    try:
        claim.enter_context(lease(folder, wait_s=WAIT_S if executes else 0.0, say=say))
    except LeaseError:
        if executes:
            raise
        return None
    return claim


def remove_locks(folder: Path) -> int:
    """Remove Snakemake's locks in ``folder`` and count them.

    Only the holder of the lease may: whoever left them is dead, or it would hold the lease.
    """
    stale = list(folder.glob("*"))
    for path in stale:
        path.unlink()
    return len(stale)
