"""Small charts for the page: what is plotted where; the template chart.svg.j2 writes them as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.text import compact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.report.series import MultiplicityCounts, Series

# User units; the page scales a chart to its column, so text must be readable at half this size.
WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 70, WIDTH - 12, 12, HEIGHT - 42
_MARGIN = 12
_TICKS = 5
_APART = 15.0  # least distance of two labels
_UNEVEN = 20.0  # times the typical value, from which the largest one bends the scale
COLOURS = 6  # classes c0 … c5 of the page's style sheet


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of an axis at (x, y); ``rule``: whether a horizontal line crosses the chart there."""

    x: float
    y: float
    text: str
    anchor: str
    rule: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points [(x, y)], in one of the colours; ``bold`` for a mean."""

    points: tuple[tuple[float, float], ...]
    colour: int
    bold: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """A bin of a histogram: its upper left corner, its size, and what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    colour: int
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart with its axes; ``threshold``: where a vertical line marks it."""

    x_label: str
    y_label: str
    ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...] = ()
    bars: tuple[Bar, ...] = ()
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values low..high onto start..end; values outside are moved to the nearer end.

    bend: where the scale changes from linear (near zero) to logarithmic; 0: linear everywhere.
    """

    low: float
    high: float
    start: float
    end: float
    bend: float = 0.0

    def __call__(self, value: float) -> float:
        low, high = self._bent(self.low), self._bent(self.high)
        share = (self._bent(value) - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def _bent(self, value: float) -> float:
        return math.asinh(value / self.bend) if self.bend else value


def line_chart(
    series: Sequence[Series], means: Sequence[Series], x_label: str, y_label: str, *, from_zero: bool = True
) -> Chart:
    """Plot each series as a faint line and its mean as a bold one; single spikes are cut off.

    from_zero: whether zero is in view, too. Where the values are of very different size, the vertical axis is
    linear near zero and logarithmic beyond.
    """
    values = sorted(value for item in (*series, *means) for value in item.values)
    steps = [step for item in (*series, *means) for step in item.steps]
    low, high = values[len(values) // 500], values[-1 - len(values) // 500]
    bend = _bend(values, max(abs(low), abs(high)))
    low = min(0.0, low) if from_zero else low
    high = max(high, low + 1e-9)
    low -= 0.0 if from_zero else 0.05 * (high - low)
    x = _Scale(min(steps), max(*steps, min(steps) + 1), LEFT, RIGHT)
    y = _Scale(low, high + 0.05 * (high - low), BOTTOM, TOP, bend)
    curves = [
        Curve(
            tuple((x(step), y(value)) for step, value in zip(item.steps, item.values, strict=True)),
            index % COLOURS,
            bold,
        )
        for bold, lines in ((False, series), (True, means))
        for index, item in enumerate(lines)
    ]
    return Chart(x_label, y_label, tuple(_ticks(x, y)), curves=tuple(curves))


def histogram_chart(histogram: MultiplicityCounts, threshold: int | None, item: str) -> Chart:
    """Plot events by multiplicity on logarithmic axes, coloured by the threshold; 0 has a bin of its own."""
    top = math.log10(max(histogram.events) * 2 or 1.0)
    x = _Scale(-0.6, math.log10(max(histogram.edges[-1], 10.0)), LEFT, RIGHT)
    y = _Scale(min(-0.3, top - 1), top, BOTTOM, TOP)
    bars = []
    for low, high, events in zip(histogram.edges, histogram.edges[1:], histogram.events, strict=False):
        if events:
            left, right = (x(math.log10(low)), x(math.log10(high))) if low > 0 else (x(-0.55), x(-0.25))
            upper = y(math.log10(events))
            colour = 1 if threshold is not None and low > threshold else 0
            text = f"{low:g} to {high:g} {item}: {events:,} events"
            bars.append(Bar(left, upper, max(right - left - 0.5, 0.5), y(y.low) - upper, colour, text))
    return Chart(
        f"multiplicity ({item} in one event)",
        "events in the bin",
        tuple(_log_ticks(x, y)),
        bars=tuple(bars),
        threshold=None if threshold is None else x(math.log10(threshold + 1)),
    )


def _bend(values: Sequence[float], largest: float) -> float:
    """Choose where the scale of ``values`` bends; 0, so nowhere, unless most are far below the largest."""
    sizes = sorted(abs(value) for value in values)
    typical = sizes[len(sizes) // 2]
    return typical if 0 < typical * _UNEVEN < largest else 0.0


def bent_ticks(low: float, high: float, bend: float) -> list[float]:
    """Choose round numbers for a scale that is linear up to ``bend`` and logarithmic beyond."""
    first = math.floor(math.log10(bend))
    last = math.floor(math.log10(max(abs(low), abs(high), bend)))
    powers = range(first, last + 1, 1 + (last - first) // _TICKS)
    found = [sign * 10.0**power for power in powers for sign in (-1, 1)]
    return [value for value in (0.0, *reversed(found)) if low <= value <= high]


def _ticks(x: _Scale, y: _Scale) -> Iterator[Tick]:
    heights: list[float] = []
    for value in bent_ticks(y.low, y.high, y.bend) if y.bend else nice_ticks(y.low, y.high):
        if any(abs(y(value) - height) < _APART for height in heights):
            continue
        heights.append(y(value))
        yield _left(y(value), compact(value) if abs(value) >= 1000 else f"{value:g}")  # noqa: PLR2004 - a thousand
    for value in nice_ticks(x.low, x.high):
        yield _below(x(value), compact(value))


def _log_ticks(x: _Scale, y: _Scale) -> Iterator[Tick]:
    decades = range(math.ceil(max(y.low, 0)), math.floor(y.high) + 1)
    for decade in decades[:: max(1, len(decades) // _TICKS)]:
        yield _left(y(decade), compact(10.0**decade))
    yield _below(x(-0.4), "0")
    decades = range(math.floor(x.high) + 1)
    for decade in decades[:: 1 + len(decades) // 6]:
        yield _below(x(decade), compact(10.0**decade))


def _left(height: float, text: str) -> Tick:
    return Tick(LEFT - 6, height, text, "end", rule=True)


def _below(place: float, text: str) -> Tick:
    return Tick(place, BOTTOM + 16, text, "end" if place > WIDTH - 2 * _MARGIN else "middle")


def nice_ticks(low: float, high: float) -> list[float]:
    """Choose about five round numbers between ``low`` and ``high``."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) + 0.0 for index in range(first, last + 1)]
