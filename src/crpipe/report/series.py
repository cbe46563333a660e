"""Training metrics over the whole chain, and summed multiplicity histograms; for the figures and the page."""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.campaign.ledger import LedgerSums
from crpipe.campaign.records import MultiplicityHistogram
from crpipe.core.journal import Row, metric_rows
from crpipe.core.paths import LARGE_ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign

WINDOW_STEPS = 500  # over which curves are averaged
_WINDOWS = 20  # in a short run curves are averaged over its 20th part
VALIDATION = "validation/"  # before the names of what is measured on held-out events
_VALIDATION_KEY = b'"validation/'
AVERAGE = "_average"  # after a metric's name: its moving average, which the trainer logs on request


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: values at global steps."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MultiplicityCounts:
    """Events by multiplicity: ``events[i]`` lie from ``edges[i]`` up to, not including, ``edges[i + 1]``.

    weights: sums of their weights; empty where events have none.
    """

    edges: tuple[float, ...]
    events: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def cut_at(self, threshold: int, above: int, weight_above: float = 0.0) -> MultiplicityCounts:
        """Cut the bin that ``threshold`` lies in: the events above it begin at the next multiplicity.

        above, weight_above: events above the threshold, and the sum of their weights.
        """
        edge = threshold + 1.0
        index = next((i for i, low in enumerate(self.edges[:-1]) if low < edge < self.edges[i + 1]), None)
        if index is None:
            return self
        later = above - sum(self.events[index + 1 :])
        right = min(max(later, 0), self.events[index])
        events = (*self.events[:index], self.events[index] - right, right, *self.events[index + 1 :])
        weights = self.weights
        if weights:
            part = min(max(weight_above - sum(weights[index + 1 :]), 0.0), weights[index])
            weights = (*weights[:index], weights[index] - part, part, *weights[index + 1 :])
        return MultiplicityCounts((*self.edges[: index + 1], edge, *self.edges[index + 1 :]), events, weights)

    def visible(self, threshold: int | None) -> MultiplicityCounts:
        """Leave out the empty bins at the end, but keep those up to twice the threshold."""
        ends = [edge for edge, events in zip(self.edges[1:], self.events, strict=True) if events]
        last = max(ends[-1] if ends else 0.0, 2.0 * (threshold or 0))
        count = next((i for i, edge in enumerate(self.edges[1:], 1) if edge >= last), len(self.events))
        return MultiplicityCounts(self.edges[: count + 1], self.events[:count], self.weights[:count])


def is_loss(name: str) -> bool:
    """Return whether a metric is a phase's loss in training."""
    return name.endswith("/loss") and not name.startswith(VALIDATION)


def chain_rows(campaign: Campaign, most: int = 0) -> list[Row]:
    """Read the metrics of all links in the order of the chain; about ``most`` rows, evenly, unless 0.

    Rows of a validation are few, and all are kept.
    """
    lines = [
        line for name in campaign.chain.names for line in _lines(campaign.paths.store(name) / "metrics.jsonl")
    ]
    stride = max(1, len(lines) // most) if most else 1
    rows = []
    for number, line in enumerate(lines):
        if number % stride and _VALIDATION_KEY not in line:
            continue
        with contextlib.suppress(ValueError, RecursionError):  # cut by a crash
            rows.append(json.loads(line))
    return metric_rows(rows)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []


def pick(rows: Sequence[Row], wanted: Callable[[str], bool]) -> list[Series]:
    """Collect the metrics whose names are ``wanted``, each as a series over the rows with a finite value."""
    names = sorted({name for row in rows for name in row if wanted(name)})
    curves = []
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row and math.isfinite(row[name])]
        if points:
            steps, values = zip(*points, strict=True)
            curves.append(Series(name, steps, values))
    return curves


def pick_watched(rows: Sequence[Row]) -> list[Series]:
    """Collect the metrics that a phase asks to smooth, other than losses: the workload's own curves."""
    watched = {name.removesuffix(AVERAGE) for row in rows for name in row if name.endswith(AVERAGE)}
    return pick(rows, lambda name: name in watched and not is_loss(name))


def pick_validation(rows: Sequence[Row]) -> dict[str, list[Series]]:
    """Collect the curves of held-out events by panel: the losses together, each number of the workload alone.

    Metrics that a phase gives besides its loss are in TensorBoard alone, where there are many.
    """
    losses = pick(rows, lambda name: name.startswith(VALIDATION) and name.endswith("/loss"))
    curves = pick(rows, lambda name: name.startswith(VALIDATION) and name.count("/") == 1)
    named = {series.name.replace("/", ": "): [series] for series in curves}
    return ({"validation: loss": losses} if losses else {}) | named


def window_of(rows: Sequence[Row]) -> int:
    """Choose over how many steps curves are averaged: 500, or the 20th part of a short training."""
    last = max((int(row["step"]) for row in rows), default=0)
    return max(1, min(WINDOW_STEPS, last // _WINDOWS))


def smoothing(window: int) -> str:
    """Describe what a thick curve is, for an axis; nothing where it is the thin one."""
    return f" (thick: mean over {window} steps)" if window > 1 else ""


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


def multiplicities(campaign: Campaign) -> MultiplicityCounts | None:
    """Sum the multiplicity histograms of all ranges that have been split; ``None`` while there is none.

    One edge is at the threshold: the ledgers say how many events are above it.
    """
    paths = [campaign.paths.histogram(name) for name in campaign.ranges]
    summed = add_histograms(each for path in paths if (each := MultiplicityHistogram.read_if_any(path)))
    threshold = threshold_of(campaign)
    if summed is None or threshold is None:
        return summed
    paths = [campaign.paths.ledger(name) for name in campaign.ranges]
    ledgers = [ledger for path in paths if (ledger := LedgerSums.read_if_any(path))]
    events = [ledger.events.of(role) for ledger in ledgers for role in LARGE_ROLES]
    weights = [ledger.weights[role] for ledger in ledgers if ledger.weights for role in LARGE_ROLES]
    return summed.cut_at(threshold, sum(events), sum(weights))


def add_histograms(histograms: Iterable[MultiplicityHistogram]) -> MultiplicityCounts | None:
    """Sum histograms of different lengths; bins are matched by their lower edges."""
    counts: dict[float, int] = {}
    weights: dict[float, float] = {}
    last = 0.0
    for each in histograms:
        for edge, count in zip(each.edges, each.events, strict=False):
            counts[float(edge)] = counts.get(float(edge), 0) + count
        for edge, weight in zip(each.edges, each.weights or (), strict=False):
            weights[float(edge)] = weights.get(float(edge), 0.0) + weight
        last = max(last, float(each.edges[-1]))
    if not counts:
        return None
    lower = sorted(edge for edge in counts if edge < last)
    edges, events = (*lower, last), tuple(counts[edge] for edge in lower)
    return MultiplicityCounts(edges, events, tuple(weights.get(edge, 0.0) for edge in lower if weights))


def threshold_of(campaign: Campaign) -> int | None:
    """Find the outlier threshold: the one in the ledgers, else the configured one; None without outliers."""
    if not campaign.has_outliers:
        return None
    for name in campaign.ranges:
        ledger = LedgerSums.read_if_any(campaign.paths.ledger(name))
        if ledger is not None:
            return ledger.threshold
    return campaign.config.split.outlier_above
