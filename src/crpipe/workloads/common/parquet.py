"""Raw Parquet files for readers, opened so that no byte of them is left unread without a word.

A path comes in; an open file comes out. Anything else is a FormatError.
"""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING

import pyarrow as pa

from crpipe.events import file_formats
from crpipe.events.notes import note
from crpipe.workloads.common.damage import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow.parquet as pq


@contextlib.contextmanager
def open_parquet(path: Path, *damaged: type[Exception]) -> Iterator[pq.ParquetFile]:
    """Open a file so that its row groups are streamed, and damage is found by the checksums of its pages.

    What the file, or the block, raises for damage (pyarrow's errors and ``damaged``) is a FormatError, and so
    is a file whose row groups do not cover it: one with another file joined to it, for example.
    """
    kinds = (pa.ArrowException, OSError, UnicodeDecodeError, *damaged)
    with Reading(path, *kinds), file_formats.open_parquet(path) as file:
        file_formats.refuse_unread(path, file.metadata)
        yield file


def say_missing(names: Iterable[str], found: Sequence[str], remedy: str) -> str:
    """Describe which columns a file lacks and has, and which it may mean: ``did you mean Muons?``."""
    lacking = list(names)
    text = f"no column {', '.join(lacking)}; the file has {', '.join(found) or 'none'}"
    near = [close for name in lacking if (close := _nearest(name, found))]
    if near:
        text += f"; did you mean {', '.join(near)}? Names are compared letter by letter"
    return f"{text}; {remedy}"


def note_unread(names: Iterable[str], read: Iterable[str]) -> None:
    """Describe which columns of a file are not read."""
    known = {*read}
    other = [name for name in names if name not in known]
    if other:
        note(f"columns that are not read: {', '.join(other)}")


def _nearest(name: str, found: Sequence[str]) -> str:
    lower = {each.lower(): each for each in found}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return lower[close[0]] if close else ""
