"""Names the format of a file by its first bytes, whatever its name ends with, and says what to do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_HEAD = 4096
_HDF5 = b"\x89HDF\r\n\x1a\n"
_USER_BLOCKS = tuple(512 << power for power in range(12))  # HDF5 may begin after one
_TEXT = bytes({*range(32, 127), *b"\t\n\r\f\b"})
_UNPACK = "unpack it first"
_AGAIN = "have it copied or downloaded again"


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format: its name as readers declare it, how a sentence calls it, and what to do with such a file."""

    name: str
    words: str
    remedy: str = ""


_MAGIC: tuple[tuple[bytes, FileFormat], ...] = (
    (b"PAR1", FileFormat("Parquet", "a Parquet file")),
    (b"PARE", FileFormat("encrypted Parquet", "an encrypted Parquet file", "have it written without a key")),
    (_HDF5, FileFormat("HDF5", "an HDF5 file")),
    (b"root", FileFormat("ROOT", "a ROOT file")),
    (b"SQLite format 3\0", FileFormat("SQLite", "an SQLite database")),
    (b"ARROW1", FileFormat("Arrow", "an Arrow IPC (Feather) file")),
    (b"FEA1", FileFormat("Arrow", "a Feather file of version 1")),
    (b"\xff\xff\xff\xff", FileFormat("Arrow", "an Arrow IPC stream")),
    (b"ORC", FileFormat("ORC", "an ORC file")),
    (b"Obj\x01", FileFormat("Avro", "an Avro file")),
    (b"\x93NUMPY", FileFormat("npy", "a NumPy file (.npy)")),
    (b"SIMPLE  =", FileFormat("FITS", "a FITS file")),
    (b"CDF\x01", FileFormat("NetCDF", "a NetCDF 3 file")),
    (b"CDF\x02", FileFormat("NetCDF", "a NetCDF 3 file")),
    (b"MATLAB", FileFormat("MATLAB", "a MATLAB file")),
    (b"[i3]", FileFormat("i3", "an IceCube i3 file")),
    (b"%PDF", FileFormat("PDF", "a PDF file")),
    (b"\x80\x04\x95", FileFormat("pickle", "a pickle of Python")),
    (b"\x80\x05\x95", FileFormat("pickle", "a pickle of Python")),
    (b"\x1f\x8b", FileFormat("gzip", "packed with gzip (as .i3.gz and .tar.gz are)", f"{_UNPACK}: gunzip")),
    (b"\x28\xb5\x2f\xfd", FileFormat("zstd", "packed with zstd", f"{_UNPACK}: zstd -d")),
    (b"BZh", FileFormat("bzip2", "packed with bzip2", f"{_UNPACK}: bunzip2")),
    (b"\xfd7zXZ\0", FileFormat("xz", "packed with xz", f"{_UNPACK}: unxz")),
    (b"\x04\x22\x4d\x18", FileFormat("lz4", "packed with lz4", f"{_UNPACK}: lz4 -d")),
    (b"PK\x03\x04", FileFormat("zip", "a zip archive (as .npz is)")),
    (b"PK\x05\x06", FileFormat("zip", "an empty zip archive")),
    (b"version https://git-lfs", FileFormat("Git LFS", "a Git LFS pointer", "type: git lfs pull")),
)
_EMPTY = FileFormat("empty", "an empty file (0 bytes)", _AGAIN)
_ZEROS = FileFormat("zeros", "a file of zeros", _AGAIN)
_PAGE = FileFormat("HTML", "a web page", "its server answered with a page: have it downloaded again")
_TAR = FileFormat("tar", "a tar archive", f"{_UNPACK}: tar -x")
_PLAIN = FileFormat("text", "a text file")
UNKNOWN = FileFormat("", "of no known format")


def format_of(path: Path) -> FileFormat:
    """Name the format of a file by its bytes, UNKNOWN where they say nothing; raise OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        found = _by_head(head)
        if found is not UNKNOWN:
            return found
        for place in _USER_BLOCKS:
            file.seek(place)
            if file.read(len(_HDF5)) == _HDF5:
                return FileFormat("HDF5", "an HDF5 file")
    if not head.strip(b"\0"):
        return _ZEROS
    return _PLAIN if _is_text(head) else UNKNOWN


def _by_head(head: bytes) -> FileFormat:
    if not head:
        return _EMPTY
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return _PAGE
    if head[257:262] == b"ustar":
        return _TAR
    return next((found for magic, found in _MAGIC if head.startswith(magic)), UNKNOWN)


def _is_text(head: bytes) -> bool:
    """Return whether bytes are text: of UTF-8, but for a character that is cut at their end."""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return False
        text = head[: error.start].decode()
    return not text.encode().translate(None, _TEXT + bytes(range(128, 256)))
