"""Histograms of event columns of training events: counted by the split, given to a workload before training.

How to bin them is configured (split.histograms); the counts of a range are in the manifest of its shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.config.loading import did_you_mean
from crpipe.core.errors import ConfigError, ShardError
from crpipe.core.paths import MANIFEST
from crpipe.events.shard_manifest import open_manifest
from crpipe.events.shard_reader import REMEDY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout

Binning = tuple[float, float, int]  # low and high end, number of bins


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Events in bins of equal width between ``low`` and ``high``, counted without weights.

    counts: [B]; each bin holds its low edge, the last one also ``high``. under, over: events outside.
    """

    low: float
    high: float
    counts: NDArray[np.int64]
    under: int = 0
    over: int = 0

    @classmethod
    def of(cls, values: NDArray[Any], binning: Binning) -> Histogram:
        """Count finite values [N]."""
        low, high, bins = binning
        values = values.astype(np.float64)
        counts, _ = np.histogram(values, np.linspace(low, high, bins + 1))
        return cls(low, high, counts.astype(np.int64), int((values < low).sum()), int((values > high).sum()))

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the bins: [B + 1]."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @property
    def events(self) -> int:
        """All events, also those outside."""
        return int(self.counts.sum()) + self.under + self.over

    def __add__(self, other: Histogram) -> Histogram:
        """Add up two histograms of the same bins."""
        both = self.under + other.under, self.over + other.over
        return Histogram(self.low, self.high, self.counts + other.counts, *both)

    def describe(self) -> dict[str, Any]:
        """Return the histogram as JSON values."""
        return {
            "low": self.low,
            "high": self.high,
            "bins": len(self.counts),
            "counts": self.counts.tolist(),
            "under": self.under,
            "over": self.over,
        }


def count_columns(
    columns: Mapping[str, NDArray[Any]], binnings: Mapping[str, Binning]
) -> dict[str, Histogram]:
    """Count the values of each column that has a binning."""
    return {name: Histogram.of(columns[name], binning) for name, binning in binnings.items()}


def no_counts(binnings: Mapping[str, Binning]) -> dict[str, Histogram]:
    """Return the histograms of no events."""
    return {
        name: Histogram(low, high, np.zeros(bins, np.int64)) for name, (low, high, bins) in binnings.items()
    }


def add_up(parts: Iterable[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    """Add up histograms of the same columns and bins."""
    whole: dict[str, Histogram] = {}
    for part in parts:
        for name, histogram in part.items():
            whole[name] = whole[name] + histogram if name in whole else histogram
    return whole


def read_histograms(folders: Iterable[Path]) -> dict[str, Histogram]:
    """Add up the histograms of several folders of shards, from their manifests.

    All must have been made under the same data keys. Raise ShardError for a damaged manifest.
    """
    return add_up(_read(folder) for folder in folders)


def _read(folder: Path) -> dict[str, Histogram]:
    described = open_manifest(folder, None).histograms or {}
    try:
        return {
            name: Histogram(
                each["low"], each["high"], np.array(each["counts"], np.int64), each["under"], each["over"]
            )
            for name, each in described.items()
        }
    except KeyError as error:
        raise ShardError(f"{folder / MANIFEST}: histograms: no key {error}; {REMEDY}") from error


def check_binnings(layout: Layout, binnings: Mapping[str, Binning]) -> None:
    """Raise ConfigError for a histogram of a column that events do not have."""
    known = [field.name for field in layout.events]
    for name in binnings:
        if name not in known:
            raise ConfigError(
                f"split.histograms.{name}: no event column of the reader's layout ({', '.join(known)})"
                f"{did_you_mean(name, known)}"
            )


def check_wanted(name: str, required: Iterable[str], given: Iterable[str], layout: Layout) -> None:
    """Raise ConfigError when the workload ``name`` wants the histogram of a column that is not counted."""
    fields = {field.name: field for field in layout.events}
    for column in sorted({*required} - {*given}):
        if column not in fields:
            raise ConfigError(
                f"train.workload: {name} wants a histogram of {column}, which is no event column of the "
                f"reader's layout ({', '.join(fields)}); name another source.reader, or another workload"
            )
        field = fields[column]
        raise ConfigError(
            f"train.workload: {name} wants a histogram of {column}, which split.histograms lacks; write "
            f"[low end, high end, bins], for example\n  split: {{histograms: {{{column}: [{field.low:g}, "
            f"{field.high:g}, 100]}}}}\nWhere ranges are split already, also set `results` to a new directory"
        )
