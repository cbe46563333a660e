"""Raw files of the same content in two ranges, found from ledgers alone: their events would count twice.

Size, checksum, events and items of such files agree, and so do their rows in the multiplicity tables.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.campaign.ledger import Ledger, read_contents
from crpipe.core.causes import is_present
from crpipe.core.errors import DataError
from crpipe.events.layout import SOURCE_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crpipe.core.paths import Paths

# ruff: noqa: PLC0415

# `status` asks in every campaign; most have nothing to compare.

ALLOW = "ranges.duplicates: allow"
_FEW = 500_000  # files
_NOT_COMPARED = {SOURCE_FILE, "destination", "reason"}  # of a multiplicity table


@dataclass(frozen=True, slots=True)
class Twins:
    """Two files of the same content in two ranges, the first of ``count`` such pairs."""

    count: int
    ranges: tuple[str, str]
    paths: tuple[str, str]

    def describe(self) -> str:
        """Describe which files they are, and what to type."""
        first, second = map("{} of range {}".format, self.paths, self.ranges)
        more = f" (and {self.count - 1} more such pairs)" if self.count > 1 else ""
        return f"{first} and {second} have the same content{more}, so their events count twice"

    def remedy(self) -> str:
        """Describe what to write into the configuration, or to do in the source."""
        return (
            f"leave one range out with ranges.skip: [{self.ranges[1]}], or remove the file from the source "
            f"and make that range again, or set {ALLOW}"
        )


def find_twins(paths: Paths, ranges: Sequence[str]) -> Twins | None:
    """Find files of the same content in two of some ranges; None where there are none, or no ledgers.

    Multiplicity tables and rows of ledgers are read only for files whose keys agree.
    """
    keys = {name: contents for name in ranges if (contents := read_contents(paths.ledger(name)))}
    pairs = _pairs(keys) if len(keys) > 1 else []
    for one, other in pairs:
        rows = [_rows(paths.multiplicity(name), row) for name, row in (one, other)]
        if None in rows or rows[0] == rows[1]:
            files = [Ledger.read(paths.ledger(name)).files[row].path for name, row in (one, other)]
            return Twins(len(pairs), (one[0], other[0]), (files[0], files[1]))
    return None


def refuse_twins(paths: Paths, ranges: Sequence[str]) -> None:
    """Raise DataError for files of the same content in two of some ranges."""
    twins = find_twins(paths, ranges)
    if twins is not None:
        raise DataError(f"{twins.describe()}; {twins.remedy()}")


def _pairs(keys: Mapping[str, bytes]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Return range and place of files, with those of an earlier file of another range and the same key."""
    repeated = _repeated(b"".join(keys.values()))
    firsts: dict[int, tuple[str, int]] = {}
    pairs = []
    for name in sorted(keys) if repeated else ():
        for row, key in enumerate(memoryview(keys[name]).cast("Q")):
            if key in repeated:
                first = firsts.setdefault(key, (name, row))
                if first[0] != name:
                    pairs.append((first, (name, row)))
    return sorted(pairs)


def _repeated(joined: bytes) -> set[int]:
    """Return the keys that are there twice, but 0; for few files, importing numpy would take the longest."""
    if len(joined) < 8 * _FEW:
        keys = [key for key in memoryview(joined).cast("Q") if key]
        counts = Counter(keys) if len(set(keys)) < len(keys) else {}  # counting takes twice as long
        return {key for key, count in counts.items() if count > 1}
    import numpy as np

    ordered = np.sort(np.frombuffer(joined, np.uint64))
    return {*ordered[1:][ordered[1:] == ordered[:-1]].tolist()} - {0}


def _rows(table: Path, number: int) -> list[bytes] | None:
    """Read what the multiplicity table says of one file, column by column; None where there is none."""
    # Columns are numbers. pyarrow's own filters would import pandas, which takes longer than all else.
    import numpy as np
    import pyarrow.parquet as pq

    if not is_present(table):
        return None
    blocks = []
    with pq.ParquetFile(table) as file:
        names = [name for name in file.schema_arrow.names if name not in _NOT_COMPARED]
        for block in file.iter_batches(columns=[SOURCE_FILE, *names], use_threads=False):
            mine = np.from_dlpack(block.column(SOURCE_FILE)) == number
            blocks.append([np.from_dlpack(block.column(name))[mine].tobytes() for name in names])
    return [b"".join(column) for column in zip(*blocks, strict=True)]
