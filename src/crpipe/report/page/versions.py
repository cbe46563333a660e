"""Versions of what this campaign runs with here."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from crpipe import __version__

_LIBRARIES = ("torch", "numpy", "pyarrow", "snakemake", "matplotlib", "scikit-learn", "tensorboard")


def versions() -> list[tuple[str, str]]:
    """List the versions of crpipe, Python and the main libraries, and the system of this host."""
    found = [("crpipe", __version__), ("Python", platform.python_version())]
    for name in _LIBRARIES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "not installed"))
    return [*found, ("system", platform.platform()), ("host", platform.node())]
