"""Versions of what this campaign runs with here, and the machines that trained it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from crpipe import __version__
from crpipe.report.status.journal_tail import tail

if TYPE_CHECKING:
    from pathlib import Path

_LIBRARIES = ("torch", "numpy", "pyarrow", "snakemake", "matplotlib", "scikit-learn", "tensorboard")
_JOURNAL_BYTES = 4 << 20


def versions() -> list[tuple[str, str]]:
    """List the versions of crpipe, Python and the main libraries, and the system of this host."""
    found = [("crpipe", __version__), ("Python", platform.python_version())]
    for name in _LIBRARIES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "not installed"))
    return [*found, ("system", platform.platform()), ("host", platform.node())]


def machines(journal: Path) -> list[tuple[str, str]]:
    """Say which hosts trained, each with its device and versions, as the training jobs recorded them."""
    found: dict[tuple[str, str], int] = {}
    for row in tail(journal, _JOURNAL_BYTES, b'"machine"'):
        if row.get("what") == "machine":
            ranks = row.get("ranks", 1)
            text = f"{row.get('device', '?')}{f', {ranks} ranks' if ranks != 1 else ''}"
            versions = f"torch {row.get('torch', '?')}, Python {row.get('python', '?')}"
            key = str(row.get("host", "?")), f"{text}; {versions}, crpipe {row.get('crpipe', '?')}"
            found[key] = found.get(key, 0) + 1
    return [(host, f"{text}; {jobs} job{'' if jobs == 1 else 's'}") for (host, text), jobs in found.items()]
