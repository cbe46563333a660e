"""Raw Parquet files, opened so that no byte of them is left unread without a word.

A path comes in; an open file comes out. Anything else is a FormatError.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from typing import TYPE_CHECKING

import pyarrow as pa

from crpipe.core import raw_files
from crpipe.core.errors import FormatError
from crpipe.events.notes import note
from crpipe.workloads.damage import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    import pyarrow.parquet as pq

MAGIC = b"PAR1"
_TAIL = 8  # length of the footer, and the magic
_SMALL_GAP = 64  # bytes: some writers do not count the header of a dictionary page
_WINDOW = 1 << 20


@contextlib.contextmanager
def open_parquet(path: Path, *damaged: type[Exception]) -> Iterator[pq.ParquetFile]:
    """Open a file so that its row groups are streamed, and damage is found by the checksums of its pages.

    What the file, or the block, raises for damage (pyarrow's errors and ``damaged``) is a FormatError, and so
    is a file whose row groups do not cover it: one with another file joined to it, for example.
    """
    kinds = (pa.ArrowException, OSError, UnicodeDecodeError, *damaged)
    with Reading(path, *kinds), raw_files.open_parquet(path) as file:
        _refuse_unread(path, file.metadata)
        yield file


def say_missing(names: Iterable[str], found: Sequence[str], remedy: str) -> str:
    """Say which columns a file lacks and which it has, and which it may mean: ``did you mean Muons?``."""
    lacking = list(names)
    text = f"no column {', '.join(lacking)}; the file has {', '.join(found) or 'none'}"
    near = [close for name in lacking if (close := _nearest(name, found))]
    if near:
        text += f"; did you mean {', '.join(near)}? Names are compared letter by letter"
    return f"{text}; {remedy}"


def note_unread(names: Iterable[str], read: Iterable[str]) -> None:
    """Say which columns of a file are not read."""
    known = {*read}
    other = [name for name in names if name not in known]
    if other:
        note(f"columns that are not read: {', '.join(other)}")


def _nearest(name: str, found: Sequence[str]) -> str:
    lower = {each.lower(): each for each in found}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return lower[close[0]] if close else ""


def _refuse_unread(path: Path, footer: pq.FileMetaData) -> None:
    """Raise FormatError unless the row groups cover the file, from its first magic to its footer.

    Example: of A and B joined by `cat`, the footer is that of B; the bytes of A belong to none of its row
    groups. What may be between them: zeros, bloom filters, and indices of pages.
    """
    spans, indexed = [], False
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
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
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
        size = file.seek(-_TAIL, os.SEEK_END) + _TAIL
        footer_at = size - _TAIL - int.from_bytes(file.read(4), "little")
        if begin != MAGIC:
            raise FormatError(f"{path}: begins with {begin!r}, not with {MAGIC!r}; have it copied again")
        _refuse_gaps(path, file, sorted(spans), footer_at, indexed=indexed)


def _refuse_gaps(
    path: Path, file: BinaryIO, spans: list[tuple[int, int]], footer_at: int, *, indexed: bool
) -> None:
    """Raise FormatError for chunks of columns [first, end) that share bytes or leave some out."""
    again = "have it copied or made again"
    at, gaps = len(MAGIC), False
    for first, end in [*spans, (footer_at, footer_at)]:
        if first < at:
            raise FormatError(
                f"{path}: two parts of its row groups share the bytes {first} to {min(at, end)}; {again}"
            )
        if first - at > _SMALL_GAP and not _is_zero(file, at, first):
            gaps = True
            if not indexed:
                raise FormatError(
                    f"{path}: the bytes {at} to {first} belong to none of the row groups in its footer, and "
                    "would be left unread: another file was joined to it, or its footer was replaced; "
                    f"{again}, each file by itself"
                )
        at = max(at, end)
    joined = gaps and _find(file, MAGIC + MAGIC, footer_at)
    if joined:
        raise FormatError(
            f"{path}: another Parquet file begins at byte {joined + len(MAGIC)}, whose rows would be left "
            f"unread; {again}, each file by itself"
        )


def _is_zero(file: BinaryIO, first: int, end: int) -> bool:
    file.seek(first)
    while first < end:
        block = file.read(min(_WINDOW, end - first))
        if not block or block.strip(b"\0"):
            return False
        first += len(block)
    return True


def _find(file: BinaryIO, wanted: bytes, end: int) -> int:
    """Find bytes in a file, a window at a time; 0 where they are not."""
    file.seek(0)
    at, kept = 0, b""
    while at < end:
        block = kept + file.read(_WINDOW)
        place = block.find(wanted)
        if place >= 0:
            return at - len(kept) + place
        at, kept = at + len(block) - len(kept), block[-len(wanted) :]
    return 0
