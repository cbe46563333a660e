"""The page of ``crpipe status --html``: one file that needs no other, for desktop and phone."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from crpipe import __version__
from crpipe.core.files import write_text
from crpipe.core.journal import METRICS_BYTES, metric_rows, tail
from crpipe.core.text import compact, counted, duration, moment, number
from crpipe.report.evaluations import COLUMNS, evaluations
from crpipe.report.jobs import machines, range_rows, work_of
from crpipe.report.page import charts
from crpipe.report.page.charts import COLOURS
from crpipe.report.page.panels import panels
from crpipe.report.state import collect
from crpipe.report.state_types import AT_WORK, State
from crpipe.report.status import facts, resume_command, warnings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jinja2 import Template

    from crpipe.campaign.campaign import Campaign
    from crpipe.report.state_types import CampaignStatus, SourceToken, WorkState

RELOAD_S = 60
UNFOLDED = 30  # ranges up to which their table is unfolded
# One letter beside the colour, for readers who cannot distinguish the colours.
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


def write_page(campaign: Campaign, path: Path, token: SourceToken | None = None) -> None:
    """Write the page of the campaign's present state to ``path``, atomically."""
    write_text(path, render_page(campaign, token, path.parent))


def render_page(campaign: Campaign, token: SourceToken | None = None, folder: Path | None = None) -> str:
    """Return the page as one HTML document; a browser loads it again every minute.

    folder: where the page will be; without it there are no links to logs.
    """
    status, newest = collect(campaign, token), next(evaluations(campaign), None)
    trained, total = status.finished(), len(status.bulk())
    left = "" if status.eta_s is None or trained == total else f", {duration(status.eta_s)} left"
    links = () if status.one_to_one else status.links
    shown = status.ranges if status.one_to_one else status.rows()
    order = list(State)
    return _template().render(
        title=f"crpipe {status.run}",
        reload_s=RELOAD_S,
        moment=moment(status.time),
        version=__version__,
        progress=f"{status.trained_of()} trained{left}",
        trained=trained,
        total=total,
        facts=[*(fact for fact in facts(status) if fact[0] != "progress"), *_training(campaign)],
        next_step=_next_step(campaign, status, evaluated=newest is not None),
        rows=range_rows(campaign, status, work_of(campaign.paths), folder),
        unfolded=len(status.ranges) <= UNFOLDED,
        warnings=list(warnings(status)),
        cells=[_cell(item) for item in status.ranges],
        states=sorted(status.states().items(), key=lambda item: order.index(item[0])),
        links=[_cell(link) for link in links],
        link_states=sorted(
            Counter(link.state for link in links).items(), key=lambda item: order.index(item[0])
        ),
        letters=LETTERS,
        errors=[(_heading(item), item.error) for item in shown if item.error],
        evaluation=newest,
        comparisons=COLUMNS,
        panels=list(panels(campaign)),
        geometry=charts,
        colours=COLOURS,
    )


def _training(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """Yield the learning rate of the newest metrics, and what trains or trained."""
    for name in reversed(campaign.chain.names):
        rows = metric_rows(tail(campaign.paths.store(name) / "metrics.jsonl", METRICS_BYTES))
        newest = next((row for row in reversed(rows) if "learning_rate" in row), None)
        if newest is not None:
            step = number(newest["step"])
            yield "learning rate", f"{newest['learning_rate']:.4g} times that of each phase, at step {step}"
            break
    for host, text in machines(campaign.paths.train_journal()):
        yield "trained on", f"{host}: {text}"


def _next_step(campaign: Campaign, status: CampaignStatus, *, evaluated: bool) -> str:
    """Describe what a person does next."""
    resume = resume_command(status)
    if resume:
        return f"to resume, {resume}"
    if any(item.state is State.FAILED for item in status.rows()):
        return "read the errors below; the same command again tries once more what failed"
    if any(item.state in AT_WORK for item in status.rows()):
        return "nothing: jobs are at work"
    if status.finished() < len(status.bulk()):
        return "snakemake: begin the campaign"
    if not evaluated:
        return "snakemake evaluation: evaluate the final checkpoint"
    return f"crpipe report: the page of the finished campaign, {campaign.paths.report()}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("crpipe.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2")


def _cell(item: WorkState) -> tuple[State, str]:
    """Return the state of a range or link, and what its cell shows when pointed at."""
    text = [item.name, str(item.state)]
    if item.ranges:
        text += [counted(len(item.ranges), "range"), f"round {item.round}"]
    if item.steps:
        text.append(f"step {number(item.step or 0)} of {number(item.steps)}")
    if item.outliers is not None:
        text.append(f"{compact(item.outliers)} outliers")
    text += [part for part in (item.stopped, item.error) if part]
    return item.state, "; ".join(text)


def _heading(item: WorkState) -> str:
    attempt = f", attempt {item.attempt}" if item.attempt else ""
    return f"{item.name}: {item.state}{attempt}"
