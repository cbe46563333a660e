"""Optional libraries: import one at the moment it is needed, or name the extra that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from crpipe.core.errors import MissingExtra

if TYPE_CHECKING:
    from types import ModuleType


def require(module: str, *, extra: str, why: str) -> ModuleType:
    """Import a module of an optional library; raise MissingExtra with the install command if there is none.

    ``why`` completes "… is needed", for example "to read HDF5 files". An installed library that itself fails
    to import something raises its own ImportError.
    """
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise MissingExtra(
            f"{library} is needed {why} and is not installed; install it with pip install 'crpipe[{extra}]'"
        ) from error
