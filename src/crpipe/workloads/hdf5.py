"""HDF5 files, opened so that no other file is read, and no row that was never written.

A path comes in; datasets come out. Anything else is a FormatError.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.core.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    import h5py

_MOST_LINKS = 16
# gzip packs 1,032 bytes into one at best; more is a size that was never written.
_MOST_PACKED, _ALWAYS = 2000, 1 << 24
# What h5py raises for files that were cut or had bytes changed.
_DAMAGE = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file; whatever its damage makes h5py raise inside the block is a FormatError that names it."""
    try:
        with _h5py().File(path, "r") as file:
            yield file
    except (*_DAMAGE, MemoryError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(
            f"{path}: cannot be read whole ({text[:300]}); it is truncated, damaged or of another format; "
            "have it copied or made again"
        ) from error


def find_dataset(path: Path, file: h5py.File, name: str) -> h5py.Dataset | None:
    """Find a dataset of a file, None where there is none of this name.

    Raise FormatError when it, or a part of it, is in another file, and when rows of it were never written.
    """
    found = _followed(path, file, name, _MOST_LINKS)
    if not isinstance(found, _h5py().Dataset) or found.shape is None:
        return None
    if found.external or found.is_virtual:
        raise _elsewhere(path, name, "the values of another file")
    if found.ndim and 0 not in found.shape:
        _refuse_unwritten(path, name, found)
    return found


def describe(file: h5py.File, name: str) -> str:
    """Say what a file has under a name, for a message."""
    kind = file.get(name, getclass=True)
    if kind is None:
        return f"none (it has {', '.join(map(repr, file)) or 'nothing'})"
    if not issubclass(kind, _h5py().Dataset):
        return str(kind.__name__).lower()
    found = file[name]
    return f"{found.dtype} {list(found.shape or ())}"


def _followed(path: Path, group: h5py.Group, name: str, left: int) -> Any:
    """Follow links inside of a file, step by step, before h5py would follow those that lead out of it."""
    library = _h5py()
    here: Any = group.file if name.startswith("/") else group
    for part in (part for part in name.split("/") if part not in ("", ".")):
        if not isinstance(here, library.Group):
            return None
        link = here.get(part, getlink=True)
        if isinstance(link, library.ExternalLink):
            raise _elsewhere(path, name, f"a link to {link.filename!r}")
        if isinstance(link, library.SoftLink):
            if not left:
                raise FormatError(f"{path}: {name}: its links lead to each other; have the file made again")
            here = _followed(path, here, link.path, left - 1)
        elif link is None:
            return None
        else:
            here = here[part]
    return here


def _elsewhere(path: Path, name: str, what: str) -> FormatError:
    return FormatError(
        f"{path}: {name} is {what}; a raw file holds its own values: have the file made again with them "
        "(h5repack copies them into one file)"
    )


def _refuse_unwritten(path: Path, name: str, found: h5py.Dataset) -> None:
    """Raise FormatError when there is less on the disk than the shape says."""
    stored = found.id.get_storage_size()
    missing = not stored
    if found.chunks is not None and stored:
        counts = [-(-size // step) for size, step in zip(found.shape, found.chunks, strict=True)]
        missing = found.id.get_num_chunks() < int(np.prod([float(each) for each in counts]))
    elif stored:
        missing = stored < found.nbytes
    if missing or found.nbytes > max(_ALWAYS, _MOST_PACKED * stored):
        raise FormatError(
            f"{path}: {name}: {list(found.shape)} rows and columns are declared, but not all were written "
            f"({stored} bytes are); have the file made again"
        )


def _h5py() -> ModuleType:
    return require("h5py", extra="hdf5", why="to read HDF5 files")
