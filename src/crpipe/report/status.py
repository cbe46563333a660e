"""The text of ``crpipe status``: the campaign as a whole, and a table of the ranges' states."""

from __future__ import annotations

import textwrap
from dataclasses import fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.campaign.ledger import Counts
from crpipe.campaign.records import read_slices
from crpipe.core.causes import is_present
from crpipe.core.lease import is_held
from crpipe.core.paths import DESTINATIONS, HEAD_FOLDER, OUTLIERS, Paths
from crpipe.core.records import Record
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
from crpipe.report.state import CampaignState, SourceToken, destinations_of
from crpipe.report.work_state import AT_WORK, NOT_IN_JSON, QUIET_S, State, WorkState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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
    State.CONVERTING: "36",
    State.SPLITTING: "36",
    State.INTERRUPTED: "33",
    State.STALE: "35",
    State.FAILED: "1;31",
    State.WAITING: "2",
    State.SKIPPED: "2",
}


def render_status(state: CampaignState, width: int, *, unfold: bool = False, colour: bool = False) -> str:
    """Describe the campaign in lines of at most ``width`` characters.

    ``unfold`` gives each range its own line; ``colour`` adds terminal colours to the states.
    """
    lines = [*_header(state, width), "", *_table(state.ranges, "range", width, unfold=unfold, colour=colour)]
    if not state.one_to_one:
        lines += ["", *_table(state.links, "link", width, unfold=unfold, colour=colour)]
    return "\n".join(lines)


def status_json(state: CampaignState) -> str:
    """Return the same as JSON: the fields of CampaignState, one entry for each range and link."""
    tree = _plain(state)
    for kind, others in _NOT_IN.items():
        tree[kind] = [{key: value for key, value in row.items() if key not in others} for row in tree[kind]]
    return json_text(tree)


def _plain(value: Any) -> Any:
    """Return a part of the state as JSON has it."""
    if isinstance(value, Counts):
        return sums_json(value)
    if isinstance(value, Record):
        return value.as_json()
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.metadata != NOT_IN_JSON]
        return {name: _plain(getattr(value, name)) for name in names}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def sums_json(counts: Counts) -> dict[str, int]:
    """Return what was listed, and where it went."""
    return {name: counts.of(name) for name in ("listed", *DESTINATIONS)}


def _header(state: CampaignState, width: int) -> Iterator[str]:
    """Yield what concerns the campaign as a whole, one labelled paragraph each; warnings in capitals."""
    paragraphs = [*facts(state), *warnings(state)]
    command = resume_command(state)
    if command:
        paragraphs.append(("resume", command))
    indent = max(LABEL, *(len(label) + 1 for label, _ in paragraphs))
    for label, text in paragraphs:
        lines = textwrap.wrap(printable(text), max(width - indent, LABEL)) or [""]
        yield from (f"{label if line is lines[0] else '':<{indent}}{line}" for line in lines)


def facts(state: CampaignState) -> Iterator[tuple[str, str]]:
    """Yield label and text of everything that concerns the campaign as a whole, warnings excepted."""
    share = state.finished() / max(len(state.bulk()), 1)
    known = f"fingerprint {state.fingerprint}, data {state.data}"
    yield "run", f"{state.run}, {known if state.data else 'no job has run yet'}"
    if state.max_files:
        yield "trial", f"only the first {counted(state.max_files, 'file')} of each range (source.max_files)"
    yield "progress", f"{bar(share, _BAR)}  {state.trained_of()} trained"
    yield "states", ", ".join(f"{count} {name}" for name, count in by_state(state.states()))
    yield "ETA", _eta(state)
    yield from _stopped(state)
    yield from _sliced(state)
    yield from _sums(state)
    yield "disk", disk_line(state)
    if state.token is not None and state.token.ends is not None and not state.copies_all():
        yield "token", f"{_end(state.token.ends - state.time)} ({state.token.place})"
    if state.queue:
        yield (
            "queue",
            "; ".join(f"{job.work}: {job.state}, {job.where} (job {job.number})" for job in state.queue),
        )


def by_state(counts: Mapping[State, int]) -> list[tuple[State, int]]:
    """Sort how many ranges or links are in each state by how far the states are."""
    return [(each, counts[each]) for each in State if each in counts]


def _stopped(state: CampaignState) -> Iterator[tuple[str, str]]:
    """Yield how many links ended before their last step, and why the newest of them did."""
    early = [link for link in state.links if link.stopped]
    if early:
        yield "early stop", f"{counted(len(early), 'link')}; {early[-1].name}: {early[-1].stopped}"


def _sliced(state: CampaignState) -> Iterator[tuple[str, str]]:
    """Yield how many slices the links that came in packs were trained in, and for how long.

    Slices that were killed leave no trace here: the log of their pool has them.
    """
    paths = state.campaign.paths
    rows = [row for link in state.links for row in read_slices(paths.slices(link.name))]
    if rows:
        signals = sum("SIG" in row.stopped for row in rows)
        seconds = sum(row.seconds for row in rows)
        hosts = counted(len({row.host for row in rows}), "host")
        yield (
            "slices",
            (
                f"{len(rows)} on {hosts}, {signals} ended by a signal; {duration(seconds)} that count, "
                f"{duration(sum(row.start_seconds for row in rows))} of them to start"
            ),
        )


def _eta(state: CampaignState) -> str:
    if state.finished() == len(state.bulk()):
        return f"all {state.noun()}s are trained"
    if state.eta_s is None or state.pace_s is None:
        return "unknown until the first steps of training"
    at_work = any(link.state is State.TRAINING for link in state.bulk())
    when = f"about {moment(state.time + state.eta_s)}" if at_work else "once it is resumed"
    return f"{duration(state.eta_s)}, {when}; {duration(state.pace_s)} a range"


def empty_line(empty: int, listed: int, item: str) -> str:
    """Describe how many events have no items."""
    return f"{counted(empty, 'event')} without {item} ({empty / max(listed, 1):.0%}), used like all others"


def _sums(state: CampaignState) -> Iterator[tuple[str, str]]:
    ledgers, done = state.ledgers, state.trained
    yield "events", sum_line(ledgers.events)
    yield state.item, sum_line(ledgers.items)
    if ledgers.empty:
        yield "", empty_line(ledgers.empty, ledgers.events.listed, state.item)
    if ledgers.weights:
        yield "weights", weight_line(ledgers.weights)
    bad_files, bad_events = counted(ledgers.quarantined, "file"), counted(ledgers.events.rejected, "event")
    yield "ledgers", f"{ledgers.balance()} balance; {bad_files} quarantined, {bad_events} rejected"
    for each in state.given_up:
        yield "skipped", each.describe()
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
        seen = f"{counted(done.events, 'event')}, {number(done.items)} {state.item}"
        yield "trained", f"{counted(done.step, 'step')}, {seen}, {counted(done.skipped, 'step')} skipped"
    if state.validation is not None:
        yield "validation", state.validation.line()


def sum_line(counts: Counts) -> str:
    """Write a sum as an equation: what was listed, and where it went."""
    parts = " + ".join(f"{name} {number(counts.of(name))}" for name in destinations_of(counts))
    return f"{number(counts.listed)} = {parts}"


def weight_line(weights: Mapping[str, float]) -> str:
    """Write the sums of the events' weights as an equation."""
    parts = " + ".join(f"{name} {weights[name]:.6g}" for name in DESTINATIONS)
    return f"{weights['listed']:.6g} = {parts}"


def disk_line(state: CampaignState) -> str:
    """Write what raw copies take of their budget, and the free space."""
    disk = state.disk
    return f"raw copies {size(disk.raw)} of {size(disk.budget)} budget, {size(disk.free)} free"


def warnings(state: CampaignState) -> Iterator[tuple[str, str]]:
    """Yield what a person must act on: wrong sums, stale products, a failed range that blocks later ones."""
    if state.ledgers.unbalanced:
        yield "UNBALANCED", f"{', '.join(state.ledgers.unbalanced)}: split these ranges again"
    if state.duplicates:
        yield "TWICE", state.duplicates
    untrained = [
        link.name for link in state.bulk() if link.ranges and {*link.ranges} <= {*state.ledgers.untrained}
    ]
    if untrained:
        yield (
            "EMPTY",
            f"{', '.join(untrained)}: no training event up to the threshold; nothing is trained",
        )
    if state.ledgers.doubtful_groups:
        yield "GROUPS", state.ledgers.doubtful_groups
    if state.changed:
        yield "STALE", "; ".join(state.changed)
    elif state.states()[State.STALE]:
        yield "STALE", f"{counted(state.states()[State.STALE], 'range')} made under another configuration"
    if state.still_trained:
        why = "in ranges.skip, but the newest checkpoint was trained on it"
        how = (
            "the next run trains again without it; to keep what is trained, take it out, or choose a new run"
        )
        yield "SKIPPED", f"{', '.join(state.still_trained)}: {why}; {how}"
    failed = _failed(state)
    if failed:
        yield "FAILED", f"{', '.join(failed)}: {_blocked(state, failed[0])} cannot be trained before"
    if state.token is not None and not state.copies_all():
        yield from _token_warning(state, state.token)


def _token_warning(state: CampaignState, token: SourceToken) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the source's token, or will be before the campaign is finished."""
    left = float("inf") if token.ends is None else token.ends - state.time
    if token.problem:
        yield "TOKEN", token.problem
    elif left <= 0:
        yield "TOKEN", f"{_end(left)}: nothing can be copied until it is renewed; see `crpipe token`"
    elif state.eta_s is not None and left < state.eta_s:
        last = f"before the last range is trained (in {duration(state.eta_s)})"
        yield "TOKEN", f"{_end(left)}, {last}: renew it in time; see `crpipe token`"
    elif left < TOKEN_S:
        yield "TOKEN", f"{_end(left)}: renew it in time; see `crpipe token`"


def _end(left_s: float) -> str:
    return f"ends in {duration(left_s)}" if left_s > 0 else f"ended {duration(-left_s)} ago"


def _failed(state: CampaignState) -> list[str]:
    """Name the failed ranges, and the failed links whose ranges did not fail themselves."""
    ranges = [item.name for item in state.chain() if item.state is State.FAILED]
    links = [link for link in state.bulk() if link.state is State.FAILED]
    if not state.one_to_one:  # there a range has also failed when its link has
        of_links = {name for link in links for name in link.ranges}
        ranges = [name for name in ranges if name not in of_links]
    return [*ranges, *(link.name for link in links if link.name not in ranges)]


def _blocked(state: CampaignState, name: str) -> str:
    """Count the links that wait for a failed one, or for a failed range of theirs."""
    bulk = state.bulk()
    names = [link.name for link in bulk]
    if name in names:
        later = bulk[names.index(name) + 1 :]
    else:
        later = bulk[next((place for place, link in enumerate(bulk) if name in link.ranges), len(bulk)) :]
    waiting = sum(link.state not in (State.TRAINED, State.STALE) for link in later)
    return counted(waiting, f"later {state.noun()}" if name in names else state.noun())


def last_command(paths: Paths) -> str:
    """Return the command of the last workflow that ran jobs of this run; empty where none is known."""
    return paths.command().read_text().strip() if is_present(paths.command()) else ""


def resume_command(state: CampaignState) -> str:
    """Return the command that resumes a stopped campaign; nothing while its head or one of its jobs runs."""
    busy = any(item.state in AT_WORK for item in state.rows() if item.name != OUTLIERS)
    if (
        busy
        or is_held(Path(HEAD_FOLDER) / "lease")
        or not any(item.attempt for item in state.rows())
        or state.finished() == len(state.bulk())
    ):
        return ""
    usual = "e.g. snakemake train_all (on a cluster with --profile slurm)"
    typed = last_command(state.campaign.paths)
    return f"the same command again{f': {typed}' if typed else f', {usual}'}"


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
    copied = [staged(_sum(group, "files"), _sum(group, "quarantined") or 0) for group in groups]
    yield Column("staged", copied, drop=4, right=True)
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


def staged(files: int | None, quarantined: int) -> str:
    """Write how many files of a range are copied, and how many of them are bad."""
    if files is None:
        return ""
    return number(files) + (f", {number(quarantined)} bad" if quarantined else "")
