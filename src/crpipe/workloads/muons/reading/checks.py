"""Checks that all readers of raw files share, and the errors they raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.events.batch import offsets

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Location:
    """Where in a file a block of rows is, for messages; ``starts`` leads from a muon to its row."""

    path: Path
    row: int
    column: str = ""
    starts: NDArray[Any] | None = None

    def of(self, column: str) -> Location:
        """The same block's rows in one column."""
        return Location(self.path, self.row, column)

    def inside(self, starts: NDArray[Any]) -> Location:
        """The same block's inner lists, of which event i owns those from ``starts[i]`` on."""
        return Location(self.path, self.row, self.column, starts)

    def error(self, index: int, expected: str, value: str, remedy: str = "") -> FormatError:
        """The error for the value at ``index`` of the block; ``remedy``: what to do, if it is known."""
        if self.starts is not None:
            index = int(np.searchsorted(self.starts, index, side="right")) - 1
        return FormatError(
            f"{self.path}: row {self.row + index}: {self.column}: expected {expected}, found {value}; "
            f"{remedy or 'choose the reader of its layout with source.reader, or have the file made again'}"
        )


def whole_numbers(values: NDArray[Any], where: Location) -> NDArray[np.uint64]:
    """Turn ids of any type of numbers into uint64; raise FormatError for any that is no whole number."""
    if values.dtype.kind in "iu":
        good = values >= 0
    else:
        good = (values >= 0) & (values < 2.0**64) & (np.floor(values) == values)
    if not good.all():
        index = int(np.argmin(good))
        raise where.error(index, "a whole number from 0 to 2^64 - 1", str(values[index]))
    return values.astype(np.uint64)


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Round values of any type of numbers to float32; larger ones become infinite."""
    with np.errstate(over="ignore"):  # an infinity is not legal, and is reported with its row
        return values.astype(np.float32, copy=False)


def means_none(counts: NDArray[np.uint32], tracks: NDArray[Any]) -> NDArray[np.bool_]:
    """Find the events that hold nothing but one muon of zeros, [N]: a converter writes them for no muons.

    tracks: [M, any] the values of the muons without their ids.
    """
    single = counts == 1
    result = np.zeros(len(counts), np.bool_)
    result[single] = (tracks[offsets(counts)[:-1][single]] == 0).all(axis=1)
    return result


def check_owner(
    ids: NDArray[np.uint64], multiplicity: NDArray[np.uint32], tags: NDArray[Any], where: Location
) -> None:
    """Compare the id that each item carries, [M], with its event's, [N]; raise FormatError if they differ."""
    owners = np.repeat(ids.astype(tags.dtype), multiplicity)
    if not np.array_equal(owners, tags):
        item = int(np.argmax(owners != tags))
        event = int(np.searchsorted(np.cumsum(multiplicity), item, side="right"))
        raise where.error(event, f"{_plain(owners[item])} in its muons as in its primary", _plain(tags[item]))


def _plain(value: Any) -> str:
    return f"{value:.9g}" if value.dtype.kind == "f" else str(value)
