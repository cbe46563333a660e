"""Where every event of a range is: the multiplicity table, the ledger and the shards say the same.

The table has a row for each event of the source. So each event is in exactly one place when the table has the
ledger's rows of each source file, and each role's shards hold exactly the events that it sends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.paths import DESTINATIONS
from crpipe.core.text import counted
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.events.shard_reader import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.ledger import Ledger, LedgerFile
    from crpipe.check.findings import CheckReport

_COLUMNS = (SOURCE_FILE, SOURCE_ROW, MULTIPLICITY)
_SHOWN = 3  # events that a finding names


class EventRows(NamedTuple):
    """Source file, row in it, and multiplicity of events: [N] each."""

    files: NDArray[Any]
    rows: NDArray[Any]
    items: NDArray[Any]


@dataclass(frozen=True, slots=True)
class EventTable:
    """The multiplicity table of a range, in the order of the source.

    starts: [F + 1] first place of the events of each source file. destinations: [N] place in DESTINATIONS.
    """

    events: EventRows
    starts: NDArray[np.int64]
    destinations: NDArray[Any]


def read_events(paths: Sequence[Path]) -> EventRows:
    """Read whose events the files of some shards hold."""
    tables = [_read(path, _COLUMNS) for path in paths]
    columns = ([values_of(table[name]) for table in tables] for name in _COLUMNS)
    return EventRows(*(np.concatenate(parts or [np.empty(0, np.uint32)]) for parts in columns))


def _read(path: Path, names: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(path, read_dictionary=[*{*names} - {*_COLUMNS}]) as file:
        return file.read(list(names), use_threads=False)


def read_table(report: CheckReport, path: Path, ledger: Ledger, remedy: str) -> EventTable | None:
    """Read a multiplicity table and compare it with the ledger.

    None where it does not have the rows of each source file from 0 on, each once and in order.
    """
    table = _read(path, (*_COLUMNS, "destination"))
    files, rows, items = events = EventRows(*(values_of(table[name]) for name in _COLUMNS))
    names = pc.index_in(table["destination"].cast(pa.string()), value_set=pa.array(DESTINATIONS))
    destinations = values_of(pc.fill_null(names, len(DESTINATIONS)))
    listed = ledger.files
    in_order = not len(files) or int(files.max()) < len(listed)
    counts = np.bincount(files if in_order else (), minlength=len(listed))
    starts = np.concatenate([[0], np.cumsum(counts)])
    if (
        not in_order
        or not np.array_equal(files, np.repeat(np.arange(len(listed)), counts))
        or not np.array_equal(rows, np.arange(len(rows)) - starts[files])
    ):
        what = "damaged: its events are not the rows of each source file from 0 on, each once and in order"
        report.error(path, what, remedy)
        return None
    sums = np.bincount(files, items, len(listed))
    for row, count, size in zip(listed, counts, sums, strict=True):
        if (row.events, row.items) != (count, size):
            what = (
                f"holds {counted(int(count), 'event')} with {size:.0f} items, the ledger says "
                f"{row.events} with"
            )
            report.error(path, f"{row.path}: {what} {row.items}", remedy)
    for kind, weights, totals in (("events", None, ledger.events), ("items", items, ledger.items)):
        sent = np.bincount(destinations, weights, len(DESTINATIONS))
        for name, count in zip(DESTINATIONS, sent, strict=False):
            if totals.of(name) != count:
                what = f"sends {count:.0f} {kind} to {name}, the ledger {totals.of(name)}"
                report.error(path, what, remedy)
    return EventTable(events, starts, destinations)


def faults_of(table: EventTable, role: str, shards: EventRows) -> dict[str, NDArray[np.intp]]:
    """Compare the events in the shards of a role with those that the table sends there, one by one.

    Return the places in the table of the events with each fault. Rows of a file follow each other from 0 on,
    so a place needs no search. Example: with ``starts`` 0, 5, 9, row 2 of source file 1 has the place 5 + 2.
    An event that no source file has is given the place -1.
    """
    known = shards.files < len(table.starts) - 1
    known[known] = shards.rows[known] < np.diff(table.starts)[shards.files[known]]
    places = table.starts[shards.files[known]] + shards.rows[known]
    times = np.bincount(places, minlength=len(table.destinations))
    sent = table.destinations == DESTINATIONS.index(role)
    unknown = np.full((~known).sum(), -1)
    faults = {
        "missing": np.flatnonzero(sent & (times == 0)),
        "there twice": np.flatnonzero(sent & (times > 1)),
        "there, though the multiplicity table does not send them there": np.concatenate(
            [np.flatnonzero(~sent & (times > 0)), unknown]
        ),
        "there with another multiplicity": places[table.events.items[places] != shards.items[known]],
    }
    return {fault: wrong for fault, wrong in faults.items() if len(wrong)}


def name_events(table: EventTable, places: NDArray[np.intp], files: Sequence[LedgerFile]) -> str:
    """Name the first events by source file and row."""
    names = [
        f"{files[table.events.files[each]].path} row {table.events.rows[each]}"
        if each >= 0
        else "of no source file"
        for each in places[:_SHOWN]
    ]
    return ", ".join(names) + (", …" if len(places) > _SHOWN else "")
