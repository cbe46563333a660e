"""The page of a campaign: one HTML file that needs no other, for desktop, phone and paper.

``crpipe report`` writes all of it; ``crpipe status --html`` a short one, which a browser loads again.
"""

from __future__ import annotations

import platform
from collections import Counter
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from crpipe import __version__
from crpipe.config.loading import Config, validate
from crpipe.config.reference import entries
from crpipe.core.files import write_text
from crpipe.core.journal import METRICS_BYTES, metric_rows, tail
from crpipe.core.text import compact, counted, duration, measured, moment, number
from crpipe.report.compare import RunFiles, compared_tables
from crpipe.report.evaluations import COLUMNS, Evaluation, compared_with, evaluations, terms_of
from crpipe.report.figures import RATE, page_charts
from crpipe.report.jobs import JobAttempt, attempts_of, log_addresses, machines, time_spent, usage_of
from crpipe.report.paper import input_charts, input_samples, origin, pictures
from crpipe.report.state import CampaignState, destinations_of
from crpipe.report.status import by_state, facts, resume_command, staged, warnings
from crpipe.report.verdicts import RULE, line, verdicts
from crpipe.report.work_state import AT_WORK, State, WorkState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from crpipe.campaign.ledger import Counts

RELOAD_S = 60
UNFOLDED = 30  # ranges up to which their table is unfolded
_MOST_FAILURES = 50
_MOST_BARS = 3000
_TIMED = ("stage", "convert", "split", "consolidate", "train")  # in the table of ranges
_VERBS = ("count", "list", "tables", "threshold", *_TIMED, "evaluate")
_TITLES = {"train": "training (bulk)"}
_LIBRARIES = ("torch", "numpy", "pyarrow", "snakemake", "matplotlib", "scikit-learn", "tensorboard")
# One letter beside the colour, for readers who cannot distinguish the colours.
LETTERS = {
    State.WAITING: "·",
    State.LISTED: "L",
    State.STAGING: "g",
    State.STAGED: "G",
    State.CONVERTING: "v",
    State.CONVERTED: "V",
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


def write_page(
    state: CampaignState, path: Path, *, short: bool = False, others: Sequence[RunFiles] = ()
) -> Path:
    """Write the page to ``path``, atomically; return the path."""
    write_text(path, render_page(state, path.parent, short=short, others=others))
    return path


def render_page(
    state: CampaignState, folder: Path | None = None, *, short: bool = False, others: Sequence[RunFiles] = ()
) -> str:
    """Return the page as one HTML document; raise DataError when a file that it reads is damaged.

    folder: where the page will be; without it there are no links to logs and figures. short: without what
    only a finished campaign needs, and loaded again every minute. others: runs to show beside this one.
    """
    campaign, newest = state.campaign, next(evaluations(state.campaign), None)
    attempts = attempts_of(campaign.paths)
    trained, total = state.finished(), len(state.bulk())
    left = "" if state.eta_s is None or trained == total else f", {duration(state.eta_s)} left"
    links = () if state.one_to_one else state.links
    with_errors = state.ranges if state.one_to_one else state.rows()
    # The first lines show these facts already; the whole page has a table of the sums, too.
    elsewhere = {"progress"} if short else {"progress", "run", "events", "disk", "queue", state.item}
    trained_on = [(f"trained on {host}", text) for host, text in machines(campaign.paths.train_journal())]
    terms = [] if newest is None else [*compared_with(newest), *terms_of(newest), RULE]
    spent = time_spent(attempts)
    rows = [
        (item, _times(item.name, spent), log_addresses(campaign.paths, item.name, folder))
        for item in state.ranges
    ]
    tree: dict[str, Any] = {
        "short": short,
        "reload_s": RELOAD_S,
        "title": f"crpipe {'' if short else 'report: '}{state.run}",
        "moment": moment(state.time),
        "version": __version__,
        "progress": f"{state.trained_of()} trained{left}",
        "trained": trained,
        "total": total,
        "tiles": list(_tiles(state)),
        "facts": [*(fact for fact in facts(state) if fact[0] not in elsewhere), *_rate(state), *trained_on],
        "warnings": list(warnings(state)),
        "next_step": _next_step(state, evaluated=newest is not None, short=short),
        "item": state.item,
        "errors": [(_heading(item), item.error) for item in with_errors if item.error],
        "evaluation": newest,
        "headings": COLUMNS,
        "verdicts": {} if newest is None else verdicts(newest),
        "tables": [] if newest is None else newest.tables(),
        "measured": measured,
        "verdict": "" if newest is None else line(newest),
        "terms": [] if short else terms,
        "charts": list(page_charts(campaign)),
        "letters": LETTERS,
        "range_cells": [_cell(item) for item in state.ranges],
        "range_counts": by_state(state.states()),
        "link_cells": [_cell(link) for link in links],
        "link_counts": by_state(Counter(link.state for link in links)),
        "unfolded": not short or len(state.ranges) <= UNFOLDED,
        "rows": rows,
        "number": number,
        "staged": staged,
    }
    return _template().render(tree if short else tree | _whole(state, attempts, newest, folder, others))


def _whole(
    state: CampaignState,
    attempts: Sequence[JobAttempt],
    newest: Evaluation | None,
    folder: Path | None,
    others: Sequence[RunFiles],
) -> dict[str, Any]:
    """Return what only the whole page shows: origin, inputs, sums, jobs, figures, configuration, versions."""
    ended = [each for each in attempts if each.end is not None][-_MOST_BARS:]
    campaign = state.campaign
    samples = input_samples(campaign)
    folders = {one.name: one.evaluation.path.parent for one in others if one.evaluation}
    runs = [RunFiles.read(campaign.paths), *others] if others else []
    return {
        "origin": list(origin(campaign, samples)),
        "inputs": list(input_charts(campaign, samples)),
        "others": ", ".join(one.name for one in others),
        "compared": compared_tables(runs, usual=campaign.config.train.monitor) if runs else [],
        "sums": list(_sums(state)),
        "lanes": lanes_of(ended),
        "begun": moment(min((each.start for each in ended), default=0.0)),
        "ended": moment(max((each.end or 0.0 for each in ended), default=0.0)),
        "usage": usage_of(state.campaign.paths),
        "failures": list(_failures(attempts)),
        "pictures": [] if newest is None else list(pictures(campaign, newest.path.parent, folder, folders)),
        "keys": configured_keys(state.campaign.config),
        "versions": versions(),
    }


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("crpipe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2")


def _tiles(state: CampaignState) -> Iterator[tuple[str, str, str, str]]:
    """Yield what a person looks for first: a number, what it counts, more about it, and its level."""
    ledgers, receipt = state.ledgers, state.receipt()
    yield number(ledgers.events.listed), "events", f"{number(ledgers.events.train)} in training", ""
    yield compact(ledgers.items.listed), state.item, f"{number(ledgers.items.listed)} listed", ""
    files = sum(item.files or 0 for item in state.ranges)
    bad = f"{number(ledgers.quarantined)} quarantined"
    yield number(files), "files", bad, "bad" if ledgers.quarantined else "good"
    sign, level = ("✓ balanced", "good") if ledgers.balanced() else ("✗ not balanced", "bad")
    sign, level = (sign, level) if ledgers.count else ("none yet", "")
    yield sign, "ledger", f"{ledgers.balance()} ledgers balance", level
    skipped = "" if receipt is None else f", {counted(receipt.skipped, 'step')} skipped"
    yield number(state.trained.step), "steps", f"{state.trained_of()} trained{skipped}", ""


def _sums(state: CampaignState) -> Iterator[tuple[str, str, str]]:
    events, items = state.ledgers.events, state.ledgers.items
    for name in ("listed", *destinations_of(events)):
        yield _TITLES.get(name, name), _share(events, name), _share(items, name)


def _share(counts: Counts, name: str) -> str:
    value = counts.of(name)
    share = f" ({value / counts.listed:.1%})" if name != "listed" and counts.listed and value else ""
    return f"{number(value)}{share}"


def _rate(state: CampaignState) -> Iterator[tuple[str, str]]:
    """Yield the learning rate of the newest metrics."""
    for link in reversed(state.links):
        rows = metric_rows(tail(state.campaign.paths.store(link.name) / "metrics.jsonl", METRICS_BYTES))
        newest = next((row for row in reversed(rows) if RATE in row), None)
        if newest is not None:
            step = number(newest["step"])
            yield "learning rate", f"{newest[RATE]:.4g} times that of each phase, at step {step}"
            break


def _next_step(state: CampaignState, *, evaluated: bool, short: bool) -> str:
    """Describe what a person does next; empty on the whole page of a finished campaign."""
    resume = resume_command(state)
    if resume:
        return f"to resume, {resume}"
    if any(item.state is State.FAILED for item in state.rows()):
        return "read the errors below; the same command again tries once more what failed"
    if any(item.state in AT_WORK for item in state.rows()):
        return "nothing: jobs are at work"
    if state.finished() < len(state.bulk()):
        return "snakemake: begin the campaign"
    if not evaluated:
        return "snakemake evaluation: evaluate the final checkpoint"
    return (
        f"crpipe report: the page of the finished campaign, {state.campaign.paths.report()}" if short else ""
    )


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


def _times(name: str, spent: dict[tuple[str, str], float]) -> str:
    """Write how long each verb worked on a range; a consolidation is that of the outliers."""
    return ", ".join(f"{verb} {duration(spent[name, verb])}" for verb in _TIMED if (name, verb) in spent)


def lanes_of(ended: Sequence[JobAttempt]) -> list[tuple[str, list[tuple[float, float, str, str]]]]:
    """Arrange finished attempts against time, a lane for each verb.

    Of each: place and width in percent, its class, and what it says when pointed at.
    """
    lanes: dict[str, list[tuple[float, float, str, str]]] = {}
    first = min((each.start for each in ended), default=0.0)
    span = max((each.end or first for each in ended), default=first) - first
    for job in ended:
        seconds = (job.end or job.start) - job.start
        about = f"{job.verb} {job.name}: {moment(job.start)}, {duration(seconds)} on {job.host}"
        left, width = (100 * part / max(span, 1.0) for part in (job.start - first, seconds))
        kind, text = ("failed", f"{about}. {job.error}") if job.error else ("done", about)
        lanes.setdefault(job.verb, []).append((left, width, kind, text))
    return [(verb, lanes[verb]) for verb in dict.fromkeys((*_VERBS, *sorted(lanes))) if verb in lanes]


def _failures(attempts: Sequence[JobAttempt]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the newest failed attempts: when, what, why, and whether the same work was finished later."""
    finished = {(each.verb, each.name): each.start for each in attempts if each.end and not each.error}
    failed = [each for each in attempts if each.error]
    for each in reversed(failed[-_MOST_FAILURES:]):
        solved = finished.get((each.verb, each.name), each.start) > each.start
        yield moment(each.start), f"{each.verb} {each.name}".strip(), each.error, solved


def configured_keys(config: Config) -> list[tuple[str, str, str]]:
    """List every key with its value and its default, also the options of what the configuration names."""
    source = config.source
    named = {"uri": source.uri, "files": source.files, "reader": source.reader, "simulator": source.simulator}
    default = validate({"source": named, "train": {"workload": config.train.workload}}, options="installed")
    defaults = {each.dotted: _plain(each.value) for each in entries(default) if not each.section}
    # What has no default is shown as set by the user.
    defaults |= dict.fromkeys((f"source.{name}" for name in named), "") | {"train.workload": ""}
    return [
        (each.dotted, _plain(each.value), defaults.get(each.dotted, ""))
        for each in entries(config)
        if not each.section
    ]


def _plain(value: object) -> str:
    return "" if value is None or value == "" else str(value)


def versions() -> list[tuple[str, str]]:
    """List the versions of crpipe, Python and the main libraries, and the system of this host."""
    rows = [("crpipe", __version__), ("Python", platform.python_version())]
    for name in _LIBRARIES:
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, "not installed"))
    return [*rows, ("system", platform.platform()), ("host", platform.node())]
