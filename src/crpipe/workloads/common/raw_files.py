"""Raw files for readers: damage as an error, Parquet without a byte left unread in silence, columns of CSV.

A path comes in; an open file, or arrays, come out. Anything else is a FormatError.
"""

from __future__ import annotations

import contextlib
import difflib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv

from crpipe.core.causes import OF_FORM, refuse_machine_error
from crpipe.core.errors import CrpipeError, FormatError
from crpipe.events import file_formats
from crpipe.events.notes import note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow.parquet as pq
    from numpy.typing import NDArray


_SHOWN = 300


@contextlib.contextmanager
def reading(path: Path, *damaged: type[Exception]) -> Iterator[None]:
    """Turn the exceptions ``damaged`` of the block into a FormatError that names the file.

    With Exception, whatever the library raises. An error of the machine is a MachineError.
    """
    try:
        yield
    except damaged as error:
        if isinstance(error, CrpipeError):
            raise
        refuse_machine_error(error, path, OF_FORM, OF_FORM)
        text = (" ".join(str(error).split()) or type(error).__name__)[:_SHOWN]
        raise FormatError(
            f"{path}: cannot be read whole ({text}); it is truncated, damaged or of another format; "
            "have it copied or made again"
        ) from error


@contextlib.contextmanager
def open_parquet(path: Path, *damaged: type[Exception]) -> Iterator[pq.ParquetFile]:
    """Open a file so that its row groups are streamed, and damage is found by the checksums of its pages.

    What the file, or the block, raises for damage (pyarrow's errors and ``damaged``) is a FormatError, and so
    is a file whose row groups do not cover it: one with another file joined to it, for example.
    """
    kinds = (pa.ArrowException, OSError, UnicodeDecodeError, *damaged)
    with reading(path, *kinds), file_formats.open_parquet(path) as file:
        file_formats.refuse_unread(path, file.metadata)
        yield file


def read_csv_columns(path: Path, names: Sequence[str]) -> list[NDArray[np.float64]]:
    """Read columns of numbers of a CSV file; raise FormatError for one without them. Others are ignored."""
    try:
        options = pyarrow.csv.ConvertOptions(include_columns=list(names))
        table = pyarrow.csv.read_csv(path, convert_options=options)
        return [table[name].to_numpy().astype(np.float64) for name in names]
    except (OSError, KeyError, ValueError, pa.ArrowInvalid) as error:
        raise FormatError(f"{path}: expected the columns {', '.join(names)} ({error})") from error


def refuse_twins(path: Path, names: Sequence[str], read: Iterable[str]) -> None:
    """Raise FormatError when a column that is read occurs twice: nobody knows which one is meant."""
    for name in read:
        if names.count(name) > 1:
            raise FormatError(
                f"{path}: {names.count(name)} columns are called {name}; have the file made again"
            )


def say_missing(names: Iterable[str], columns: Sequence[str], remedy: str) -> str:
    """Describe which columns a file lacks and has, and which it may mean: ``did you mean Muons?``."""
    lacking = list(names)
    text = f"no column {', '.join(lacking)}; the file has {', '.join(columns) or 'none'}"
    near = [close for name in lacking if (close := _nearest(name, columns))]
    if near:
        text += f"; did you mean {', '.join(near)}? Names are compared letter by letter"
    return f"{text}; {remedy}"


def note_unread(names: Iterable[str], read: Iterable[str]) -> None:
    """Describe which columns of a file are not read."""
    used = {*read}
    other = [name for name in names if name not in used]
    if other:
        note(f"columns that are not read: {', '.join(other)}")


def _nearest(name: str, columns: Sequence[str]) -> str:
    lower = {each.lower(): each for each in columns}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.75)
    return lower[close[0]] if close else ""
