"""A base for readers: columns are given by their names, in any type that loses nothing."""

from __future__ import annotations

import contextlib
import functools
import zlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar
from zipfile import BadZipFile

import numpy as np

from crpipe.core.causes import OF_FORM
from crpipe.core.errors import FormatError
from crpipe.events.batch import Events, MisfitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.events.layout import Field, Layout


class BaseReader:
    """What reads one kind of raw file; ``rows`` and ``totals`` as in crpipe.campaign.readers.Reader.

    damaged: exceptions in these that mean that a file cannot be read whole; they become FormatErrors.
    """

    layout: ClassVar[Layout]
    needs: ClassVar[tuple[str, ...]] = ()
    damaged: ClassVar[tuple[type[Exception], ...]] = (
        *(ValueError, LookupError, EOFError, OSError, BadZipFile),
        *(zlib.error, NotImplementedError),  # the last: what wrong bytes ask of zipfile and Arrow
    )

    def __init_subclass__(cls) -> None:
        """Name the file in the errors of ``rows`` and ``totals``."""
        super().__init_subclass__()
        for name, wrap in (("rows", _rows_of_file), ("totals", _totals_of_file)):
            if name in vars(cls):
                setattr(cls, name, wrap(vars(cls)[name]))

    def block(self, counts: Any, events: Mapping[str, Any], items: Mapping[str, Any]) -> Events:
        """Make a block of N events with M items.

        counts: [N] items of each event; None where all events have the layout's number. events: an array [N]
        for each event column; items: an array [M], or [N, fixed], for each item column. numpy and Arrow
        arrays and lists are taken, of any type whose values the column's type holds. Raise MisfitError for a
        column that is missing or unknown, a value that would change, or lengths that do not fit.
        """
        columns = _named("event", self.layout.events, events)
        values = [each.reshape(-1) for each in _named("item", self.layout.items, items).values()]
        number = len(next(iter(columns.values())))
        if counts is None:
            multiplicity = np.full(number, self.layout.fixed, np.uint32)
        else:
            multiplicity = _cast("counts", _array(counts), "uint32")
        lengths = {field.name: len(each) for field, each in zip(self.layout.items, values, strict=True)}
        if len({*lengths.values()}) > 1:
            raise MisfitError(f"items: expected columns of one length, found {lengths}")
        return Events(columns, multiplicity, np.stack(values, axis=1))


@contextlib.contextmanager
def _naming(reader: BaseReader, path: Path) -> Iterator[None]:
    try:
        yield
    except (FormatError, MisfitError):
        raise
    except reader.damaged as error:
        if isinstance(error, OSError) and error.errno not in {None, *OF_FORM}:  # the disk failed
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise FormatError(
            f"{path}: cannot be read whole ({text}); it is damaged or of another format; have it made again"
        ) from error


def _rows_of_file(rows: Any) -> Any:
    @functools.wraps(rows)
    def named(self: BaseReader, path: Path, tables: Tables) -> Iterator[Events]:
        with _naming(self, path):
            yield from rows(self, path, tables)

    return named


def _totals_of_file(totals: Any) -> Any:
    @functools.wraps(totals)
    def named(self: BaseReader, path: Path, tables: Tables) -> tuple[int, int]:
        with _naming(self, path):
            counted: tuple[int, int] = totals(self, path, tables)
            return counted

    return named


def _named(kind: str, fields: Sequence[Field], given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    names = [field.name for field in fields]
    for name in given:
        if name not in names:
            near = "".join(f"; did you mean {each}?" for each in get_close_matches(name, names, n=1))
            raise MisfitError(f"{kind} column {name}: not in the layout ({', '.join(names)}){near}")
    missing = [name for name in names if name not in given]
    if missing:
        raise MisfitError(f"{kind} column {missing[0]}: not given; the layout names {', '.join(names)}")
    return {field.name: _cast(field.name, _array(given[field.name]), field.dtype) for field in fields}


def _array(values: Any) -> NDArray[Any]:
    to_numpy = getattr(values, "to_numpy", None)
    if np.ma.is_masked(values):  # no value, as nulls of Arrow
        return np.ma.filled(values.astype(np.float64), np.nan)
    if to_numpy is None:
        return np.asarray(values)
    try:
        return np.asarray(to_numpy(zero_copy_only=False))
    except TypeError:  # pandas and polars name other options
        return np.asarray(to_numpy())


def _cast(name: str, values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert values; floats may lose digits, nothing else may change."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "buif":
        raise MisfitError(f"column {name}: expected {dtype}, found {values.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(dtype)
    if np.dtype(dtype).kind == "f":
        changed = np.isfinite(values) & ~np.isfinite(cast)
    else:
        changed = cast.astype(np.float64) != values.astype(np.float64)
    if changed.any():
        row = int(np.argmax(changed))
        raise MisfitError(f"column {name}: {values[row]} in row {row} of the block is no {dtype}")
    return cast
