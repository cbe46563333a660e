"""What a measured difference says, in four words that a referee accepts.

d: how much worse a number is than what it is compared with; e: its error by group; t: the tolerance that the
workload declares, what the field calls negligible; s: 2 errors, or what Student's distribution makes of them.

differs: d - s e > 0 and d >= t. agrees: d + s e < t. small difference: d - s e > 0 and d < t. cannot tell:
anything else; the number of groups that would resolve t is named.

A distance between samples is not below the true one on average: it is compared with its floor (equal samples)
to say that it differs, and with its ideal, 0, to say that it agrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

# ruff: noqa: PLC0415 - looking at a campaign without an evaluation needs no scipy

if TYPE_CHECKING:
    from collections.abc import Sequence

AGREES, SMALL, DIFFERS, CANNOT_TELL = "agrees", "small difference", "differs", "cannot tell"
WORDS = (AGREES, SMALL, CANNOT_TELL, DIFFERS)  # from the best to the worst
SIGNS = {AGREES: "≈", SMALL: "~", CANNOT_TELL: "?", DIFFERS: "≠"}
ERRORS = 2.0
LEVEL = math.erfc(ERRORS / math.sqrt(2))  # chance of a difference beyond 2 errors, in both directions: 4.6 %


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a number is from what it is compared with.

    value: with its sign. error: by group. two_sided: whether both signs are bad; otherwise the positive one.
    tolerance: what is negligible; 0: nothing is. most: what the difference is at most, where that is more.
    p: chance of such a difference between equal samples, where it was calibrated by exchange; None: that of
    Student's distribution. effective: of weighted groups, as many of one weight know as much; None: all.
    """

    value: float
    error: float
    groups: int
    tolerance: float = 0.0
    two_sided: bool = False
    most: float | None = None
    p: float | None = None
    effective: float | None = None

    @property
    def known(self) -> float:
        """The groups from which the error is known."""
        return self.groups if self.effective is None else self.effective

    @property
    def worse(self) -> float:
        """The difference in the bad direction."""
        return abs(self.value) if self.two_sided else self.value

    @property
    def errors(self) -> float:
        """The difference in the bad direction, in units of its error."""
        return self.worse / self.error if 0 < self.error < math.inf else math.inf

    @property
    def resolves(self) -> float:
        """The difference that this sample resolves: 2 errors."""
        return errors_needed(self.known) * self.error

    @property
    def largest(self) -> float:
        """The difference in the bad direction, or what it is at most."""
        return self.worse if self.most is None else max(self.most, self.worse)

    @property
    def reach(self) -> float:
        """What is not excluded where no difference is seen: 2 errors, and what a distance is at most.

        Where both are negligible and the difference is not surely so, they are counted from the difference.
        """
        alone = self.resolves + max(self.most or 0.0, 0.0)
        return alone if alone >= self.tolerance else self.resolves + max(self.largest, 0.0)

    @property
    def needed(self) -> int | None:
        """Count the groups that would resolve the tolerance; None without one."""
        if not self.tolerance > 0 or not math.isfinite(self.resolves):
            return None
        return math.ceil(self.groups * (self.reach / self.tolerance) ** 2)

    @property
    def chance(self) -> float:
        """The chance of such a difference, or a larger one, between equal samples."""
        if self.p is not None:
            return self.p
        if not self.error > 0:
            return 0.0 if self.error == 0 and self.worse > 0 else 1.0
        if self.worse <= 0:
            return 1.0
        from scipy.special import stdtr

        return min(1.0, 2 * float(stdtr(self.known - 1, -self.worse / self.error)))

    def word(self, level: float = LEVEL) -> str:
        """Judge the difference; level: the chance below which it counts as seen, lower among many."""
        if not (math.isfinite(self.value) or self.p is not None) or math.isnan(self.error):
            return CANNOT_TELL
        seen = self.chance <= level
        if seen and self.worse >= self.tolerance:
            return DIFFERS
        if self.largest + self.resolves < self.tolerance:
            return AGREES
        return SMALL if seen else CANNOT_TELL


def levels(chances: Sequence[float], level: float = LEVEL) -> list[float]:
    """Return below which chance each of several differences counts as seen (Holm 1979); -1: it is not seen.

    The smallest chance is compared with level / m, the next one with level / (m - 1), until one fails.
    """
    result = [-1.0] * len(chances)
    for rank, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        limit = level / (len(chances) - rank)
        if chances[index] > limit:
            break
        result[index] = limit
    return result


def worst(words: Sequence[str]) -> str:
    """Return the worst of some words; empty without any."""
    return max(words, key=WORDS.index, default="")


def errors_needed(groups: float) -> float:
    """Return how many errors make a difference seen: 2, and more for few groups (Student's distribution)."""
    from scipy.special import stdtrit

    return float(stdtrit(groups - 1, 1 - LEVEL / 2)) if groups > 1 else math.inf
