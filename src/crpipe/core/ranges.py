"""Ranges, consecutive file numbers such as 0042000-0042999, and the chain of links that trains on them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError
from crpipe.core.files import digest
from crpipe.core.paths import OUTLIERS

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


def make_ranges(
    first: int, last: int, step: int, skip: frozenset[Range], *, ragged: bool = False
) -> tuple[Range, ...]:
    """List the ranges of ``step`` files each that tile first..last, without those in ``skip``.

    ragged: the last range may be shorter. Raise ConfigError when the ranges do not tile first..last, when
    there is none, or when ``skip`` names a range that is not among them.
    """
    if last < first:
        raise ConfigError(f"ranges.last: {last} is before ranges.first: {first}; nothing is left to do")
    if (last - first + 1) % step and not ragged:
        whole = last - (last - first + 1) % step
        smaller = f"{whole} or " if whole > first else ""
        raise ConfigError(
            f"ranges: {first} to {last} is not a whole number of ranges of {step} (ranges.size); "
            f"write ranges.last: {smaller}{whole + step}"
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
    matches = [name for name in names if text and name.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(
            f"{text}: begins {len(matches)} {what}s of this campaign: {some(matches)}; name one"
        )
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


# The chain of training: which link trains on which ranges, in which round, and what precedes it.


HASH_DIGITS = 16  # of a file's sha256, in the name of a checkpoint or snapshot


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One training job of the chain.

    name: first and last file number of its share of the campaign, skipped ranges included, so that it stays
        the same when a range is skipped; rounds after the first add their number: ``0000000-0009999.2``.
    ranges: the ranges it trains on, in order; none for the link on the outliers.
    parent: the link before it; empty for the first one.
    ranges_before, ranges_after: ranges trained on before it and after it, summed over the rounds.
    """

    name: str
    ranges: tuple[str, ...]
    round: int
    parent: str
    ranges_before: int
    ranges_after: int


@dataclass(frozen=True, slots=True)
class Chain:
    """All links in the order of training; ``ranges``: those of the campaign, without the skipped ones."""

    links: tuple[ChainLink, ...]
    ranges: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the links, in order."""
        return tuple(link.name for link in self.links)

    @property
    def one_to_one(self) -> bool:
        """Whether each range has one link of its own name: one round, one range a link, none left out."""
        bulk = [link for link in self.links if link.name != OUTLIERS]
        whole = tuple(link.name for link in bulk) == self.ranges
        return whole and all(link.ranges == (link.name,) for link in bulk)

    def find(self, name: str) -> ChainLink | None:
        """Find a link by its name."""
        return next((link for link in self.links if link.name == name), None)

    def named(self, name: str) -> ChainLink:
        """Find a link by its name; raise ConfigError naming some when there is none."""
        link = self.find(name)
        if link is None:
            raise ConfigError(f"{name}: not a link of this campaign ({some(self.names)})")
        return link

    def after(self, name: str) -> Chain:
        """Leave out the links up to a link; raise ConfigError when it is none of the chain, or its last."""
        left = self.links[self.links.index(self.named(name)) + 1 :]
        if not left:
            raise ConfigError(
                f"{name} is the last link; nothing is left to train; add ranges with ranges.last, "
                "or rounds with train.passes"
            )
        return Chain((replace(left[0], parent=""), *left[1:]), self.ranges)

    def ranges_trained_by(self, link: ChainLink) -> tuple[str, ...]:
        """List the ranges that were trained on once ``link`` is finished."""
        return self.ranges[: min(link.ranges_after, len(self.ranges))]


def make_chain(
    all_ranges: Sequence[Range],
    ranges: Sequence[Range],
    ranges_per_link: int,
    rounds: int,
    *,
    has_outliers: bool,
) -> Chain:
    """Form the links of a campaign.

    all_ranges: skipped ones, too: they alone decide which ranges form a link. ranges_per_link: 0 for all in
    one link. Example: ranges A B C D, of which B is skipped, two in a link, two rounds: the links A-B (on A),
    C-D, A-B.2 (on A), C-D.2.
    """
    size = ranges_per_link or len(all_ranges)
    kept = frozenset(ranges)
    links: list[ChainLink] = []
    trained = 0
    for turn in range(1, rounds + 1):
        for start in range(0, len(all_ranges), size):
            share = all_ranges[start : start + size]
            of_link = tuple(str(each) for each in share if each in kept)
            if of_link:
                span = str(Range(share[0].first, share[-1].last))
                name = span if turn == 1 else f"{span}.{turn}"
                parent = links[-1].name if links else ""
                links.append(ChainLink(name, of_link, turn, parent, trained, trained + len(of_link)))
                trained += len(of_link)
    if has_outliers:
        links.append(ChainLink(OUTLIERS, (), rounds, links[-1].name, trained, trained))
    return Chain(tuple(links), tuple(str(each) for each in all_ranges if each in kept))


def checkpoint_key(name: str, fingerprint: str, parent: str, ranges: Sequence[str] = ()) -> str:
    """Identify the result of training ``name`` under ``fingerprint`` on top of the checkpoint ``parent``.

    ranges: those that the link trains on; another choice of them gives another key.
    """
    other_ranges = [] if tuple(ranges) in ((), (name,)) else [list(ranges)]
    return digest([name, fingerprint, parent, *other_ranges])
