"""Ranges: consecutive file numbers such as 0042000-0042999; the one that a person means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGITS = 7
_SHOWN = 3  # names in an error
PATTERN = re.compile(rf"(\d{{{DIGITS}}})-(\d{{{DIGITS}}})")


@dataclass(frozen=True, order=True, slots=True)
class Range:
    """File numbers first..last, both included; its text form names directories and files."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < 10**DIGITS:
            raise ConfigError(f"range {self.first}-{self.last}: needs 0 <= first <= last < 10^{DIGITS}")

    def __str__(self) -> str:
        return f"{self.first:0{DIGITS}d}-{self.last:0{DIGITS}d}"

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read the text form, e.g. ``0042000-0042999``; raise ConfigError for anything else."""
        match = PATTERN.fullmatch(text)
        if match is None:
            raise ConfigError(f"range {text!r}: expected NNNNNNN-NNNNNNN, for example 0042000-0042999")
        return cls(int(match[1]), int(match[2]))


def expand(
    first: int, last: int, step: int, skip: frozenset[Range], *, ragged: bool = False
) -> tuple[Range, ...]:
    """List the ranges of ``step`` files each that tile first..last, without those in ``skip``.

    ragged: the last range may be shorter. Raise ConfigError when the ranges do not tile first..last, or when
    ``skip`` names a range that is not among them.
    """
    if (last - first + 1) % step and not ragged:
        raise ConfigError(
            f"ranges: {first}..{last} is not a whole number of steps of {step}; correct ranges.last"
        )
    tiles = tuple(Range(start, min(start + step - 1, last)) for start in range(first, last + 1, step))
    unknown = skip - set(tiles)
    if unknown:
        raise ConfigError(f"ranges.skip: {min(unknown)} is not a range of this campaign")
    kept = tuple(tile for tile in tiles if tile not in skip)
    if not kept:
        raise ConfigError("ranges.skip: every range is skipped; nothing is left to do")
    return kept


def in_interval(number: int | None, entry: str | int) -> bool | None:
    """Return whether 900 or ``0000900-0000999`` names a file number; None for a pattern of names."""
    interval = numbers_of(entry)
    if interval is None:
        return None
    return number is not None and interval[0] <= number <= interval[1]


def numbers_of(entry: str | int) -> tuple[int, int] | None:
    """Read a file number or an interval of file numbers; None for a pattern of names."""
    if isinstance(entry, int) or entry.isdigit():
        return int(entry), int(entry)
    if PATTERN.fullmatch(entry) is None:
        return None
    interval = Range.parse(entry)
    return interval.first, interval.last


def pick(text: str, names: Sequence[str], what: str) -> str:
    """Return the one of ``names`` that ``text`` means; ``what`` they are, in the singular.

    A name wins over a number (from 0, in the order of ``names``), and a number over the beginning of a name.
    Raise ConfigError, naming the nearest or the first ones, when there is none or more than one.
    """
    if text in names:
        return text
    if text.isascii() and text.isdecimal() and str(int(text)) == text and int(text) < len(names):
        return names[int(text)]
    found = [name for name in names if text and name.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{text}: begins {len(found)} {what}s of this campaign: {some(found)}; name one")
    near = get_close_matches(text, names, n=1)
    hint = (
        f"did you mean {near[0]}?" if near else "name one in full, by its beginning, or by its number from 0"
    )
    raise ConfigError(f"{text}: not a {what} of this campaign ({some(names)}); {hint}")


def some(names: Sequence[str]) -> str:
    """Write the first names, and the last one."""
    if len(names) <= _SHOWN + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])}, …, {names[-1]}"
