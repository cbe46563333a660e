"""Metrics over the whole chain and summed histograms, as plain lists; for the figures and for the page."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.paths import OUTLIERS
from crpipe.report.status.range_state import optional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.report.status.journal_tail import Row

WINDOW_STEPS = 500


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: values at global steps."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MultiplicityCounts:
    """Events by multiplicity: ``events[i]`` lie from ``edges[i]`` up to, not including, ``edges[i + 1]``."""

    edges: tuple[float, ...]
    events: tuple[int, ...]

    def visible(self, threshold: int) -> MultiplicityCounts:
        """Leave out the empty bins at the end, those around the threshold excepted."""
        ends = [edge for edge, events in zip(self.edges[1:], self.events, strict=True) if events]
        wanted = max(ends[-1] if ends else 0.0, 2.0 * threshold)
        count = next((i for i, edge in enumerate(self.edges[1:], 1) if edge >= wanted), len(self.events))
        return MultiplicityCounts(self.edges[: count + 1], self.events[:count])


def is_loss(name: str) -> bool:
    """Tell whether a metric is a phase's loss."""
    return name.endswith("/loss")


def is_gap(name: str) -> bool:
    """Tell whether a metric is the critic's estimate of the Wasserstein distance."""
    return name.endswith("/wasserstein")


def chain_rows(config: Config, most: int = 0) -> list[Row]:
    """Read the metrics of all ranges in the order of the chain; about ``most`` rows, evenly, unless 0."""
    paths = config.paths()
    names = [*map(str, config.all_ranges()), OUTLIERS]
    lines = [line for name in names for line in _lines(paths.store(name) / "metrics.jsonl")]
    stride = max(1, len(lines) // most) if most else 1
    rows = []
    for line in lines[::stride]:
        with contextlib.suppress(ValueError):  # cut by a crash
            rows.append(json.loads(line))
    return rows


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []


def pick(rows: Sequence[Row], wanted: Callable[[str], bool]) -> list[Series]:
    """Gather the metrics whose names are ``wanted``, each a series over the rows that hold it."""
    names = sorted({name for row in rows for name in row if wanted(name)})
    found = []
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row]
        found.append(Series(name, tuple(step for step, _ in points), tuple(value for _, value in points)))
    return found


def smoothed(series: Series, window: int = WINDOW_STEPS) -> Series:
    """Average each value with those of the ``window`` steps before it."""
    held: deque[tuple[int, float]] = deque()
    total, means = 0.0, []
    for step, value in zip(series.steps, series.values, strict=True):
        held.append((step, value))
        total += value
        while held[0][0] <= step - window:
            total -= held.popleft()[1]
        means.append(total / len(held))
    return Series(series.name, series.steps, tuple(means))


def multiplicities(config: Config) -> MultiplicityCounts | None:
    """Sum the multiplicity histograms of all ranges that have been split; ``None`` while there is none."""
    paths = config.paths()
    found = (
        optional(paths.multiplicity(str(name)).with_suffix(".histogram.json")) for name in config.all_ranges()
    )
    return add_histograms(row for row in found if row is not None)


def add_histograms(rows: Iterable[Row]) -> MultiplicityCounts | None:
    """Sum histograms; bins are matched by their lower edges, so that a longer tail fits a shorter one."""
    counts: dict[float, int] = {}
    last = 0.0
    for row in rows:
        for edge, events in zip(row["edges"], row["events"], strict=False):
            counts[float(edge)] = counts.get(float(edge), 0) + events
        last = max(last, float(row["edges"][-1]))
    if not counts:
        return None
    lower = sorted(edge for edge in counts if edge < last)
    return MultiplicityCounts((*lower, last), tuple(counts[edge] for edge in lower))


def threshold_of(config: Config) -> int:
    """Find the outlier threshold that the split used: it stands in the ledgers; else the configured one."""
    for name in config.all_ranges():
        ledger = optional(config.paths().ledger(str(name)))
        if ledger is not None:
            return int(ledger["threshold"])
    return config.split.threshold
