"""The text of ``crpipe status``: the campaign as a whole, and a table of the ranges' states."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from crpipe.core.paths import DESTINATIONS, OUTLIERS
from crpipe.core.text import (
    Column,
    bar,
    compact,
    counted,
    duration,
    json_text,
    moment,
    number,
    printable,
    size,
    table,
)
from crpipe.report.state import collect
from crpipe.report.state_types import AT_WORK, QUIET_S, CampaignStatus, LinkStatus, RangeStatus, State, Sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.report.state_types import SourceToken

# The table of links in the text of ``crpipe status``, where a link is not the same as a range.


FOLD = 4  # lines of one state; a longer run of them is folded into one
Status = TypeVar("Status", RangeStatus, LinkStatus)
_FOLDED = frozenset({State.WAITING, State.SPLIT, State.TRAINED})


def link_table(links: Sequence[LinkStatus], width: int, *, unfold: bool) -> tuple[list[str], list[State]]:
    """Give the lines of the table, titles first, and the state that each line after them shows."""
    rows = list(folded_rows(links, _link_fold_key, _link_cells, _folded_links, unfold=unfold))
    cells = list(zip(*(cells for _, cells in rows), strict=True))
    columns = [
        Column("link", cells[0]),
        Column("ranges", cells[1], drop=3, right=True),
        Column("round", cells[2], drop=2, right=True),
        Column("state", cells[3]),
        Column("step", cells[4], drop=5, right=True),
        Column("ETA", cells[5], drop=4, right=True),
        Column("attempt", cells[6], drop=1, right=True),
        Column("last error, or why it ended early", cells[7], drop=6, least=24),
    ]
    return table(columns, width), [state for state, _ in rows]


def step_of(step: int | None, steps: int | None, state: State, quiet_s: float | None) -> str:
    """Write how far a job is, or for how long it has been quiet."""
    if state in AT_WORK and quiet_s is not None and quiet_s > QUIET_S:
        return f"quiet {duration(quiet_s)}"
    if step is None:
        return ""
    return f"{number(step)}/{number(steps)}" if steps else number(step)


def folded_rows(
    items: Sequence[Status],
    key: Callable[[Status], str],
    cells: Callable[[Status], list[str]],
    folded: Callable[[list[Status]], list[str]],
    *,
    unfold: bool,
) -> Iterator[tuple[State, list[str]]]:
    """Yield state and cells of each line: neighbours with the same ``key`` share one, where they are many."""
    for _, group in groupby(items, key=key):
        alike = list(group)
        if unfold or len(alike) <= FOLD:
            yield from ((item.state, cells(item)) for item in alike)
        else:
            yield alike[0].state, folded(alike)


def _link_fold_key(link: LinkStatus) -> str:
    plain = link.state in _FOLDED and link.ranges and not (link.error or link.stopped)
    return f"{link.state} {link.round}" if plain else link.name


def _link_cells(link: LinkStatus) -> list[str]:
    return [
        link.name,
        number(len(link.ranges)) if link.ranges else "",
        number(link.round),
        link.state,
        step_of(link.step, link.steps, link.state, link.quiet_s),
        "" if link.eta_s is None else duration(link.eta_s),
        number(link.attempt) if link.attempt else "",
        link.error or link.stopped,
    ]


def _folded_links(links: Sequence[LinkStatus]) -> list[str]:
    first, last = links[0].name.partition("-")[0], links[-1].name.partition("-")[2]
    ranges = number(sum(len(link.ranges) for link in links))
    return [
        f"{first}-{last}",
        ranges,
        number(links[0].round),
        links[0].state,
        f"{len(links)} links",
        "",
        "",
        "",
    ]


__all__ = ["collect", "render_status", "status_json"]

# Neighbours in one of these states share a line where they are many.
FOLDED = frozenset({State.WAITING, State.LISTED, State.SPLIT, State.TRAINED, State.SKIPPED})
TOKEN_S = 86_400.0  # a token that ends within this long is warned about, whatever the ETA
LABEL = 12
_BAR = 30
_COLOURS = {
    State.TRAINED: "32",
    State.TRAINING: "1;36",
    State.STAGING: "36",
    State.SPLITTING: "36",
    State.INTERRUPTED: "33",
    State.STALE: "35",
    State.FAILED: "1;31",
    State.WAITING: "2",
    State.SKIPPED: "2",
}


def render_status(
    campaign: Campaign,
    width: int,
    *,
    unfold: bool = False,
    colour: bool = False,
    token: SourceToken | None = None,
) -> str:
    """Describe the campaign in lines of at most ``width`` characters.

    ``unfold`` gives each range its own line; ``colour`` adds terminal colours to the states.
    """
    status = collect(campaign, token)
    lines = [*header(status, width), "", *_table(status, width, unfold=unfold, colour=colour)]
    if not status.one_to_one:
        links, states = link_table(status.links, width, unfold=unfold)
        lines += ["", *(_coloured(links, states) if colour else links)]
    return "\n".join(lines)


def status_json(campaign: Campaign, token: SourceToken | None = None) -> str:
    """Give the same as JSON: the fields of CampaignStatus, an entry of ``ranges`` and ``links`` for each."""
    return json_text(asdict(collect(campaign, token)))


def header(status: CampaignStatus, width: int) -> Iterator[str]:
    """Yield what concerns the campaign as a whole, one labelled paragraph each; warnings in capitals."""
    paragraphs = [*facts(status), *warnings(status)]
    command = resume_command(status)
    if command:
        paragraphs.append(("resume", command))
    indent = max(LABEL, *(len(label) + 1 for label, _ in paragraphs))
    for label, text in paragraphs:
        lines = textwrap.wrap(printable(text), max(width - indent, LABEL)) or [""]
        yield from (f"{label if line is lines[0] else '':<{indent}}{line}" for line in lines)


def facts(status: CampaignStatus) -> Iterator[tuple[str, str]]:
    """Yield label and text of everything that concerns the campaign as a whole, warnings excepted."""
    states, share = status.states(), status.finished() / max(len(status.bulk()), 1)
    known = f"fingerprint {status.fingerprint}, data {status.data}"
    yield "run", f"{status.run}, {known if status.data else 'no job has run yet'}"
    if status.max_files:
        yield "trial", f"only the first {counted(status.max_files, 'file')} of each range (source.max_files)"
    yield "progress", f"{bar(share, _BAR)}  {status.trained_of()} trained"
    yield "states", ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=_order))
    yield "ETA", _eta(status)
    yield from _stopped(status)
    yield from _sums(status)
    yield "disk", disk_line(status)
    if status.token is not None and status.token.ends is not None and not status.copies_all():
        yield "token", f"{_end(status.token.ends - status.time)} ({status.token.place})"
    if status.queue:
        yield (
            "queue",
            "; ".join(f"{job.work}: {job.state}, {job.where} (job {job.number})" for job in status.queue),
        )


def _order(item: tuple[State, int]) -> int:
    return list(State).index(item[0])


def _stopped(status: CampaignStatus) -> Iterator[tuple[str, str]]:
    """Yield how many links ended before their last step, and why the newest of them did."""
    early = [link for link in status.links if link.stopped]
    if early:
        yield "early stop", f"{counted(len(early), 'link')}; {early[-1].name}: {early[-1].stopped}"


def _eta(status: CampaignStatus) -> str:
    if status.finished() == len(status.bulk()):
        return f"all {status.noun()}s are trained"
    if status.eta_s is None or status.pace_s is None:
        return "unknown until the first steps of training"
    at_work = any(link.state is State.TRAINING for link in status.bulk())
    when = f"about {moment(status.time + status.eta_s)}" if at_work else "once it is resumed"
    return f"{duration(status.eta_s)}, {when}; {duration(status.pace_s)} a range"


def empty_line(empty: int, listed: int, item: str) -> str:
    """Say how many events have no items."""
    return f"{number(empty)} events without {item} ({empty / max(listed, 1):.0%}), used like all others"


def _sums(status: CampaignStatus) -> Iterator[tuple[str, str]]:
    ledgers, done = status.ledgers, status.trained
    yield "events", sum_line(ledgers.events)
    yield status.item, sum_line(ledgers.items)
    if ledgers.empty:
        yield "", empty_line(ledgers.empty, ledgers.events.listed, status.item)
    if ledgers.weights:
        yield "weights", weight_line(ledgers.weights)
    balanced = f"{ledgers.count - len(ledgers.unbalanced)} of {ledgers.count} balance"
    bad_files, bad_events = counted(ledgers.quarantined, "file"), counted(ledgers.events.rejected, "event")
    yield "ledgers", f"{balanced}; {bad_files} quarantined, {bad_events} rejected"
    if ledgers.size_only:
        yield "", f"{counted(ledgers.size_only, 'file')} verified by size only: the source names no checksum"
    if ledgers.server_only:
        yield "", f"{counted(ledgers.server_only, 'file')} verified against the server that sent them only"
    if ledgers.repeated:
        yield (
            "",
            f"{counted(ledgers.repeated, 'event')} repeat another one of the range; the ledgers name them",
        )
    if done.step:
        seen = f"{number(done.events)} events, {number(done.items)} {status.item}"
        yield "trained", f"{number(done.step)} steps, {seen}, {counted(done.skipped, 'step')} skipped"
    if status.validation is not None:
        yield "validation", status.validation.line()


def sum_line(sums: Sums) -> str:
    """Write a sum as an equation: what was listed, and where it went."""
    parts = " + ".join(f"{name} {number(getattr(sums, name))}" for name in sums.shown())
    return f"{number(sums.listed)} = {parts}"


def weight_line(weights: Mapping[str, float]) -> str:
    """Write the sums of the events' weights as an equation."""
    parts = " + ".join(f"{name} {weights[name]:.6g}" for name in DESTINATIONS)
    return f"{weights['listed']:.6g} = {parts}"


def disk_line(status: CampaignStatus) -> str:
    """Write what raw copies take of their budget, and the free space."""
    disk = status.disk
    return f"raw copies {size(disk.raw)} of {size(disk.budget)} budget, {size(disk.free)} free"


def warnings(status: CampaignStatus) -> Iterator[tuple[str, str]]:
    """Yield what a person must act on: wrong sums, stale products, a failed range that blocks later ones."""
    if status.ledgers.unbalanced:
        yield "UNBALANCED", f"{', '.join(status.ledgers.unbalanced)}: split these ranges again"
    if status.duplicates:
        yield "TWICE", status.duplicates
    untrained = [
        link.name for link in status.bulk() if link.ranges and {*link.ranges} <= {*status.ledgers.untrained}
    ]
    if untrained:
        yield (
            "EMPTY",
            f"{', '.join(untrained)}: no training event up to the threshold; nothing is trained",
        )
    if status.ledgers.doubtful_groups:
        yield "GROUPS", status.ledgers.doubtful_groups
    if status.changed:
        yield "STALE", "; ".join(status.changed)
    elif status.states()[State.STALE]:
        yield "STALE", f"{counted(status.states()[State.STALE], 'range')} made under another configuration"
    if status.still_trained:
        why = "in ranges.skip, but the newest checkpoint was trained on it"
        how = "remove its receipt and those of later links to train again without it, or choose a new run"
        yield "SKIPPED", f"{', '.join(status.still_trained)}: {why}; {how}"
    failed = _failed(status)
    if failed:
        yield "FAILED", f"{', '.join(failed)}: {_blocked(status, failed[0])} cannot be trained before"
    if status.token is not None and not status.copies_all():
        yield from _token_warning(status, status.token)


def _token_warning(status: CampaignStatus, token: SourceToken) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the source's token, or will be before the campaign is finished."""
    left = float("inf") if token.ends is None else token.ends - status.time
    if token.problem:
        yield "TOKEN", token.problem
    elif left <= 0:
        yield "TOKEN", f"{_end(left)}: nothing can be copied until it is renewed; see `crpipe token`"
    elif status.eta_s is not None and left < status.eta_s:
        last = f"before the last range is trained (in {duration(status.eta_s)})"
        yield "TOKEN", f"{_end(left)}, {last}: renew it in time; see `crpipe token`"
    elif left < TOKEN_S:
        yield "TOKEN", f"{_end(left)}: renew it in time; see `crpipe token`"


def _end(left_s: float) -> str:
    return f"ends in {duration(left_s)}" if left_s > 0 else f"ended {duration(-left_s)} ago"


def _failed(status: CampaignStatus) -> list[str]:
    """Name the failed ranges, and the failed links whose ranges did not fail themselves."""
    ranges = [item.name for item in status.chain() if item.state is State.FAILED]
    links = [link for link in status.bulk() if link.state is State.FAILED]
    if not status.one_to_one:  # there a range has also failed when its link has
        own = {name for link in links for name in link.ranges}
        ranges = [name for name in ranges if name not in own]
    return [*ranges, *(link.name for link in links if link.name not in ranges)]


def _blocked(status: CampaignStatus, name: str) -> str:
    """Count the links that wait for a failed one, or for a failed range of theirs."""
    bulk = status.bulk()
    names = [link.name for link in bulk]
    if name in names:
        later = bulk[names.index(name) + 1 :]
    else:
        later = bulk[next((place for place, link in enumerate(bulk) if name in link.ranges), len(bulk)) :]
    waiting = sum(link.state not in (State.TRAINED, State.STALE) for link in later)
    return counted(waiting, f"later {status.noun()}" if name in names else status.noun())


def resume_command(status: CampaignStatus) -> str:
    """Give the command that resumes a stopped campaign; nothing while one of its jobs runs."""
    busy = any(item.state in AT_WORK for item in status.rows() if item.name != OUTLIERS)
    if busy or not any(item.attempt for item in status.rows()) or status.finished() == len(status.bulk()):
        return ""
    return "the same command again, e.g. snakemake train_all (on a cluster with --profile slurm)"


def _table(status: CampaignStatus, width: int, *, unfold: bool, colour: bool) -> list[str]:
    rows = list(folded_rows(status.ranges, _fold_key, _cells, _folded, unfold=unfold))
    cells = list(zip(*(cells for _, cells in rows), strict=True))
    columns = [
        Column("range", cells[0]),
        Column("staged", cells[1], drop=4, right=True),
        Column("shards", cells[2], drop=2, right=True),
        Column("outliers", cells[3], drop=3, right=True),
        Column("state", cells[4]),
        Column("step", cells[5], drop=6, right=True),
        Column("ETA", cells[6], drop=5, right=True),
        Column("attempt", cells[7], drop=1, right=True),
        Column("last error", cells[8], drop=7, least=24),
    ]
    lines = table(columns, width)
    if not colour:
        return lines
    return _coloured(lines, [state for state, _ in rows])


def _coloured(lines: list[str], states: list[State]) -> list[str]:
    painted = [_paint(line, state) for line, state in zip(lines[1:], states, strict=True)]
    return [f"\x1b[1m{lines[0]}\x1b[0m", *painted]


def _paint(line: str, state: State) -> str:
    code = _COLOURS.get(state)
    return line.replace(f" {state}", f" \x1b[{code}m{state}\x1b[0m", 1) if code else line


def _fold_key(item: RangeStatus) -> str:
    plain = item.state in FOLDED and not item.error and item.name != OUTLIERS
    return item.state if plain else item.name


def _cells(item: RangeStatus) -> list[str]:
    return [
        item.name,
        _staged(item.files, item.quarantined),
        "" if item.shards is None else number(item.shards),
        "" if item.outliers is None else compact(item.outliers),
        item.state,
        step_of(item.step, item.steps, item.state, item.quiet_s),
        "" if item.eta_s is None else duration(item.eta_s),
        number(item.attempt) if item.attempt else "",
        item.error,
    ]


def _folded(items: list[RangeStatus]) -> list[str]:
    def total(name: str) -> int:
        return sum(getattr(item, name) or 0 for item in items)

    known = items[0].shards is not None
    first, last = items[0].name.partition("-")[0], items[-1].name.partition("-")[2]
    return [
        f"{first}-{last}",
        _staged(total("files"), total("quarantined")) if known else "",
        number(total("shards")) if known else "",
        compact(total("outliers")) if known else "",
        items[0].state,
        f"{len(items)} ranges",
        "",
        "",
        "",
    ]


def _staged(files: int | None, quarantined: int) -> str:
    if files is None:
        return ""
    return number(files) + (f", {number(quarantined)} bad" if quarantined else "")
