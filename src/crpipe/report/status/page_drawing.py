"""Small charts as inline SVG, in the page's own colours: readable in light and dark, without any library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from crpipe.report.text import compact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.report.series import MultiplicityCounts, Series

# User units; the page scales the drawing to its column, so text must be readable at half this size.
WIDTH, HEIGHT = 480, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 12, 42
_TICKS = 5
COLOURS = 6  # classes c0 … c5 that the page's style sheet knows


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values low..high onto pixels start..end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def line_chart(series: Sequence[Series], means: Sequence[Series], x_label: str, y_label: str) -> str:
    """Draw each series faintly and its mean boldly over one another; single spikes are cut at the frame."""
    values = sorted(value for item in series for value in item.values if math.isfinite(value))
    steps = [step for item in series for step in item.steps]
    low = min(0.0, values[len(values) // 500])
    high = max(values[-1 - len(values) // 500], low + 1e-9)
    x = _Scale(min(steps), max(*steps, min(steps) + 1), _LEFT, WIDTH - _RIGHT)
    y = _Scale(low, high + 0.05 * (high - low), HEIGHT - _BOTTOM, _TOP)
    body = [*_grid(x, y), *_labels(x_label, y_label)]
    for style, lines in (("raw", series), ("mean", means)):
        for index, item in enumerate(lines):
            points = " ".join(
                f"{x(step):.1f},{y(value):.1f}" for step, value in zip(item.steps, item.values, strict=True)
            )
            body.append(f'<polyline class="{style} c{index % COLOURS}" points="{points}"/>')
    return _drawing(body, f"{y_label} against {x_label}")


def histogram_chart(histogram: MultiplicityCounts, threshold: int, x_label: str, y_label: str) -> str:
    """Draw events by multiplicity on logarithmic axes: bulk and outliers apart, events without muons at 0."""
    top = math.log10(max(histogram.events) * 2 or 1.0)
    x = _Scale(-0.6, math.log10(max(histogram.edges[-1], 10.0)), _LEFT, WIDTH - _RIGHT)
    y = _Scale(min(-0.3, top - 1), top, HEIGHT - _BOTTOM, _TOP)
    body = [*_log_grid(x, y), *_labels(x_label, y_label)]
    for low, high, events in zip(histogram.edges, histogram.edges[1:], histogram.events, strict=False):
        if events:
            left, right = (x(math.log10(low)), x(math.log10(high))) if low > 0 else (x(-0.55), x(-0.25))
            height = y(y.low) - y(math.log10(events))
            kind = "c1" if low > threshold else "c0"
            body.append(
                f'<rect class="bin {kind}" x="{left:.1f}" y="{y(math.log10(events)):.1f}" '
                f'width="{max(right - left - 0.5, 0.5):.1f}" height="{height:.1f}">'
                f"<title>{low:g} to {high:g} muons: {events:,} events</title></rect>"
            )
    place = x(math.log10(threshold))
    body.append(
        f'<line class="threshold" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{y(y.low):.1f}"/>'
    )
    return _drawing(body, f"{y_label} against {x_label}")


def _drawing(body: Sequence[str], title: str) -> str:
    inside = "".join(body)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{inside}</svg>"
    )


def _grid(x: _Scale, y: _Scale) -> Iterator[str]:
    for value in nice_ticks(y.low, y.high):
        yield from _horizontal(y(value), compact(value) if abs(value) >= 1000 else f"{value:g}")  # noqa: PLR2004 - a thousand
    for value in nice_ticks(x.low, x.high):
        yield _under(x(value), compact(value))


def _log_grid(x: _Scale, y: _Scale) -> Iterator[str]:
    decades = range(math.ceil(max(y.low, 0)), math.floor(y.high) + 1)
    for decade in decades[:: max(1, len(decades) // _TICKS)]:
        yield from _horizontal(y(decade), compact(10.0**decade))
    yield _under(x(-0.4), "0")
    decades = range(math.floor(x.high) + 1)
    for decade in decades[:: 1 + len(decades) // 7]:
        yield _under(x(decade), compact(10.0**decade))


def _horizontal(height: float, text: str) -> Iterator[str]:
    yield f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
    yield f'<text class="tick" x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{escape(text)}</text>'


def _under(place: float, text: str) -> str:
    anchor = "end" if place > WIDTH - 2 * _RIGHT else "middle"
    height = HEIGHT - _BOTTOM + 16
    return f'<text class="tick" x="{place:.1f}" y="{height}" text-anchor="{anchor}">{escape(text)}</text>'


def _labels(x_label: str, y_label: str) -> Iterator[str]:
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    yield (
        f'<text class="label" x="{(_LEFT + WIDTH - _RIGHT) / 2:.0f}" y="{HEIGHT - 6}" '
        f'text-anchor="middle">{escape(x_label)}</text>'
    )
    yield (
        f'<text class="label" transform="translate(12 {middle:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )


def nice_ticks(low: float, high: float) -> list[float]:
    """Choose about five round numbers between ``low`` and ``high``."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) + 0.0 for index in range(first, last + 1)]
