"""The text of ``crpipe status``: the campaign as a whole, and a table of the ranges' states."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

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
from crpipe.report.state_types import AT_WORK, QUIET_S, CampaignStatus, State, Sums

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.report.state_types import SourceToken, WorkState

__all__ = ["collect", "render_status", "status_json"]

# Neighbours in one of these states share a line where they are many.
FOLDED = frozenset({State.WAITING, State.LISTED, State.SPLIT, State.TRAINED, State.SKIPPED})
FOLD = 4  # lines of one state; a longer run of them is folded into one
# Fields of WorkState that only links have, and only ranges.
_NOT_IN = {
    "ranges": ("ranges", "round", "stopped"),
    "links": ("files", "quarantined", "shards", "outliers"),
}
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
    lines = [*header(status, width), "", *_table(status.ranges, "range", width, unfold=unfold, colour=colour)]
    if not status.one_to_one:
        lines += ["", *_table(status.links, "link", width, unfold=unfold, colour=colour)]
    return "\n".join(lines)


def status_json(campaign: Campaign, token: SourceToken | None = None) -> str:
    """Return the same as JSON: the fields of CampaignStatus, one entry for each range and link."""
    tree = asdict(collect(campaign, token))
    for kind, others in _NOT_IN.items():
        tree[kind] = [{key: value for key, value in row.items() if key not in others} for row in tree[kind]]
    return json_text(tree)


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
    """Describe how many events have no items."""
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
    """Return the command that resumes a stopped campaign; nothing while one of its jobs runs."""
    busy = any(item.state in AT_WORK for item in status.rows() if item.name != OUTLIERS)
    if busy or not any(item.attempt for item in status.rows()) or status.finished() == len(status.bulk()):
        return ""
    return "the same command again, e.g. snakemake train_all (on a cluster with --profile slurm)"


def _table(items: Sequence[WorkState], noun: str, width: int, *, unfold: bool, colour: bool) -> list[str]:
    """Lay out the ranges or the links, as ``noun`` says; a line for each, or for some that are alike."""
    groups = list(_lines(items, unfold=unfold))
    single = [group[0] if len(group) == 1 else None for group in groups]
    early = "" if noun == "range" else ", or why it ended early"
    columns = [
        Column(noun, [_name(group) for group in groups]),
        *(_range_columns(groups) if noun == "range" else _link_columns(groups)),
        Column("state", [group[0].state for group in groups]),
        Column("step", [_step(group, noun) for group in groups], drop=6, right=True),
        Column(
            "ETA",
            ["" if item is None or item.eta_s is None else duration(item.eta_s) for item in single],
            drop=5,
            right=True,
        ),
        Column(
            "attempt",
            [number(item.attempt) if item and item.attempt else "" for item in single],
            drop=1,
            right=True,
        ),
        Column(
            f"last error{early}",
            ["" if item is None else item.error or item.stopped for item in single],
            drop=7,
            least=24,
        ),
    ]
    lines = table(columns, width)
    return _coloured(lines, [group[0].state for group in groups]) if colour else lines


def _lines(items: Sequence[WorkState], *, unfold: bool) -> Iterator[list[WorkState]]:
    """Yield what each line shows: neighbours in the same plain state share one, where they are many."""
    for _, group in groupby(items, key=_fold_key):
        alike = list(group)
        if unfold or len(alike) <= FOLD:
            yield from ([item] for item in alike)
        else:
            yield alike


def _fold_key(item: WorkState) -> str:
    plain = item.state in FOLDED and item.name != OUTLIERS and not (item.error or item.stopped)
    return f"{item.state} {item.round}" if plain else item.name


def _range_columns(groups: Sequence[Sequence[WorkState]]) -> Iterator[Column]:
    staged = [_staged(_sum(group, "files"), _sum(group, "quarantined") or 0) for group in groups]
    yield Column("staged", staged, drop=4, right=True)
    for title, drop, write in (("shards", 2, number), ("outliers", 3, compact)):
        sums = [_sum(group, title) for group in groups]
        yield Column(title, ["" if each is None else write(each) for each in sums], drop=drop, right=True)


def _link_columns(groups: Sequence[Sequence[WorkState]]) -> Iterator[Column]:
    ranges = [sum(len(link.ranges) for link in group) for group in groups]
    yield Column("ranges", [number(each) if each else "" for each in ranges], drop=3, right=True)
    yield Column("round", [number(group[0].round) for group in groups], drop=2, right=True)


def _sum(group: Sequence[WorkState], name: str) -> int | None:
    """Add up a number of the ranges; None where it is not known, or they are not split."""
    known = getattr(group[0], name) if len(group) == 1 else group[0].shards
    return None if known is None else sum(getattr(item, name) or 0 for item in group)


def _name(group: Sequence[WorkState]) -> str:
    if len(group) == 1:
        return group[0].name
    return f"{group[0].name.partition('-')[0]}-{group[-1].name.partition('-')[2]}"


def _step(group: Sequence[WorkState], noun: str) -> str:
    """Write how far a job is, or for how long it has been quiet."""
    item = group[0]
    if len(group) > 1:
        return f"{len(group)} {noun}s"
    if item.state in AT_WORK and item.quiet_s is not None and item.quiet_s > QUIET_S:
        return f"quiet {duration(item.quiet_s)}"
    if item.step is None:
        return ""
    return f"{number(item.step)}/{number(item.steps)}" if item.steps else number(item.step)


def _coloured(lines: list[str], states: list[State]) -> list[str]:
    painted = [_paint(line, state) for line, state in zip(lines[1:], states, strict=True)]
    return [f"\x1b[1m{lines[0]}\x1b[0m", *painted]


def _paint(line: str, state: State) -> str:
    code = _COLOURS.get(state)
    return line.replace(f" {state}", f" \x1b[{code}m{state}\x1b[0m", 1) if code else line


def _staged(files: int | None, quarantined: int) -> str:
    if files is None:
        return ""
    return number(files) + (f", {number(quarantined)} bad" if quarantined else "")
