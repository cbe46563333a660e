"""Events that occur twice in a range: a file that was copied under two names, or made twice with one seed.

Nothing is left out for it: they are counted, and the first ones are named in the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.split.hashing import identities

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.core.progress import Progress
    from crpipe.core.raw_files import RawFile
    from crpipe.events.batch import Events
    from crpipe.events.layout import Layout

SHOWN = 10
_AT_ONCE = 1 << 23  # identities that are compared in one pass: 64 MiB


def names_of(layout: Layout) -> tuple[str, ...]:
    """Name the columns by which an event is known: the layout's key, or all columns where it has none."""
    return layout.key or (*(field.name for field in layout.events), MULTIPLICITY)


def identify(events: Events, layout: Layout) -> NDArray[np.uint64]:
    """Give a number for each event, [N]; different ones for events of different values."""
    columns = {**events.columns, MULTIPLICITY: events.multiplicity}
    return identities([columns[name] for name in names_of(layout)])


def numbers_path(spills: Path, task: int) -> Path:
    """What ``identify`` gave for the events of a task, uint64, in the order of the source."""
    return spills / f"{task:04d}.numbers"


def count_repeated(
    spills: Path, files: Iterable[RawFile], layout: Layout, progress: Progress
) -> dict[str, Any]:
    """Count the events that occur twice in a range, and say so; the ledger's ``repeated``."""
    numbers = sorted(spills.glob("*.numbers"))
    tables = [path.with_suffix(".table") for path in numbers]
    found = find_repeated(numbers, tables, layout, {file.number: file.path for file in files})
    if found["events"]:
        progress.say(describe(found))
    return found


def find_repeated(
    numbers: Sequence[Path],
    tables: Sequence[Path],
    layout: Layout,
    files: Mapping[int, str],
    at_once: int = _AT_ONCE,
) -> dict[str, Any]:
    """Count the events of finished tasks that repeat an earlier one, and name the first ones.

    numbers: what ``identify`` gave, as bytes, for the events in ``tables``, Arrow streams in the order of the
    source. files: path of each raw file by its number. Example: ``{"columns": ["run", "event"], "events": 1,
    "first": [{"file": "b.root", "row": 3, "same_as": "a.root", "same_row": 7}]}``.
    """
    total = sum(path.stat().st_size for path in numbers) // 8
    passes = max(1, -(-total // at_once))
    twice = np.concatenate([_twice(numbers, number, passes) for number in range(passes)])
    count, pairs = _pairs(numbers, twice) if len(twice) else (0, [])
    places = _places(tables, {place for pair in pairs for place in pair})
    rows = [(places[later], places[earlier]) for earlier, later in pairs]
    return {
        "columns": list(names_of(layout)),
        "events": count,
        "first": [
            {"file": files[file], "row": row, "same_as": files[other], "same_row": same}
            for (file, row), (other, same) in rows
        ],
    }


def describe(found: Mapping[str, Any]) -> str:
    """Say in one line what was found."""
    first = found["first"][0]
    return (
        f"warning: {found['events']} events repeat an earlier one of the range (in "
        f"{', '.join(found['columns'])}), the first: row {first['row']} of {first['file']} and row "
        f"{first['same_row']} of {first['same_as']}; all are used: take a file that is there twice out of "
        "the source (the ledger names more, under repeated)"
    )


def _twice(paths: Sequence[Path], number: int, passes: int) -> NDArray[np.uint64]:
    """Find the identities that occur more than once, of those whose remainder by ``passes`` is ``number``."""
    parts = [np.zeros(0, np.uint64)]
    for path in paths:
        found = np.fromfile(path, np.uint64)
        parts.append(found if passes == 1 else found[found % np.uint64(passes) == number])
    whole = np.concatenate(parts)
    whole.sort()
    return np.unique(whole[1:][whole[1:] == whole[:-1]])


def _pairs(paths: Sequence[Path], twice: NDArray[np.uint64]) -> tuple[int, list[tuple[int, int]]]:
    """Count the repetitions, and give the first ones: place of an event, place of one that repeats it."""
    known: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    begin = count = 0
    for path in paths:
        found = np.fromfile(path, np.uint64)
        places = np.flatnonzero(np.isin(found, twice))
        for place in places.tolist():
            earlier = known.setdefault(int(found[place]), begin + place)
            if earlier != begin + place:
                count += 1
                pairs += [(earlier, begin + place)] if len(pairs) < SHOWN else []
        begin += len(found)
    return count, pairs


def _places(tables: Sequence[Path], wanted: set[int]) -> dict[int, tuple[int, int]]:
    """Find the source file and the row of events by their places in the order of the source."""
    found: dict[int, tuple[int, int]] = {}
    begin = 0
    for path in tables if wanted else ():
        with pa.ipc.open_stream(path) as stream:
            for batch in stream:
                for place in (each for each in wanted if begin <= each < begin + len(batch)):
                    row = batch.slice(place - begin, 1)
                    found[place] = row[SOURCE_FILE][0].as_py(), row[SOURCE_ROW][0].as_py()
                begin += len(batch)
    return found
