"""One number of many events, in bins of something else that is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crpipe.workloads.xec.scoring.metrics import bootstrap_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crpipe.workloads.xec.scoring.metrics import Statistic

    Floats = NDArray[np.float64]

FEWEST = 25  # events in a bin
_MOST_BINS = 10


@dataclass(frozen=True, slots=True)
class Profile:
    """A statistic in bins, [B] each.

    where: median of what the bins are of; value: the statistic; error: from a bootstrap.
    """

    where: Floats
    value: Floats
    error: Floats


def profile(condition: Floats, values: Floats, statistic: Statistic) -> Profile:
    """Cut events into at most ten bins with equally many each, and measure ``values`` in each of them.

    condition, values: [N]. Events of equal condition stay together; bins of fewer than 25 are left out, so
    there may be none.
    """
    bins = int(np.clip(len(condition) // FEWEST, 1, _MOST_BINS))
    cuts = np.linspace(0, 1, bins + 1)[1:-1] if len(condition) else np.zeros(0)
    edges = np.unique(np.quantile(condition, cuts)) if len(cuts) else cuts
    number = np.searchsorted(edges, condition, side="right")
    chosen = [number == each for each in range(len(edges) + 1) if np.count_nonzero(number == each) >= FEWEST]
    rows = [
        (np.median(condition[mine]), statistic(values[mine]), bootstrap_error(values[mine], statistic))
        for mine in chosen
    ]
    return Profile(*np.array(rows, np.float64).reshape(-1, 3).T)
