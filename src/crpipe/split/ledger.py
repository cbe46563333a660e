"""What a split writes down about its events: the multiplicity table, its histogram and the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import LedgerError
from crpipe.events.layout import MULTIPLICITY
from crpipe.split.scatter import DESTINATIONS, FileReport, table_path, table_schema
from crpipe.split.staged import QUARANTINED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.split.staged import RawFile

SHOWN_REJECTED = 100
_TABLE_ROWS = 1 << 20

# Ten bins a decade and one for empty events, the same for every range, so that histograms add up.
EDGES: NDArray[np.int64] = np.concatenate(
    [[0], np.unique(np.rint(10 ** (np.arange(81) / 10)).astype(np.int64))]
)


def histogram(multiplicity: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Count events per bin [EDGES[i], EDGES[i + 1]); the last bin takes everything above."""
    bins = np.searchsorted(EDGES, multiplicity, side="right") - 1
    return np.bincount(np.minimum(bins, len(EDGES) - 2), minlength=len(EDGES) - 1)


def write_table(path: Path, spills: Path, numbers: Iterable[int], layout: Layout) -> NDArray[np.int64]:
    """Join the workers' tables into the range's multiplicity table; return its histogram."""
    schema = table_schema(layout)
    schema = schema.set(
        schema.get_field_index("destination"), pa.field("destination", pa.string(), nullable=False)
    )
    counts = np.zeros(len(EDGES) - 1, np.int64)
    texts = ["destination", "reason"]
    options = {"compression": "zstd", "compression_level": 1, "max_rows_per_page": _TABLE_ROWS}
    with pq.ParquetWriter(path, schema, use_dictionary=texts, **options) as writer:
        held: list[pa.RecordBatch] = []
        for number in numbers:
            with pa.ipc.open_stream(table_path(spills, number)) as stream:
                for batch in stream:
                    counts += histogram(batch.column(MULTIPLICITY).to_numpy())
                    held.append(batch)
                    if sum(len(each) for each in held) >= _TABLE_ROWS:
                        writer.write_table(_named(held, schema))
                        held = []
        if held:
            writer.write_table(_named(held, schema))
    return counts


def _named(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(batches)
    place = schema.get_field_index("destination")
    codes = table["destination"].combine_chunks()
    names = pa.DictionaryArray.from_arrays(codes, pa.array(DESTINATIONS)).cast(pa.string())
    columns = [names if index == place else column for index, column in enumerate(table.columns)]
    return pa.Table.from_arrays(columns, schema=schema)


def make_ledger(
    reports: list[FileReport], set_aside: list[RawFile], totals: dict[int, tuple[int, int]]
) -> dict[str, Any]:
    """Account for every event and item of a range; raise LedgerError when a file's do not add up.

    ``totals`` gives each file's own (events, items) by its number.
    """
    read = [report for report in reports if not report.bad]
    for report in read:
        _check(report, totals[report.file.number])
    events = sum((report.events for report in read), np.zeros(len(DESTINATIONS), np.int64))
    items = sum((report.items for report in read), np.zeros(len(DESTINATIONS), np.int64))
    listed = np.array([totals[report.file.number] for report in read], np.int64).reshape(-1, 2).sum(axis=0)
    rows = [_row(report) for report in reports] + [_aside(file, file.reason) for file in set_aside]
    rejected = [
        {"file": report.file.path, "row": row, "reason": reason, "muons": items}
        for report in read
        for row, reason, items in report.rejected
    ]
    return {
        "files": sorted(rows, key=lambda row: str(row["path"])),
        "events": _sums(listed[0], events),
        "muons": _sums(listed[1], items),
        "rejected": rejected[:SHOWN_REJECTED],
        "quarantined": len(rows) - len(read),
        "balanced": True,
    }


def check_written(ledger: dict[str, Any], entries: Iterable[dict[str, Any]]) -> None:
    """Raise LedgerError unless the shards hold exactly the events and items that the ledger sends there."""
    found = {role: [0, 0] for role in DESTINATIONS[:3]}
    for entry in entries:
        found[entry["role"]][0] += entry["events"]
        found[entry["role"]][1] += entry["items"]
    for role, (events, items) in found.items():
        sent = ledger["events"][role], ledger["muons"][role]
        if (events, items) != sent:
            raise LedgerError(
                f"{role}: {sent[0]} events with {sent[1]} muons were sent, the shards hold {events} "
                f"with {items}; this is a fault in crpipe: keep the range's files and report it"
            )


def _check(report: FileReport, total: tuple[int, int]) -> None:
    found = int(report.events.sum()), int(report.items.sum())
    if found != total:
        raise LedgerError(
            f"{report.file.path}: the file says {total[0]} events with {total[1]} muons, read were "
            f"{found[0]} with {found[1]}; have the file made anew, or leave its range out with ranges.skip"
        )


def _sums(listed: int, destinations: NDArray[np.int64]) -> dict[str, int]:
    sums = {name: int(count) for name, count in zip(DESTINATIONS, destinations, strict=True)}
    return {"listed": int(listed), **sums}


def _row(report: FileReport) -> dict[str, Any]:
    if report.bad:
        return _aside(report.file, report.bad)
    sums = {"events": int(report.events.sum()), "muons": int(report.items.sum())}
    return _aside(report.file, "") | {"state": report.file.state} | sums


def _aside(file: RawFile, reason: str) -> dict[str, Any]:
    return {
        "path": file.path,
        "size": file.size,
        "state": QUARANTINED,
        "reason": reason,
        "checksum": file.checksum,
        "algorithm": file.algorithm,
        "verified": file.verified,
        "events": 0,
        "muons": 0,
    }
