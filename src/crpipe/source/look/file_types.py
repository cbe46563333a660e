"""Whether a copy begins and ends as files of its type do: the last guard where a source names no checksum."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

EDGE = 64  # bytes that are read at each end
_PARQUET = {b"PAR1", b"PARE"}
_HDF5 = b"\x89HDF\r\n\x1a\n"
_ROOT_BIG = 1_000_000  # versions from here on have 64-bit positions
_PAGE = (b"<!doctype html", b"<html")


def fault(path: Path, name: str) -> str:
    """Say what is wrong with the copy ``path`` of the file ``name``; empty when nothing is."""
    with path.open("rb") as handle:
        begin = handle.read(EDGE)
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, size - EDGE))
        end = handle.read(EDGE)
    kind = name.rpartition(".")[2].lower()
    if kind in {"parquet", "pq"} and not (begin[:4] in _PARQUET and end[-4:] in _PARQUET):
        return "is no whole Parquet file"
    if kind in {"h5", "hdf5", "hdf"} and not _is_hdf5(path, begin):
        return "is no HDF5 file"
    if kind == "root" and not _is_root(begin, size):
        return "is no whole ROOT file"
    if kind not in {"html", "htm"} and begin.lstrip().lower().startswith(_PAGE):
        return "is a web page"
    return ""


def _is_hdf5(path: Path, begin: bytes) -> bool:
    """Find the signature at byte 0, or after a user block of 512, 1024, 2048, ... bytes."""
    if begin.startswith(_HDF5):
        return True
    size, place = path.stat().st_size, 512
    with path.open("rb") as handle:
        while place < size:
            handle.seek(place)
            if handle.read(len(_HDF5)) == _HDF5:
                return True
            place *= 2
    return False


def _is_root(begin: bytes, size: int) -> bool:
    """Compare the end that the header names (fEND) with the file's size."""
    version = int.from_bytes(begin[4:8], "big")
    end = int.from_bytes(begin[12:20] if version >= _ROOT_BIG else begin[12:16], "big")
    return begin.startswith(b"root") and 0 < end <= size
