"""Names the format of a file by its first bytes, whatever its name ends with, and says what to do with it.

Parquet files are opened here, and it is found what a footer leaves unread.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from crpipe.core.causes import retry_io
from crpipe.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow.parquet as pq

MAGIC = b"PAR1"
_TAIL, _ENCRYPTED, _SIGNATURE = struct.Struct("<I4s"), b"PARE", 28  # of a Parquet file; bytes
_SMALL_GAP = 64  # bytes: some writers do not count the header of a dictionary page
_WINDOW = 1 << 20
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
        file_format = _by_head(head)
        if file_format is not UNKNOWN:
            return file_format
        for offset in _USER_BLOCKS:
            file.seek(offset)
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


_HELD: dict[Path, bytes] = {}


@contextlib.contextmanager
def hold(path: Path, data: bytes) -> Iterator[None]:
    """Hold a file's bytes in memory for ``open_parquet`` in the block: they need not be read again."""
    _HELD[path] = data
    try:
        yield
    finally:
        del _HELD[path]


def _stream(path: Path) -> BinaryIO:
    return io.BytesIO(_HELD[path]) if path in _HELD else path.open("rb", buffering=0)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a raw Parquet file so that its row groups are streamed, and damage is found by its checksums.

    Raise FormatError for types that pyarrow does not know, and for a file with encryption: pyarrow ends the
    whole process where the footer of an encrypted column is asked for. Such a footer is followed by its
    signature, which no other one is.
    """
    try:
        return retry_io(lambda: _opened(path), path)
    except NotImplementedError as error:  # of pyarrow
        raise FormatError(
            f"{path}: pyarrow does not read it ({error}): a column has a type that it does not know, or the "
            "footer is damaged; have it written with other types, or copied again"
        ) from error


def _opened(path: Path) -> pq.ParquetFile:
    import pyarrow as pa  # noqa: PLC0415 - names of formats need none
    import pyarrow.parquet as pq  # noqa: PLC0415

    with _stream(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(-min(_TAIL.size, size), os.SEEK_END)
        length, magic = _TAIL.unpack(file.read().rjust(_TAIL.size))
        if magic == _ENCRYPTED:
            raise _encrypted(path)
        footer = None
        if magic == MAGIC and length + _TAIL.size + len(MAGIC) <= size:  # no more of it is read: 64 KiB else
            file.seek(-length - _TAIL.size, os.SEEK_END)
            footer = pq.read_metadata(pa.BufferReader(file.read()))
    source, buffer_size = (pa.BufferReader(_HELD[path]), 0) if path in _HELD else (path, 1 << 20)
    opened = pq.ParquetFile(
        source,
        metadata=footer,
        pre_buffer=False,
        buffer_size=buffer_size,
        page_checksum_verification=True,
    )
    if length - opened.metadata.serialized_size == _SIGNATURE:
        opened.close()
        raise _encrypted(path)
    return opened


def _encrypted(path: Path) -> FormatError:
    return FormatError(
        f"{path}: encrypted, or some of its columns are, and crpipe has no keys; have it written without "
        "encryption"
    )


def refuse_unread(path: Path, footer: pq.FileMetaData) -> None:
    """Raise FormatError unless the row groups cover the file, from its first magic to its footer.

    Example: of A and B joined by `cat`, the footer is that of B; the bytes of A belong to none of its row
    groups. What may be between them: zeros, copies of what the footer says of a column, bloom filters, and
    indices of pages.
    """
    spans, indexed = [], False
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            if column.file_path:
                raise FormatError(
                    f"{path}: its rows are in another file ({column.file_path}): this is the summary of a "
                    "folder of Parquet files; leave it out of source.uri, and name those files"
                )
            indexed |= column.has_offset_index or column.has_column_index
            indexed |= column.bloom_filter_offset is not None
            # A column without values has no page of data, and 0 as its place.
            places = [each for each in (column.data_page_offset, column.dictionary_page_offset) if each]
            if column.total_compressed_size and places:
                spans.append((min(places), min(places) + column.total_compressed_size))
    with _stream(path) as file:
        begin = file.read(len(MAGIC))
        size = file.seek(-_TAIL.size, os.SEEK_END) + _TAIL.size
        footer_at = size - _TAIL.size - int.from_bytes(file.read(4), "little")
        if begin != MAGIC:
            raise FormatError(f"{path}: begins with {begin!r}, not with {MAGIC!r}; have it copied again")
        _refuse_gaps(path, file, sorted(spans), footer_at, indexed=indexed)


def _refuse_gaps(
    path: Path, file: BinaryIO, spans: list[tuple[int, int]], footer_at: int, *, indexed: bool
) -> None:
    """Raise FormatError for chunks of columns [first, end) that share bytes or leave some out."""
    again = "have it copied or made again"
    at, between = len(MAGIC), []
    for first, end in [*spans, (footer_at, footer_at)]:
        if first < at:
            raise FormatError(
                f"{path}: two parts of its row groups share the bytes {first} to {min(at, end)}; {again}"
            )
        between += [(at, first)] if first - at > _SMALL_GAP else []
        at = max(at, end)
    gap = next(_unknown(file, between, footer_at), None)
    if gap and not indexed:
        raise FormatError(
            f"{path}: the bytes {gap[0]} to {gap[1]} belong to none of the row groups in its footer, and "
            "would be left unread: another file was joined to it, or its footer was replaced; "
            f"{again}, each file by itself"
        )
    joined = gap and _find(file, MAGIC + MAGIC, footer_at)
    if joined:
        raise FormatError(
            f"{path}: another Parquet file begins at byte {joined + len(MAGIC)}, whose rows would be left "
            f"unread; {again}, each file by itself"
        )


def _unknown(file: BinaryIO, between: list[tuple[int, int]], footer_at: int) -> Iterator[tuple[int, int]]:
    """Yield the gaps [first, end) that hold neither zeros nor a copy of a part of the footer.

    pyarrow before version 18, and other writers, repeat after each column what the footer says of it.
    """
    file.seek(footer_at)
    footer, latest = file.read() if between else b"", 0
    for first, end in between:
        if _is_zero(file, first, end):
            continue
        file.seek(first)
        copy = file.read(min(end - first, len(footer)))
        at = footer.find(copy, latest)  # both are mostly in one order
        latest = footer.find(copy) if at < 0 else at
        if latest < 0 or len(copy) < end - first:
            yield first, end


def _is_zero(file: BinaryIO, first: int, end: int) -> bool:
    file.seek(first)
    while first < end:
        block = file.read(min(_WINDOW, end - first))
        if not block or block.strip(b"\0"):
            return False
        first += len(block)
    return True


def _find(file: BinaryIO, pattern: bytes, end: int) -> int:
    """Find bytes in a file, a window at a time; 0 where they are not."""
    file.seek(0)
    at, kept = 0, b""
    while at < end:
        block = kept + file.read(_WINDOW)
        index = block.find(pattern)
        if index >= 0:
            return at - len(kept) + index
        at, kept = at + len(block) - len(kept), block[-len(pattern) :]
    return 0
