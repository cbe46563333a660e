"""The optional members of a workload, and members that nothing calls: misspelt, or half of a pair."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING

from crpipe.inference.export import Exportable
from crpipe.train.workload import (
    WORKLOAD_MEMBERS,
    Baseline,
    Calibrates,
    Fits,
    Generates,
    Histograms,
    ScoresGiven,
    ShowsEvents,
    UsesHistograms,
    UsesTables,
    Validates,
    WritesTable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONAL: tuple[type, ...] = (
    *(UsesTables, UsesHistograms, Fits, Baseline, Histograms, Validates, Calibrates, WritesTable),
    *(ShowsEvents, Generates, ScoresGiven, Exportable),
)
_ALONE = ("weighted", "wanted_histograms")  # optional attributes that belong to no method
_NEAR = 0.8


def members_of(protocol: type) -> set[str]:
    """Name the members of an optional protocol, with those of the protocols that it extends."""
    names: set[str] = set()
    for each in protocol.__mro__:
        if each.__module__ == protocol.__module__:
            names |= {*vars(each), *inspect.get_annotations(each)}
    return {name for name in names if not name.startswith("_")}


def unused_members(workload: object) -> Iterator[tuple[str, str]]:
    """Yield each public member that nothing calls though its name says otherwise, and what is missing."""
    names = {name for name in dir(workload) if not name.startswith("_")}
    known = {*WORKLOAD_MEMBERS, *_ALONE}
    for protocol in OPTIONAL:
        members = members_of(protocol)
        known |= members
        methods = {name for name in members if inspect.isfunction(getattr(protocol, name, None))}
        there = sorted(names & methods)
        if there and not members <= names and not _whole_without(protocol, names):
            yield there[0], f"it needs {', '.join(sorted(members - names))} beside it"
    for name in sorted(names - known):
        near = difflib.get_close_matches(name, sorted(known - names), n=1, cutoff=_NEAR)
        if near:
            yield name, f"did you mean {near[0]}?"


def _whole_without(protocol: type, names: set[str]) -> bool:
    """Return whether the members that are there are just those of a protocol that this one extends."""
    there = members_of(protocol) & names
    return any(there == members_of(base) for base in protocol.__mro__[1:] if base in OPTIONAL)
