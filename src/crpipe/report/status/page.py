"""The page of ``crpipe status --html``: one file without anything from elsewhere, for desktop and phone."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from crpipe.core.files import write_text
from crpipe.core.paths import OUTLIERS
from crpipe.report.series import (
    WINDOW_STEPS,
    chain_rows,
    is_gap,
    is_loss,
    multiplicities,
    pick,
    smoothed,
    threshold_of,
)
from crpipe.report.status.campaign_state import collect
from crpipe.report.status.page_drawing import COLOURS, histogram_chart, line_chart
from crpipe.report.status.page_style import SHEET
from crpipe.report.status.status import facts, resume_command
from crpipe.report.status.status_types import State
from crpipe.report.text import compact, counted, duration, moment, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.report.series import Series
    from crpipe.report.status.journal_tail import Row
    from crpipe.report.status.status_types import CampaignStatus, RangeStatus, SourceToken

MOST_ROWS = 1500  # points of a curve; a phone draws them at once
RELOAD_S = 60
_STEP = f"training step over all ranges (bold: mean over {WINDOW_STEPS} steps)"
# One letter beside the colour: for whoever does not see the colours apart.
LETTERS = {
    State.WAITING: "·",
    State.LISTED: "L",
    State.STAGING: "g",
    State.STAGED: "G",
    State.SPLITTING: "p",
    State.SPLIT: "P",
    State.CONSOLIDATED: "C",
    State.TRAINING: "t",
    State.INTERRUPTED: "‖",
    State.TRAINED: "✓",
    State.FAILED: "✗",
    State.SKIPPED: "/",
    State.STALE: "≠",
}


def write_page(config: Config, path: Path, token: SourceToken | None = None) -> None:
    """Write the page of the campaign's present state to ``path``, atomically."""
    write_text(path, render_page(config, token))


def render_page(config: Config, token: SourceToken | None = None) -> str:
    """Give the page as one HTML document; it asks a browser to load it again every minute."""
    status = collect(config, token)
    title = f"crpipe {status.run}"
    body = [
        f"<header><h1>{escape(title)}</h1><p>as of {moment(status.time)}</p></header>",
        *_progress(status),
        *_ranges(status),
        *_errors(status),
        *_charts(config),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="refresh" content="{RELOAD_S}">',
            f"<title>{escape(title)}</title><style>{SHEET}</style></head><body><main>",
            *body,
            "</main></body></html>\n",
        ]
    )


def _progress(status: CampaignStatus) -> Iterator[str]:
    chain, trained = status.chain(), status.states()[State.TRAINED]
    left = "" if status.eta_s is None or trained == len(chain) else f", {duration(status.eta_s)} left"
    yield (
        f'<section id="progress"><h2>{trained} of {counted(len(chain), "range")} trained{escape(left)}</h2>'
        f'<progress max="{len(chain)}" value="{trained}"></progress><dl>'
    )
    for label, text in facts(status):
        if label not in ("progress", "resume"):
            alarm = ' class="alarm"' if label.isupper() and label != "ETA" else ""
            yield f"<dt{alarm}>{escape(label)}</dt><dd{alarm}>{escape(text)}</dd>"
    yield "</dl>"
    command = resume_command(status)
    if command:
        yield f'<p id="resume">To go on: {escape(command)}</p>'
    yield "</section>"


def _ranges(status: CampaignStatus) -> Iterator[str]:
    yield '<section id="ranges"><h2>Ranges</h2><ol>'
    yield from (_cell(item) for item in status.ranges)
    yield '</ol><ul class="legend">'
    for state, count in sorted(status.states().items(), key=lambda item: list(State).index(item[0])):
        yield f'<li><b class="{state}">{LETTERS[state]}</b> {count} {state}</li>'
    yield "</ul></section>"


def _cell(item: RangeStatus) -> str:
    told = [item.name, item.state]
    if item.steps:
        told.append(f"step {number(item.step or 0)} of {number(item.steps)}")
    if item.outliers is not None:
        told.append(f"{compact(item.outliers)} outliers")
    if item.error:
        told.append(item.error)
    return f'<li class="{item.state}" title="{escape("; ".join(told))}">{LETTERS[item.state]}</li>'


def _errors(status: CampaignStatus) -> Iterator[str]:
    troubled = [item for item in status.ranges if item.error]
    if troubled:
        yield '<section id="errors"><h2>Errors</h2>'
        for item in troubled:
            attempt = f", attempt {item.attempt}" if item.attempt else ""
            name = "outliers" if item.name == OUTLIERS else item.name
            yield f"<h3>{escape(name)}: {item.state}{attempt}</h3><pre>{escape(item.error)}</pre>"
        yield "</section>"


def _charts(config: Config) -> Iterator[str]:
    rows = chain_rows(config, MOST_ROWS)
    yield '<div class="charts">'
    yield from _curves("losses", "Losses", "loss", rows, is_loss)
    yield from _curves("gap", "Wasserstein gap", "gap", rows, is_gap)
    yield from _curves("throughput", "Throughput", "muons / s", rows, "speed/muons_per_s".__eq__)
    histogram = multiplicities(config)
    if histogram is not None:
        threshold = threshold_of(config)
        drawn = histogram_chart(
            histogram.visible(threshold), threshold, "multiplicity (muons in one event)", "events in the bin"
        )
        names = ["bulk", f"outliers, above {number(threshold)}"]
        yield f'<section id="multiplicity"><h2>Multiplicity</h2>{drawn}{_key(names)}</section>'
    yield "</div>"


def _curves(
    name: str, title: str, label: str, rows: Sequence[Row], wanted: Callable[[str], bool]
) -> Iterator[str]:
    series: list[Series] = pick(rows, wanted)
    if series:
        drawn = line_chart(series, [smoothed(item) for item in series], _STEP, label)
        names = [item.name.removesuffix("/loss") for item in series] if len(series) > 1 else []
        yield f'<section id="{name}"><h2>{title}</h2>{drawn}{_key(names)}</section>'


def _key(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><i class="c{index % COLOURS}"></i>{escape(name)}</li>' for index, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>' if names else ""
