"""First half of a split: decodes raw files once and sends each event to its destination.

A list of raw files comes in; spilled events, one table row per event and a report per file go out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from crpipe.campaign.raw_proofs import check_present, confirmed, proved
from crpipe.core.causes import MachineWatch
from crpipe.core.errors import FormatError
from crpipe.core.paths import DESTINATIONS
from crpipe.events.batch import Events, offsets
from crpipe.events.histograms import Binning, Histogram, add_up, count_columns
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW, Layout
from crpipe.events.validity import find_invalid_events
from crpipe.split.hashing import bucket_of, event_hashes, numbers_path, shuffle_keys
from crpipe.split.parts import OUTLIER_OFFSET, REJECTED, TRAIN, Parts
from crpipe.split.plausibility import EventSample, doubtful_values
from crpipe.split.spill import Block, OutlierSegment, SpillWriter
from crpipe.split.workers import return_freed_memory, working_on

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.raw_files import RawFile
    from crpipe.campaign.readers import CheckedReader, ReaderChoice

RETURNED = 256 << 20  # bytes of the items of one file after which freed memory is returned to the system


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides an event's destination and bucket.

    buckets: how many each part has, in the order of PARTS; outliers are in none.
    spans: how many parts of about the same size the buckets are divided into.
    files: the part of each file that is held out whole, by its number.
    histograms: how the training events' values are binned, by column.
    """

    reader: ReaderChoice
    seed: int
    threshold: int
    parts: Parts
    buckets: tuple[int, ...]
    files: Mapping[int, int] = field(default_factory=dict)
    histograms: Mapping[str, Binning] = field(default_factory=dict)
    spans: int = 1

    def first_buckets(self) -> NDArray[np.int64]:
        """First bucket of each part, and the end: [P + 1]."""
        return offsets(np.array(self.buckets))

    def first_of_spans(self) -> NDArray[np.int64]:
        """First bucket of each span, and the end: [S + 1]."""
        return np.unique(np.linspace(0, sum(self.buckets), self.spans + 1).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Task:
    """One worker's share: consecutive raw files, and the number of the spill they go to."""

    number: int
    raw: Path
    spills: Path
    files: tuple[RawFile, ...]
    rules: Rules


@dataclass(slots=True)
class FileReport:
    """What became of one raw file; ``bad`` is why none of its events were taken.

    events, items: counted per destination. rejected: (row, reason, items) of each rejected event.
    weights: sums of all events that have a finite weight, then per destination; zeros without weights.
    """

    file: RawFile
    bad: str = ""
    events: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(DESTINATIONS), np.int64))
    items: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(DESTINATIONS), np.int64))
    rejected: list[tuple[int, str, int]] = field(default_factory=list)
    weights: list[float] = field(default_factory=lambda: [0.0] * (1 + len(DESTINATIONS)))


@dataclass(frozen=True, slots=True)
class ScatterResult:
    """A finished task; histograms: those of the training events of all its good files.

    doubts: what looks wrong in the first events of the first task, mostly nothing.
    """

    number: int
    files: list[FileReport]
    blocks: list[Block]
    outliers: list[OutlierSegment]
    histograms: dict[str, Histogram] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


def table_path(spills: Path, number: int) -> Path:
    """Arrow stream with one row per event of a finished task, in the order of the source."""
    return spills / f"{number:04d}.table"


def known_columns(layout: Layout) -> tuple[str, ...]:
    """Event columns of that table: the group, and the weight."""
    weight = (layout.weight,) if layout.weight and layout.weight not in layout.group else ()
    return (*layout.group, *weight)


def table_schema(layout: Layout) -> pa.Schema:
    """Columns of that table."""
    kinds = {each.name: each.dtype for each in layout.events}
    return pa.schema(
        [
            pa.field(SOURCE_FILE, pa.uint32(), nullable=False),
            pa.field(SOURCE_ROW, pa.uint32(), nullable=False),
            *(
                pa.field(name, pa.from_numpy_dtype(np.dtype(kinds[name])), nullable=False)
                for name in known_columns(layout)
            ),
            pa.field(MULTIPLICITY, pa.uint32(), nullable=False),
            pa.field("destination", pa.int8(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
        ]
    )


def count_file(
    raw: Path, choice: ReaderChoice, reader: CheckedReader | None, file: RawFile
) -> tuple[int, int] | str:
    """Count events and items of a raw file by its own account; the text of a FormatError where it has none.

    reader: ``choice`` opened; None in a process of its own, which opens it. Raise SourceError for a file that
    is not what was staged.
    """
    path = raw / file.ready.path
    working_on(path)
    check_present(raw, file)
    opened = reader or choice.open()
    try:
        return confirmed(raw, file, lambda: opened.totals(path))
    except FormatError as error:
        return str(error)


def scatter(task: Task) -> ScatterResult:
    """Send the events of the task's files to their buckets; nothing is kept of a bad file.

    Raise DiskError when the temporary files cannot be written.
    """
    with MachineWatch(task.spills):
        return _scatter(task)


def _scatter(task: Task) -> ScatterResult:
    reader = task.rules.reader.open()
    schema = table_schema(reader.layout)
    reports: list[FileReport] = []
    histograms: dict[str, Histogram] = {}
    sample = EventSample(reader.layout, reader.expectations)
    if task.number == 0:
        sample.add_file()
    spill = SpillWriter(task.spills, task.number, reader.layout, task.rules.first_of_spans())
    try:
        with (
            pa.ipc.new_stream(table_path(task.spills, task.number), schema) as table,
            numbers_path(task.spills, task.number).open("wb") as numbers,
        ):
            for file in task.files:
                working_on(task.raw / file.ready.path)
                with proved(task.raw, file) as proof:
                    try:
                        read = partial(_scatter_file, task, proof, reader, spill, numbers, sample)
                        report, batches, counted = confirmed(task.raw, proof, read)
                    except FormatError as error:
                        report, batches, counted = FileReport(proof, bad=str(error)), [], {}
                reports.append(report)
                histograms = add_up([histograms, counted])
                for batch in batches:
                    table.write_batch(batch)
        return ScatterResult(task.number, reports, *spill.finish(), histograms, doubtful_values(sample))
    finally:
        spill.close()


def _scatter_file(
    task: Task,
    file: RawFile,
    reader: CheckedReader,
    spill: SpillWriter,
    numbers: BinaryIO,
    sample: EventSample,
) -> tuple[FileReport, list[pa.RecordBatch], dict[str, Histogram]]:
    report = FileReport(file)
    batches: list[pa.RecordBatch] = []
    counted: dict[str, Histogram] = {}
    row, begin, passed = 0, numbers.tell(), 0
    try:
        for events in reader.rows(task.raw / file.ready.path):
            numbers.write(event_hashes(events, reader.layout).tobytes())
            rows = np.arange(row, row + len(events), dtype=np.uint32)
            source = {SOURCE_FILE: np.full(len(events), file.number, np.uint32), SOURCE_ROW: rows}
            known = Events(events.columns | source, events.multiplicity, events.items)
            sample.add(events)
            reasons = find_invalid_events(events, reader.layout, reader.expectations)
            destinations = _destinations(known, reasons, task.rules, reader.layout, file.number)
            _count(report, known, destinations, reasons)
            if reader.layout.weight:
                _weigh(report, events.columns[reader.layout.weight], destinations)
            counted = add_up([counted, _histograms(events, destinations, task.rules)])
            batches.append(_table(known, destinations, reasons, reader.layout))
            _spill(known, destinations, task.rules, file.number, spill)
            row += len(events)
            # A few kB stay in memory for each block, in the place of the block before, so that the next block
            # does not fit there: a file of 3 GB took 3 GB, most of it free.
            passed += events.items.nbytes
            if passed >= RETURNED:
                return_freed_memory()
                passed = 0
    except FormatError:
        spill.forget()
        numbers.seek(begin)
        numbers.truncate()
        raise
    spill.keep()
    return report, batches, counted


def _destinations(
    events: Events, reasons: dict[int, str], rules: Rules, layout: Layout, file: int
) -> NDArray[np.int8]:
    """Decide for each event: its part, whether it is an outlier of it (above the threshold), or rejected."""
    if file in rules.files:
        result = np.full(len(events), rules.files[file], np.int8)
    else:
        result = rules.parts.of_groups([events.columns[name] for name in layout.group], rules.seed)
    result[events.multiplicity > rules.threshold] += OUTLIER_OFFSET
    result[list(reasons)] = REJECTED
    return result


def _count(
    report: FileReport, events: Events, destinations: NDArray[np.int8], reasons: dict[int, str]
) -> None:
    count = len(DESTINATIONS)
    report.events += np.bincount(destinations, minlength=count)
    sums = np.bincount(destinations, events.multiplicity, minlength=count)  # exact up to 2^53
    report.items += sums.astype(np.int64)
    rows = events.columns[SOURCE_ROW]
    report.rejected += [
        (int(rows[at]), why, int(events.multiplicity[at])) for at, why in sorted(reasons.items())
    ]


def _histograms(events: Events, destinations: NDArray[np.int8], rules: Rules) -> dict[str, Histogram]:
    """Count the values of training events."""
    trained = destinations == TRAIN
    columns = {name: events.columns[name][trained] for name in rules.histograms}
    return count_columns(columns, rules.histograms)


def _weigh(report: FileReport, weights: NDArray[Any], destinations: NDArray[np.int8]) -> None:
    values = weights.astype(np.float64)
    finite = np.isfinite(values)  # a rejected event may have an impossible weight
    chosen = [finite, *(finite & (destinations == code) for code in range(len(DESTINATIONS)))]
    for index, mask in enumerate(chosen):
        report.weights[index] = math.fsum([report.weights[index], *values[mask].tolist()])


def _table(
    events: Events, destinations: NDArray[np.int8], reasons: dict[int, str], layout: Layout
) -> pa.RecordBatch:
    texts: Any = pa.repeat("", len(events))
    if reasons:
        texts = [reasons.get(index, "") for index in range(len(events))]
    names = (SOURCE_FILE, SOURCE_ROW, *known_columns(layout))
    arrays = [*(events.columns[name] for name in names), events.multiplicity, destinations, texts]
    schema = table_schema(layout)
    return pa.record_batch([pa.array(values) for values in arrays], schema=schema)


def _spill(
    events: Events, destinations: NDArray[np.int8], rules: Rules, source: int, spill: SpillWriter
) -> None:
    outliers = (destinations >= OUTLIER_OFFSET) & (destinations != REJECTED)
    for code in np.unique(destinations[outliers]).tolist():
        spill.write(_part(events, np.flatnonzero(destinations == code)), source, DESTINATIONS[code])
    bulk = np.flatnonzero(destinations < OUTLIER_OFFSET)
    if not len(bulk):
        return
    events, destinations = _part(events, bulk), destinations[bulk]
    keys = shuffle_keys(events.columns[SOURCE_FILE], events.columns[SOURCE_ROW], rules.seed)
    counts = np.array(rules.buckets, np.uint64)[destinations]
    spill.hold(events, rules.first_buckets()[destinations] + bucket_of(keys, counts))


def _part(events: Events, index: NDArray[np.int64]) -> Events:
    """Take some events; all of them, a giant among them, without a copy."""
    return events.take(index) if len(index) < len(events) else events
