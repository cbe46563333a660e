"""The charts of the pages: which curves of a campaign are plotted, under which heading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.text import number
from crpipe.report.page.charts import Chart, histogram_chart, line_chart
from crpipe.report.series import (
    VALIDATION,
    chain_rows,
    is_loss,
    multiplicities,
    pick,
    pick_validation,
    pick_watched,
    smoothed,
    threshold_of,
    window_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.report.series import MultiplicityCounts, Series

MOST_ROWS = 1500  # points of a curve; a phone shows them at once
HEADLINES = 4
_STEP = "training step over all ranges"
_RATE = "learning_rate"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of a page with its heading; legend: a name for each colour, in order; note: below it."""

    name: str
    title: str
    chart: Chart
    legend: tuple[str, ...] = ()
    note: str = ""


def panels(campaign: Campaign) -> Iterator[Panel]:
    """Yield every chart for which there is data."""
    rows = chain_rows(campaign, MOST_ROWS)
    window = window_of(rows)
    yield from _curves("losses", "Losses", "loss", pick(rows, is_loss), window)
    for index, (title, lines) in enumerate(pick_validation(rows).items()):
        label = title.partition(": ")[2]
        yield from _curves(f"validation-{index}", title.capitalize(), label, lines, window)
    for index, series in enumerate(pick_watched(rows)):
        phase, _, metric = series.name.rpartition("/")
        yield from _curves(f"watched-{index}", f"{phase}: {metric}", metric, [series], window)
    yield from _rates(pick(rows, lambda name: name == _RATE or name.endswith(f"/{_RATE}")))
    speed = pick(rows, "speed/items_per_s".__eq__)
    rate = f"{campaign.item} / s"
    yield from _curves("throughput", f"Throughput ({rate})", rate, speed, window)
    histogram = multiplicities(campaign)
    if histogram is not None:
        yield _multiplicity(histogram, threshold_of(campaign), campaign.item)


def headlines(campaign: Campaign) -> list[Panel]:
    """Choose the four charts that say most: losses, validation, multiplicity, throughput, else others."""
    found = list(panels(campaign))
    first = [
        panel for name in ("losses", "validation", "multiplicity", "throughput") for panel in _of(found, name)
    ]
    return (first + [panel for panel in found if panel not in first])[:HEADLINES]


def _of(found: Sequence[Panel], name: str) -> list[Panel]:
    return [panel for panel in found if panel.name.partition("-")[0] == name][:1]


def _rates(series: Sequence[Series]) -> Iterator[Panel]:
    """Plot learning rates as they are: a mean over steps would hide where they change."""
    if series and any(len(set(item.values)) > 1 for item in series):
        chart = line_chart((), series, _STEP, "times that of each phase")
        names = tuple(item.name.removesuffix(f"/{_RATE}") for item in series)
        yield Panel("rates", "Learning rate", chart, names if len(series) > 1 else ())


def _multiplicity(histogram: MultiplicityCounts, threshold: int | None, item: str) -> Panel:
    legend = () if threshold is None else ("bulk", f"outliers, above {number(threshold)}")
    chart = histogram_chart(histogram.visible(threshold), threshold, item)
    return Panel("multiplicity", "Multiplicity", chart, legend)


def _curves(name: str, title: str, label: str, series: Sequence[Series], window: int) -> Iterator[Panel]:
    if series:
        held_out = series[0].name.startswith(VALIDATION)  # a mean over many events already
        thick = series if held_out else [smoothed(item, window) for item in series]
        note = "" if held_out else f"bold: mean over {window} steps"
        chart = line_chart(series, thick, _STEP, label, from_zero=not held_out)
        names = tuple(item.name.removeprefix(VALIDATION).removesuffix("/loss") for item in series)
        legend = names if len(series) > 1 else ()
        yield Panel(name, title, chart, legend, note)
