"""Keyed 64-bit hashes of whole columns, the same on every machine; events that occur twice.

They decide an event's place in the shuffle and its part (training, validation, test) from its identity alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.core.text import counted
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from crpipe.campaign.raw_files import RawFile
    from crpipe.core.text import Progress
    from crpipe.events.batch import Events

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def shuffle_keys(files: NDArray[np.uint32], rows: NDArray[np.uint32], seed: int) -> NDArray[np.uint64]:
    """Place of each event in the range's shuffle, [N]; distinct for distinct (file, row).

    Sorting by this key shuffles: the order depends on the seed and on where an event came from, never on
    which process read it or when.
    """
    position = files.astype(np.uint64) << np.uint64(32) | rows.astype(np.uint64)
    return _mix(_mix(position ^ _secret(seed, "shuffle")))


def share_of(columns: Iterable[NDArray[Any]], fractions: Sequence[float], seed: int) -> NDArray[np.int64]:
    """Divide the groups of events that share the values in ``columns`` at random into shares, [N].

    The number of a share is its place in ``fractions``, which add up to less than 1; the rest is the last.
    """
    key: Any = _secret(seed, "validation")
    for column in columns:
        key = _mix(key ^ _bits(column))
    limits = np.array([int(end * 2**64) for end in itertools.accumulate(fractions)], np.uint64)
    return np.searchsorted(limits, np.atleast_1d(key), side="right").astype(np.int64)


def bucket_of(keys: NDArray[np.uint64], buckets: int | NDArray[np.uint64]) -> NDArray[np.int64]:
    """Cut the space of keys into equal intervals, in ascending order, and return each key's number, [N].

    buckets: how many intervals, for all keys or for each.
    """
    return ((keys >> np.uint64(32)) * np.asarray(buckets, np.uint64) >> np.uint64(32)).astype(np.int64)


def identities(columns: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Number each row of some columns, [N]: the same for equal values, another one for others."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key ^= _bits(column)
        key *= _INCREMENT  # odd, so one-to-one; the shift brings the upper bits down
        key ^= key >> np.uint64(32)
    return key


def _bits(column: NDArray[Any]) -> NDArray[np.uint64]:
    if column.dtype.kind == "f":
        column = (column + 0.0).view(f"u{column.itemsize}")  # -0.0 and 0.0 are one value
    return column.astype(np.uint64)


def _mix(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble one-to-one: the output step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    key = key + _INCREMENT
    key = (key ^ key >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ key >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return key ^ key >> np.uint64(31)


def _secret(seed: int, purpose: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:8], "little"))


# Events that occur twice in a range: a file that was copied under two names, or made twice with one seed.
#
# Nothing is left out for it: they are counted, and the first ones are named in the ledger.


SHOWN = 10
_AT_ONCE = 1 << 20  # identities in memory: 8 MiB
_MOST_PARTS = 256  # files that are open at once


def identity_columns(layout: Layout) -> tuple[str, ...]:
    """Name the columns by which an event is known: the layout's key, or all columns where it has none."""
    return layout.key or (*(field.name for field in layout.events), MULTIPLICITY)


def event_hashes(events: Events, layout: Layout) -> NDArray[np.uint64]:
    """Return a number for each event, [N]; different ones for events of different values."""
    columns = {**events.columns, MULTIPLICITY: events.multiplicity}
    return identities([columns[name] for name in identity_columns(layout)])


def numbers_path(spills: Path, task: int) -> Path:
    """What ``event_hashes`` gave for the events of a task, uint64, in the order of the source."""
    return spills / f"{task:04d}.numbers"


def count_repeated(
    spills: Path, files: Iterable[RawFile], layout: Layout, progress: Progress
) -> dict[str, Any]:
    """Count the events that occur twice in a range, and say so; the ledger's ``repeated``."""
    numbers = sorted(spills.glob("*.numbers"))
    tables = [path.with_suffix(".table") for path in numbers]
    duplicates = find_repeated(numbers, tables, layout, {file.number: file.path for file in files})
    if duplicates["events"]:
        progress.message(describe(duplicates))
    return duplicates


def find_repeated(
    numbers: Sequence[Path],
    tables: Sequence[Path],
    layout: Layout,
    files: Mapping[int, str],
    at_once: int = _AT_ONCE,
) -> dict[str, Any]:
    """Count the events of finished tasks that repeat an earlier one, and name the first ones.

    numbers: the ``event_hashes``, as bytes, of the events in ``tables``, Arrow streams in the order of the
    source. files: path of each raw file by its number. Example: ``{"columns": ["run", "event"], "events": 1,
    "first": [{"file": "b.root", "row": 3, "same_as": "a.root", "same_row": 7}]}``.
    """
    twice = _twice(numbers, at_once)
    count, pairs = _pairs(numbers, twice, at_once) if len(twice) else (0, [])
    places = _places(tables, {place for pair in pairs for place in pair})
    rows = [(places[later], places[earlier]) for earlier, later in pairs]
    return {
        "columns": list(identity_columns(layout)),
        "events": count,
        "first": [
            {"file": files[file], "row": row, "same_as": files[other], "same_row": same}
            for (file, row), (other, same) in rows
        ],
    }


def describe(duplicates: Mapping[str, Any]) -> str:
    """Describe in one line what was found."""
    first, events = duplicates["first"][0], duplicates["events"]
    return (
        f"warning: {counted(events, 'event')} repeat{'s' if events == 1 else ''} an earlier one of the range "
        f"(in {', '.join(duplicates['columns'])}), the first: row {first['row']} of {first['file']} and row "
        f"{first['same_row']} of {first['same_as']}; all are used: take a file that is there twice out of "
        "the source (the ledger names more, under repeated)"
    )


def _twice(paths: Sequence[Path], at_once: int) -> NDArray[np.uint64]:
    """Find the identities that occur more than once, in ascending order."""
    total = sum(path.stat().st_size for path in paths) // 8
    parts = min(_MOST_PARTS, 1 << max(0, -(-total // at_once) - 1).bit_length())
    if parts == 1:
        return _repeated([values for path in paths for values in _values(path, at_once)])
    # Equal ones are in the same part, which fits into memory: identities are spread evenly, as hashes are.
    begins = np.arange(1, parts, dtype=np.uint64) * np.uint64(2**64 // parts)
    with tempfile.TemporaryDirectory(dir=paths[0].parent) as name, contextlib.ExitStack() as closing:
        names = [Path(name) / f"{part}.part" for part in range(parts)]
        files = [closing.enter_context(each.open("wb")) for each in names]
        for path in paths:
            for values in _values(path, at_once):
                values.sort()
                for file, some in zip(files, np.split(values, np.searchsorted(values, begins)), strict=True):
                    file.write(some.data)
        closing.close()
        return np.concatenate([_repeated([np.fromfile(each, np.uint64)]) for each in names])


def _values(path: Path, at_once: int) -> Iterator[NDArray[np.uint64]]:
    """Read a file of identities piece by piece."""
    for first in range(0, path.stat().st_size // 8, at_once):
        yield np.fromfile(path, np.uint64, at_once, offset=8 * first)


def _repeated(parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Find the numbers that occur more than once in some arrays, in ascending order."""
    hashes = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint64), *parts])
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _pairs(
    paths: Sequence[Path], twice: NDArray[np.uint64], at_once: int
) -> tuple[int, list[tuple[int, int]]]:
    """Count the repetitions, and give the first ones: place of an event, place of one that repeats it."""
    first_index: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    begin = count = 0
    for path in paths:
        for hashes in _values(path, at_once):
            for index in np.flatnonzero(np.isin(hashes, twice)).tolist():
                earlier = first_index.setdefault(int(hashes[index]), begin + index)
                if earlier != begin + index:
                    count += 1
                    pairs += [(earlier, begin + index)] if len(pairs) < SHOWN else []
            begin += len(hashes)
    return count, pairs


def _places(tables: Sequence[Path], indices: set[int]) -> dict[int, tuple[int, int]]:
    """Find the source file and the row of events by their places in the order of the source."""
    places: dict[int, tuple[int, int]] = {}
    begin = 0
    for path in tables if indices else ():
        with pa.ipc.open_stream(path) as stream:
            for batch in stream:
                for index in (each for each in indices if begin <= each < begin + len(batch)):
                    row = batch.slice(index - begin, 1)
                    places[index] = row[SOURCE_FILE][0].as_py(), row[SOURCE_ROW][0].as_py()
                begin += len(batch)
    return places
