"""The multiplicity table of a range, its histogram, and the ledger: where every event and item went."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.campaign.ledger import Counts, Ledger, LedgerFile, RejectedEvent, StagedSums
from crpipe.campaign.raw_files import QUARANTINED, SERVER_ONLY, SIZE_ONLY, STAGED, RawFile
from crpipe.campaign.records import MultiplicityHistogram
from crpipe.core.errors import LedgerError
from crpipe.core.paths import DESTINATIONS, ROLES
from crpipe.events.histograms import Binning, Histogram, add_up, no_counts
from crpipe.events.layout import MULTIPLICITY, Layout
from crpipe.split.scatter import FileReport, table_path, table_schema
from crpipe.split.workers import return_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from crpipe.events.shard_records import ShardEntry

SHOWN_REJECTED = 100
_TABLE_ROWS = 1 << 20

# Ten bins a decade and one for empty events, the same for every range, so that histograms add up.
EDGES: NDArray[np.int64] = np.concatenate(
    [[0], np.unique(np.rint(10 ** (np.arange(81) / 10)).astype(np.int64))]
)
_BIN_OF = np.searchsorted(EDGES, np.arange(1 << 12), side="right") - 1  # of most multiplicities


def histogram(multiplicity: NDArray[np.uint32], weights: NDArray[np.float64] | None = None) -> NDArray[Any]:
    """Count events, or add up their weights, per bin [EDGES[i], EDGES[i + 1]); the last takes all above."""
    bins = _BIN_OF.take(multiplicity, mode="clip")
    large = np.flatnonzero(multiplicity >= len(_BIN_OF))
    bins[large] = np.searchsorted(EDGES, multiplicity[large], side="right") - 1
    return np.bincount(np.minimum(bins, len(EDGES) - 2), weights, minlength=len(EDGES) - 1)


def write_table(path: Path, spills: Path, numbers: Iterable[int], layout: Layout) -> MultiplicityHistogram:
    """Join the workers' tables into the range's multiplicity table; return its histogram."""
    schema = table_schema(layout)
    schema = schema.set(
        schema.get_field_index("destination"), pa.field("destination", pa.string(), nullable=False)
    )
    counts, weights = np.zeros(len(EDGES) - 1, np.int64), np.zeros(len(EDGES) - 1)
    texts = ["destination", "reason"]
    return_freed_memory()  # of the shards
    options = {"compression": "zstd", "compression_level": 1, "max_rows_per_page": _TABLE_ROWS}
    with pq.ParquetWriter(path, schema, use_dictionary=texts, **options) as writer:
        held: list[pa.RecordBatch] = []
        rows = 0
        for number in numbers:
            # By its path the file would be mapped, and stay in memory.
            with pa.OSFile(str(table_path(spills, number))) as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    multiplicity = batch.column(MULTIPLICITY).to_numpy()
                    counts += histogram(multiplicity)
                    if layout.weight:
                        weights += histogram(multiplicity, _finite(batch.column(layout.weight)))
                    held.append(batch)
                    rows += len(batch)
                    if rows >= _TABLE_ROWS:
                        writer.write_table(_named(held, schema))
                        held, rows = [], 0
        if held:
            writer.write_table(_named(held, schema))
    return MultiplicityHistogram(
        edges=tuple(EDGES.tolist()),
        events=tuple(counts.tolist()),
        weights=tuple(weights.tolist()) if layout.weight else None,
    )


def _finite(column: pa.Array) -> NDArray[np.float64]:
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def _named(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(batches)
    destination = schema.get_field_index("destination")
    codes = table["destination"].combine_chunks()
    names = pa.DictionaryArray.from_arrays(codes, pa.array(DESTINATIONS)).cast(pa.string())
    columns = [names if index == destination else column for index, column in enumerate(table.columns)]
    return pa.Table.from_arrays(columns, schema=schema)


def check_unique(files: Sequence[RawFile], table: Path) -> None:
    """Raise LedgerError when a source file appears twice in the staged table: its events would be doubled."""
    paths = Counter(str(PurePosixPath(file.path)) for file in files)
    uris = Counter(file.uri for file in files if file.uri)
    for name, times in [*paths.items(), *uris.items()]:
        if times > 1:
            raise LedgerError(
                f"{table}: {name} appears {times} times, its events would be doubled; list each file once in "
                "the source, delete this table and the range's manifest, and run the same command again"
            )


def make_ledger(
    reports: list[FileReport],
    set_aside: list[RawFile],
    totals: dict[int, tuple[int, int]],
    layout: Layout,
    **about: Any,
) -> Ledger:
    """Account for every event and item of a range; raise LedgerError when a file's do not add up.

    ``totals`` gives each file's own (events, items) by its number. about: other fields of the ledger.
    """
    read = [report for report in reports if not report.bad]
    for report in read:
        _check(report, totals[report.file.number], layout)
    events = sum((report.events for report in read), np.zeros(len(DESTINATIONS), np.int64))
    items = sum((report.items for report in read), np.zeros(len(DESTINATIONS), np.int64))
    listed = np.array([totals[report.file.number] for report in read], np.int64).reshape(-1, 2).sum(axis=0)
    rows = [_row(report) for report in reports] + [_aside(file, file.reason) for file in set_aside]
    rejected = [
        RejectedEvent(file=report.file.path, row=row, reason=reason, items=items)
        for report in read
        for row, reason, items in report.rejected
    ]
    ledger = Ledger(
        files=tuple(sorted(rows, key=lambda row: row.path)),
        events=_counts(listed[0], events),
        items=_counts(listed[1], items),
        rejected=tuple(rejected[:SHOWN_REJECTED]),
        quarantined=len(rows) - len(read),
        staged=staged_sums(rows),
        weights=_weights(read) if layout.weight else None,
        balanced=False,
        **about,
    )
    return replace(ledger, balanced=ledger.is_balanced())


def _weights(read: list[FileReport]) -> dict[str, float]:
    sums = [math.fsum(column) for column in zip(*(report.weights for report in read), strict=True)]
    names = ("listed", *DESTINATIONS)
    return dict(zip(names, sums or [0.0] * len(names), strict=True))


def staged_sums(files: Iterable[LedgerFile]) -> StagedSums:
    """Count the files that were read, and how they were verified."""
    read = [row for row in files if row.state == STAGED]
    return StagedSums(
        files=len(read),
        bytes=sum(row.size or 0 for row in read),
        size_only=sum(row.verified == SIZE_ONLY for row in read),
        server_only=sum(row.verified == SERVER_ONLY for row in read) or None,
    )


def check_written(ledger: Ledger, entries: Iterable[ShardEntry], layout: Layout) -> None:
    """Raise LedgerError unless it balances and the shards hold exactly the events and items sent there."""
    remedy = "this is a fault in crpipe: keep the range's files and report it"
    if not ledger.balanced:
        raise LedgerError(f"the ledger's sums differ from what was listed; {remedy}")
    sums: dict[str, list[int]] = {role: [0, 0] for role in ROLES}
    for entry in entries:
        sums[entry.role][0] += entry.events
        sums[entry.role][1] += entry.items
    for role, (events, items) in sums.items():
        sent = ledger.events.of(role), ledger.items.of(role)
        if (events, items) != sent:
            raise LedgerError(
                f"{role}: {layout.count(*sent)} were sent, the shards hold "
                f"{layout.count(events, items)}; {remedy}"
            )


def describe_histograms(
    ledger: Ledger, binnings: Mapping[str, Binning], parts: Iterable[Mapping[str, Histogram]]
) -> dict[str, Any] | None:
    """Add up the histograms of a range's training events; return them as the manifest's ``histograms``.

    None where none are counted. Raise LedgerError unless each holds all training events of the ledger.
    """
    whole = add_up([no_counts(binnings), *parts])
    for name, histogram in whole.items():
        if histogram.events != ledger.events.train:
            raise LedgerError(
                f"the histogram of {name} holds {histogram.events} events, {ledger.events.train} are "
                "trained on; this is a fault in crpipe: keep the range's files and report it"
            )
    return {name: each.describe() for name, each in whole.items()} or None


def _check(report: FileReport, total: tuple[int, int], layout: Layout) -> None:
    counts = int(report.events.sum()), int(report.items.sum())
    if counts != total:
        raise LedgerError(
            f"{report.file.path}: the file's own totals are {layout.count(*total)}, but "
            f"{layout.count(*counts)} were read; have the file made again, or leave its range out with "
            "ranges.skip"
        )


def _counts(listed: int, destinations: NDArray[np.int64]) -> Counts:
    return Counts(listed=int(listed), **dict(zip(DESTINATIONS, destinations.tolist(), strict=True)))


def _row(report: FileReport) -> LedgerFile:
    if report.bad:
        return _aside(report.file, report.bad)
    events, items = int(report.events.sum()), int(report.items.sum())
    return replace(_aside(report.file, ""), state=report.file.state, events=events, items=items)


def _aside(file: RawFile, reason: str) -> LedgerFile:
    return LedgerFile(
        path=file.path,
        size=file.size,
        state=QUARANTINED,
        reason=reason,
        checksum=file.checksum,
        algorithm=file.algorithm,
        verified=file.verified,
        events=0,
        items=0,
    )
