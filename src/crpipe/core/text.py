"""What long work says of its progress, and how numbers, times and tables are written for people."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from crpipe.core.files import size as size  # noqa: PLC0414 - reports know it from here

if TYPE_CHECKING:
    from collections.abc import Sequence


def printable(text: str, keep: str = "\n\t") -> str:
    """Write control characters as escapes: the name of a file must not steer a terminal.

    keep: control characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def counted(count: int, noun: str, plural: str = "") -> str:
    """Write a count with its noun in the right number."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


class Progress(Protocol):
    """Where messages and progress of a job go."""

    def message(self, text: str) -> None:
        """Report one thing that happened, in one line."""

    def update(self, label: str, done: float, total: float, note: str = "") -> None:
        """Report that ``done`` of ``total`` (bytes, files, steps) are finished; call it at any rate."""


class NullProgress:
    """Swallow everything: for tests and for callers who look at the files instead."""

    def message(self, text: str) -> None:
        """Do nothing."""

    def update(self, label: str, done: float, total: float, note: str = "") -> None:
        """Do nothing."""


# Numbers, sizes, durations and tables as plain text.


GAP = "  "
_COMPACT_FROM = 100_000
_THOUSAND = 1000.0
_MOST_DIGITS = 6
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its title, its cells, and when it is dropped on a narrow terminal.

    drop: columns with a smaller number are dropped first; a column with 0 is always kept.
    least: width to which the last column may be cut before a column is dropped.
    """

    title: str
    cells: Sequence[str]
    drop: int = 0
    right: bool = False
    least: int = 0

    def width(self) -> int:
        """Width of the widest cell."""
        return max(len(printable(text)) for text in (self.title, *self.cells))

    def padded(self, text: str, width: int) -> str:
        """Cut and pad one cell."""
        text = shorten(text, width)
        return text.rjust(width) if self.right else text.ljust(width)


def table(columns: Sequence[Column], width: int) -> list[str]:
    """Write the columns as lines of at most ``width`` characters: the titles first, then the rows.

    Columns without any text are left out. Where the width is too small, the last column is cut to its least
    width, then columns are dropped.
    """
    kept = [column for column in columns if column.drop == 0 or any(column.cells)]
    while _least_width(kept) > width and any(column.drop for column in kept):
        first = min(column.drop for column in kept if column.drop)
        kept = [column for column in kept if column.drop != first]
    widths = [column.width() for column in kept]
    rest = width - sum(widths[:-1]) - len(GAP) * (len(kept) - 1)
    widths[-1] = max(min(widths[-1], rest), 1)
    lines = [[column.title for column in kept], *zip(*(column.cells for column in kept), strict=True)]
    return [
        GAP.join(column.padded(cell, w) for column, cell, w in zip(kept, line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _least_width(columns: Sequence[Column]) -> int:
    fixed = sum(column.width() for column in columns[:-1]) + len(GAP) * (len(columns) - 1)
    last = columns[-1]
    return fixed + (min(last.least, last.width()) if last.least else last.width())


def shorten(text: str, width: int) -> str:
    """Cut a text to one line of at most ``width`` characters; an ellipsis marks the cut.

    Control characters are written as escapes.
    """
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def number(value: float) -> str:
    """Write a whole number with thousands separators."""
    return f"{value:,.0f}"


def measured(value: float, error: float | None = None) -> str:
    """Write a measured number with four digits, or to the second digit of its error: 0.0312 ± 0.0021."""
    if error is None or not (math.isfinite(error) and error > 0):
        return number(value) if _THOUSAND <= abs(value) < math.inf else f"{value:.4g}"
    digits = min(max(1 - math.floor(math.log10(error)), 0), _MOST_DIGITS)
    return f"{value:,.{digits}f} ± {error:,.{digits}f}"


def compact(value: float) -> str:
    """Write a number in at most seven characters: 12,345 or 1.23 M."""
    if abs(value) < _COMPACT_FROM:
        return f"{value:,.0f}"
    for unit in ("k", "M", "G"):
        value /= _THOUSAND
        if abs(value) < _THOUSAND:
            return f"{value:.3g} {unit}"
    return f"{value / _THOUSAND:.3g} T"


def duration(seconds: float) -> str:
    """Write a duration in its two largest units."""
    rounded = round(seconds)
    if rounded < _MINUTE:
        return f"{rounded} s"
    if rounded < _HOUR:
        return f"{rounded // _MINUTE} min"
    if rounded < _DAY:
        return f"{rounded // _HOUR} h {rounded % _HOUR // _MINUTE:02d} min"
    return f"{rounded // _DAY} d {rounded % _DAY // _HOUR} h"


def moment(timestamp: float) -> str:
    """Write a time of day with its date, in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))


def bar(share: float, width: int) -> str:
    """Return a bar of ``width`` characters of which ``share`` (0 to 1) is filled."""
    full = round(share * width)
    return "█" * full + "░" * (width - full)


def json_text(value: Any) -> str:
    """Write plain values as JSON that every parser reads: infinities and NaN become null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
