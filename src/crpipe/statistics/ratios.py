"""Tables of ratios and differences in bins, generated over real, with errors by group and a calibrated p.

The bins of one group are correlated, and the tails hold few groups: a sum of squares over errors is no χ².
Instead, the largest deviation is compared with those after real and generated were exchanged in half of the
groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from crpipe.statistics.verdict import errors_needed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EXCHANGES = 1000
_FEW = 10  # groups in a bin: with fewer, the error is that of equal samples
_BLOCK = 1 << 22  # signs at once


@dataclass(frozen=True, slots=True)
class Side:
    """What each group of one sample adds to each bin: sums of a value, and of what it is averaged over.

    over, under: [G, B] each; the mean of a bin is the sum of ``over`` divided by that of ``under``.
    """

    over: Floats
    under: Floats

    @property
    def mean(self) -> Floats:
        """The mean in each bin, [B]; nan where nothing is averaged over."""
        under = self.under.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(under > 0, self.over.sum(axis=0) / under, np.nan))

    def deviations(self, mean: Floats) -> Floats:
        """Return what each group adds to the deviation of the mean from another one: [G, B]."""
        under = self.under.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = (self.over - mean * self.under) / under
        return np.asarray(np.where(np.isfinite(each), each, 0.0))


@dataclass(frozen=True, slots=True)
class Bins:
    """One table: what real and generated events have in each bin of something.

    labels: of the bins, [B]. kind: whether generated over real is reported, or generated minus real.
    """

    labels: tuple[str, ...]
    real: Side
    generated: Side
    kind: Literal["ratio", "difference"] = "ratio"

    def values(self) -> tuple[Floats, Floats]:
        """Return ratios or differences and their errors, [B] each; nan where there is nothing real.

        A bin that is empty on one side has the ratio 0, or inf.
        """
        real, generated = self.real.mean, self.generated.mean
        groups = len(self.real.over)
        ours, theirs = self.real.deviations(real), self.generated.deviations(generated)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = generated / real if self.kind == "ratio" else generated - real
            scale = np.abs(real) if self.kind == "ratio" else np.ones(len(real))
            slope = value if self.kind == "ratio" else np.ones(len(real))
            finite = np.where(np.isfinite(slope), slope, 0.0)
            error = np.sqrt(np.sum((theirs - finite * ours) ** 2, axis=0)) / scale
            equal = np.sqrt(np.sum(self._exchanged() ** 2, axis=0)) / scale
        counts = [np.count_nonzero(side.over, axis=0) for side in (self.real, self.generated)]
        few = np.minimum(*counts) < _FEW
        error = np.where(few, np.maximum(error, equal), error)
        # 2 errors of few groups are what Student's distribution makes of them
        seen = np.count_nonzero((self.real.over != 0) | (self.generated.over != 0), axis=0)
        student = [errors_needed(max(int(count), 2)) for count in seen]
        error = error * np.array(student) / errors_needed(max(groups, 2))
        return np.asarray(value), np.asarray(error * np.sqrt(groups / max(groups - 1, 1)))

    def chances(self) -> tuple[float, Floats]:
        """Return the chance of so large a deviation in any bin of equal samples, and for each bin [B].

        Those of the bins count that one of many bins is chosen. Exchanging real and generated in a group
        leaves equal samples equal: 1,000 random exchanges (Westfall and Young 1993).
        """
        parts = self._exchanged()
        scale = np.sqrt(np.sum(parts**2, axis=0))
        used = scale > 0
        if not used.any():
            return 1.0, np.ones(len(scale))
        parts = parts[:, used] / scale[used]
        seen = np.abs(parts.sum(axis=0))
        largest = np.concatenate([np.abs(signs @ parts).max(axis=1) for signs in _signs(len(parts))])
        each = np.ones(len(scale))
        each[used] = (1 + np.count_nonzero(largest[:, None] >= seen - 1e-9, axis=0)) / (1 + len(largest))
        return float(each.min()), each

    def _exchanged(self) -> Floats:
        """Return what each group adds to generated minus real, were both of one kind: [G, B]."""
        over = self.real.over.sum(axis=0) + self.generated.over.sum(axis=0)
        under = self.real.under.sum(axis=0) + self.generated.under.sum(axis=0)
        mean = over / np.where(under > 0, under, 1.0)
        return self.generated.deviations(mean) - self.real.deviations(mean)


def _signs(groups: int) -> Iterator[Floats]:
    """Yield random signs, [some, groups], EXCHANGES in all."""
    rng = np.random.default_rng(0)
    step = max(1, _BLOCK // max(groups, 1))
    for low in range(0, EXCHANGES, step):
        count = min(step, EXCHANGES - low)
        yield np.asarray(2.0 * rng.integers(0, 2, (count, groups), dtype=np.int8) - 1.0, np.float64)
