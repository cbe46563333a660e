"""The chain of training: which link trains on which ranges, in which round, and what precedes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError
from crpipe.core.files import digest
from crpipe.core.paths import OUTLIERS
from crpipe.core.ranges import Range, some

if TYPE_CHECKING:
    from collections.abc import Sequence

HASH_DIGITS = 16  # of a file's sha256, in the name of a checkpoint or snapshot


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One training job of the chain.

    name: first and last file number of its share of the campaign, skipped ranges included, so that it stays
        the same when a range is skipped; rounds after the first add their number: ``0000000-0009999.2``.
    ranges: the ranges it trains on, in order; none for the link on the outliers.
    parent: the link before it; empty for the first one.
    begins, ends: ranges trained on before it and after it, summed over the rounds.
    """

    name: str
    ranges: tuple[str, ...]
    round: int
    parent: str
    begins: int
    ends: int


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
                "or rounds with train.rounds"
            )
        return Chain((replace(left[0], parent=""), *left[1:]), self.ranges)

    def of_range(self, name: str) -> tuple[ChainLink, ...]:
        """List the links that train on a range, one for each round."""
        return tuple(link for link in self.links if name in link.ranges)

    def seen(self, link: ChainLink) -> tuple[str, ...]:
        """List the ranges that were trained on once ``link`` is finished."""
        return self.ranges[: min(link.ends, len(self.ranges))]


def make_chain(
    tiles: Sequence[Range],
    ranges: Sequence[Range],
    ranges_per_link: int,
    rounds: int,
    *,
    has_outliers: bool,
) -> Chain:
    """Form the links of a campaign.

    tiles: all its ranges, skipped ones included: they alone decide which ranges form a link. ranges_per_link:
    0 for all in one link. Example: tiles A B C D, of which B is skipped, two in a link, two rounds: the links
    A-B (on A), C-D, A-B.2 (on A), C-D.2.
    """
    size = ranges_per_link or len(tiles)
    kept = frozenset(ranges)
    links: list[ChainLink] = []
    trained = 0
    for turn in range(1, rounds + 1):
        for start in range(0, len(tiles), size):
            share = tiles[start : start + size]
            chosen = tuple(str(tile) for tile in share if tile in kept)
            if chosen:
                whole = str(Range(share[0].first, share[-1].last))
                name = whole if turn == 1 else f"{whole}.{turn}"
                parent = links[-1].name if links else ""
                links.append(ChainLink(name, chosen, turn, parent, trained, trained + len(chosen)))
                trained += len(chosen)
    if has_outliers:
        links.append(ChainLink(OUTLIERS, (), rounds, links[-1].name, trained, trained))
    return Chain(tuple(links), tuple(str(tile) for tile in tiles if tile in kept))


def key_of(name: str, fingerprint: str, parent: str, ranges: Sequence[str] = ()) -> str:
    """Identify the result of training ``name`` under ``fingerprint`` on top of the checkpoint ``parent``.

    ranges: those that the link trains on; another choice of them gives another key.
    """
    own = [] if tuple(ranges) in ((), (name,)) else [list(ranges)]
    return digest([name, fingerprint, parent, *own])
