"""The page of ``crpipe report``: the numbers first, then plots, ranges, jobs, configuration, versions."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from crpipe.config.loading import validate
from crpipe.config.reference import entries
from crpipe.core.files import write_text
from crpipe.core.text import compact, counted, moment, number
from crpipe.report.evaluations import COLUMNS, evaluations
from crpipe.report.jobs import machines, range_rows, work_of
from crpipe.report.page import charts
from crpipe.report.page import timeline as jobs
from crpipe.report.page.marks import RULE, compared_with, mark, terms_of
from crpipe.report.page.panels import headlines
from crpipe.report.page.versions import versions
from crpipe.report.state import collect
from crpipe.report.status import facts, resume_command, warnings
from crpipe.report.summary import last_receipt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from jinja2 import Template

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.report.evaluations import Evaluation
    from crpipe.report.jobs import JobAttempt
    from crpipe.report.state_types import CampaignStatus, Sums

_MOST_FIGURES = 16
_MOST_FIGURE_BYTES = 1 << 20  # a larger one is named, not shown
_MOST_SVG_BYTES = 150_000
_MOST_FAILURES = 50
_TITLES = {"train": "training (bulk)", "test": "test"}


@dataclass(frozen=True, slots=True)
class ConfiguredKey:
    """One key of the configuration, with its value and its default as text."""

    name: str
    value: str
    default: str

    @property
    def changed(self) -> bool:
        """Whether the value is not the default."""
        return self.value != self.default


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure of the evaluation: its name, and its content as a data URI; empty where it is too large."""

    name: str
    source: str


def configured_keys(config: Config) -> list[ConfiguredKey]:
    """List every key with its value and its default, also the options of what the configuration names."""
    source = config.source
    named = {"uri": source.uri, "files": source.files, "reader": source.reader, "simulator": source.simulator}
    default = validate({"source": named, "train": {"workload": config.train.workload}})
    known = {each.dotted: _plain(each.value) for each in entries(default) if not each.section}
    # What has no default is shown as set by the user.
    known |= dict.fromkeys((f"source.{name}" for name in named), "") | {"train.workload": ""}
    return [
        ConfiguredKey(each.dotted, _plain(each.value), known.get(each.dotted, ""))
        for each in entries(config)
        if not each.section
    ]


def _plain(value: object) -> str:
    return "" if value is None or value == "" else str(value)


def write_report(campaign: Campaign, path: Path) -> Path:
    """Write the page to ``path``, atomically; return the path."""
    write_text(path, render_report(campaign))
    return path


def render_report(campaign: Campaign) -> str:
    """Return the page as one HTML document; raise DataError when a file that it reads is damaged."""
    status, newest = collect(campaign), next(evaluations(campaign), None)
    work, keys = work_of(campaign.paths), configured_keys(campaign.config)
    measures = [] if newest is None else newest.measures()
    return _template().render(
        title=f"crpipe report: {status.run}",
        run=status.run,
        moment=moment(status.time),
        tiles=list(_tiles(campaign, status)),
        sums=list(_sums(status)),
        warnings=list(warnings(status)),
        facts=[
            fact for fact in facts(status) if fact[0] not in ("run", "progress", "disk", "events", "queue")
        ],
        resume=resume_command(status),
        evaluation=newest,
        comparisons=COLUMNS,
        rows=[] if newest is None else [(each, mark(newest, each)) for each in measures],
        rule=RULE,
        terms=[] if newest is None else [*compared_with(newest), *terms_of(newest)],
        panels=headlines(campaign),
        geometry=charts,
        colours=charts.COLOURS,
        pictures=[] if newest is None else list(_pictures(newest)),
        ranges=range_rows(campaign, status, work),
        chart=jobs.timeline(work),
        chart_geometry=jobs,
        usage=[each.cells() for each in jobs.usage_of(campaign.paths)],
        failures=list(_failures(work)),
        changed=[each for each in keys if each.changed],
        keys=keys,
        versions=versions(),
        machines=machines(campaign.paths.train_journal()),
    )


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
    return environment.get_template("report.html.j2")


def _tiles(campaign: Campaign, status: CampaignStatus) -> Iterator[tuple[str, str, str, str]]:
    """Yield what a person looks for first: a number, what it counts, more about it, and its level."""
    ledgers = status.ledgers
    balanced = ledgers.count - len(ledgers.unbalanced)
    good = not ledgers.unbalanced and ledgers.events.balanced() and ledgers.items.balanced()
    yield number(ledgers.events.listed), "events", f"{number(ledgers.events.train)} in training", ""
    yield compact(ledgers.items.listed), status.item, f"{number(ledgers.items.listed)} listed", ""
    files = sum(each.files or 0 for each in status.ranges)
    level = "bad" if ledgers.quarantined else "good"
    yield number(files), "files", f"{number(ledgers.quarantined)} quarantined", level
    about = f"{balanced} of {ledgers.count} ledgers balance"
    sign = "✓ balanced" if good else "✗ not balanced"
    yield (
        sign if ledgers.count else "none yet",
        "ledger",
        about,
        ("good" if good else "bad") if ledgers.count else "",
    )
    receipt = last_receipt(campaign)
    skipped = "" if receipt is None else f", {counted(receipt.skipped, 'step')} skipped"
    yield number(status.trained.step), "steps", f"{status.trained_of()} trained{skipped}", ""


def _sums(status: CampaignStatus) -> Iterator[tuple[str, str, str]]:
    events, items = status.ledgers.events, status.ledgers.items
    for name in ("listed", *events.shown()):
        yield _TITLES.get(name, name), _cell(events, name), _cell(items, name)


def _cell(sums: Sums, name: str) -> str:
    value = getattr(sums, name)
    share = f" ({value / sums.listed:.1%})" if name != "listed" and sums.listed and value else ""
    return f"{number(value)}{share}"


def _pictures(found: Evaluation) -> Iterator[Picture]:
    """Yield the figures of an evaluation, the first ones with their content."""
    for path in islice(sorted(found.path.parent.glob("*.svg")), _MOST_FIGURES):
        yield Picture(path.stem.replace("_", " "), _embedded(path))


def _embedded(path: Path) -> str:
    """Return a figure as a data URI, a large one as its PNG; empty where that is too large as well."""
    picture = path.with_suffix(".png")
    if path.stat().st_size > _MOST_SVG_BYTES and picture.exists():
        path = picture
    content = path.read_bytes()
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    if len(content) > _MOST_FIGURE_BYTES:
        return ""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _failures(work: Sequence[JobAttempt]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the newest failed attempts: when, what, why, and whether the same work was finished later."""
    failed = [each for each in work if each.error]
    for each in reversed(failed[-_MOST_FAILURES:]):
        later = (
            one for one in work if one.start > each.start and (one.verb, one.name) == (each.verb, each.name)
        )
        solved = any(one.end is not None and not one.error for one in later)
        yield moment(each.start), f"{each.verb} {each.name}".strip(), each.error, solved
