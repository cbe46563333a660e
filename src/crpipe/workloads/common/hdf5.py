"""HDF5 files, opened so that no other file is read, and no row that was never written.

A path comes in; datasets come out. Anything else is a FormatError.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import DiskError, FormatError, MissingExtra, require
from crpipe.events.notes import note
from crpipe.workloads.common.raw_files import reading

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
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_MOST_NAMES = 1000  # of a file, for notes
# Filters that hdf5plugin brings, by the numbers that The HDF Group gave them.
_FILTERS = {
    4: "szip",
    307: "bzip2",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32017: "sz",
    32024: "sz3",
    32026: "blosc2",
}


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file; whatever its damage makes h5py raise inside the block is a FormatError that names it.

    So are bytes that HDF5 does not read: what follows the end that the file names.
    """
    with reading(path, *_DAMAGE, MemoryError), _opened(path) as file:
        _refuse_rest(path, file.userblock_size)
        yield file


def _opened(path: Path) -> h5py.File:
    """Open a file; raise DiskError while it is locked, FormatError where it is marked as being written."""
    try:
        return _h5py().File(path, "r")
    except OSError as error:
        if isinstance(error, BlockingIOError) and "lock file" in str(error):
            raise DiskError(
                f"{path}: another program has it open for writing; run the same command again later"
            ) from error
        if "already open for write" in str(error):
            raise FormatError(
                f"{path}: marked as open for writing: a program still writes to it, or was killed before it "
                "closed it; wait for it, or have the file made again (one that is whole: h5clear -s FILE)"
            ) from error
        raise


def note_unread(file: h5py.File, *read: str) -> None:
    """Describe datasets of a file that are not read; raise FormatError where one has the name of one that is.

    Such a dataset, in another group, holds more events of the same kind.
    """
    others: list[str] = []

    def visit(name: str | bytes, item: object) -> bool | None:  # bytes: not UTF-8
        if isinstance(item, _h5py().Dataset) and name not in read:
            others.append(name if isinstance(name, str) else name.decode(errors="replace"))
        return True if len(others) == _MOST_NAMES else None

    file.visititems(visit)
    if file.userblock_size:
        note(f"a user block of {file.userblock_size} bytes is not read")
    again = [name for name in others if name.rpartition("/")[2] in read]
    if again:
        raise FormatError(
            f"{file.filename}: it also holds {', '.join(again[:3])}, which would be left unread; have one "
            "file made of each group"
        )
    if others:
        note(f"datasets that are not read: {', '.join(others)}")


def _refuse_rest(path: Path, begin: int) -> None:
    """Raise FormatError when other bytes follow the end that the superblock, at ``begin``, names.

    Its offset from the signature is 28 in versions 2 and 3, 40 in version 0 and 44 in version 1.
    """
    with path.open("rb") as file:
        file.seek(begin)
        head = file.read(64)
        version = head[8] if head.startswith(_SIGNATURE) else 99
        offset = {0: 40, 1: 44, 2: 28, 3: 28}.get(version)
        wide = head[9 if version >= 2 else 13] if offset else 0  # noqa: PLR2004 - of the specification
        if offset is None or wide != 8:  # noqa: PLR2004
            return
        end = int.from_bytes(head[offset : offset + 8], "little")  # from the file's begin
        size = file.seek(0, 2)
        file.seek(min(end, size))
        rest = next((block for block in iter(lambda: file.read(1 << 20), b"") if block.strip(b"\0")), b"")
    if rest:
        what = "another HDF5 file was joined to it" if _SIGNATURE in rest else "something was joined to it"
        raise FormatError(
            f"{path}: the file ends at byte {end}, but {size - end} more follow, which would be left unread: "
            f"{what}; have it copied or made again, each file by itself"
        )


def find_dataset(path: Path, file: h5py.File, name: str) -> h5py.Dataset | None:
    """Find a dataset of a file, None where there is none of this name.

    Raise FormatError when it, or a part of it, is in another file, and when rows of it were never written.
    """
    dataset = _followed(path, file, name, _MOST_LINKS)
    if not isinstance(dataset, _h5py().Dataset) or dataset.shape is None:
        return None
    if dataset.external or dataset.is_virtual:
        kind = "a virtual dataset" if dataset.is_virtual else "the values of another file"
        raise _elsewhere(path, name, kind)
    _need_filters(path, name, dataset)
    if dataset.ndim and 0 not in dataset.shape:
        _refuse_unwritten(path, name, dataset)
    return dataset


def describe(file: h5py.File, name: str) -> str:
    """Describe what a file has under a name, for a message."""
    kind = file.get(name, getclass=True)
    if kind is None:
        return f"none (it has {', '.join(map(repr, file)) or 'nothing'})"
    if not issubclass(kind, _h5py().Dataset):
        return str(kind.__name__).lower()
    dataset = file[name]
    return f"{dataset.dtype} {list(dataset.shape or ())}"


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
        "(h5repack --merge -l CONTI IN OUT copies them into one file)"
    )


def _need_filters(path: Path, name: str, dataset: h5py.Dataset) -> None:
    """Raise MissingExtra when values were compressed by what is not installed here."""
    stored = dataset.id.get_create_plist()
    for index in range(stored.get_nfilters()):
        code, _, _, text = stored.get_filter(index)
        if _h5py().h5z.filter_avail(code):
            continue
        with contextlib.suppress(ImportError):
            import_module("hdf5plugin")  # it registers its filters
        if not _h5py().h5z.filter_avail(code):
            codec = _FILTERS.get(code) or text.decode(errors="replace") or "unknown"
            raise MissingExtra(
                f"{path}: {name} is compressed with {codec} (HDF5 filter {code}), which is not installed "
                "here; pip install hdf5plugin, or have it written with gzip (h5repack -f GZIP=1)"
            )


def _refuse_unwritten(path: Path, name: str, dataset: h5py.Dataset) -> None:
    """Raise FormatError when there is less on the disk than the shape says."""
    stored = dataset.id.get_storage_size()
    missing = not stored
    if dataset.chunks is not None and stored:
        counts = [-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True)]
        missing = dataset.id.get_num_chunks() < int(np.prod([float(each) for each in counts]))
    elif stored:
        missing = stored < dataset.nbytes
    if missing or dataset.nbytes > max(_ALWAYS, _MOST_PACKED * stored):
        raise FormatError(
            f"{path}: {name}: {list(dataset.shape)} rows and columns are declared, but not all were written "
            f"({stored} bytes are); have the file made again"
        )


def _h5py() -> ModuleType:
    return require("h5py", extra="hdf5", why="to read HDF5 files")
