"""The table of links in the text of ``crpipe status``, where a link is not the same as a range."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from crpipe.report.status.status_types import AT_WORK, QUIET_S, LinkStatus, RangeStatus, State
from crpipe.report.text import Column, duration, number, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FOLD = 4  # lines of one state; a longer run of them is folded into one
Status = TypeVar("Status", RangeStatus, LinkStatus)
_FOLDED = frozenset({State.WAITING, State.SPLIT, State.TRAINED})


def link_table(links: Sequence[LinkStatus], width: int, *, unfold: bool) -> tuple[list[str], list[State]]:
    """Give the lines of the table, titles first, and the state that each line after them shows."""
    rows = list(folded_rows(links, _fold_key, _cells, _folded, unfold=unfold))
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


def _fold_key(link: LinkStatus) -> str:
    plain = link.state in _FOLDED and link.ranges and not (link.error or link.stopped)
    return f"{link.state} {link.round}" if plain else link.name


def _cells(link: LinkStatus) -> list[str]:
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


def _folded(links: Sequence[LinkStatus]) -> list[str]:
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
