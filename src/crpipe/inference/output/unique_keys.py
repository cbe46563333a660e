"""Refuses predictions of files in which two events have the same key: nobody could tell their rows apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.batch import Events


def unique_keys(blocks: Iterable[Events], key: tuple[str, ...], paths: Sequence[Path]) -> Iterator[Events]:
    """Pass blocks on; at their end raise FormatError when two events have the same values of ``key``.

    Holds the key, the file and the row of every event: with a key of two 8-byte columns 24 MB for a million
    events, and about as much again while they are compared.
    """
    if not key:
        yield from blocks
        return
    names = (*key, SOURCE_FILE, SOURCE_ROW)
    held: list[list[NDArray[Any]]] = [[] for _ in names]
    for block in blocks:
        for name, parts in zip(names, held, strict=True):
            parts.append(block.columns[name].copy())  # a view would hold the whole block
        yield block
    if held[0]:
        _refuse_doubled(key, [_joined(parts) for parts in held], paths)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Join the parts of one column, and let go of them."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _refuse_doubled(key: tuple[str, ...], columns: list[NDArray[Any]], paths: Sequence[Path]) -> None:
    *values, files, rows = columns
    order = np.lexsort(values)  # stable: events of one key stay in their order
    same = np.ones(len(order) - 1, bool)
    for each in values:
        ordered = each[order]
        same &= ordered[1:] == ordered[:-1]
    doubled = np.flatnonzero(same)
    if not len(doubled):
        return
    at = doubled[np.argmin(order[doubled + 1])]  # the first event whose key was there before
    first, second = (int(place) for place in order[at : at + 2])
    named = ", ".join(f"{name} {each[second]}" for name, each in zip(key, values, strict=True))
    file, other = (paths[files[place]] for place in (second, first))
    what = "have the file made again" if file == other else f"leave one of them out of --in, such as {file}"
    raise FormatError(
        f"{file}: row {rows[second]}: the key {named} is also that of row {rows[first]} of {other}, and a "
        f"prediction has one row for each key; {what}, or give the events numbers of their own "
        f"({len(doubled)} of {len(order)} events repeat a key)"
    )
