"""Looks at raw files before a split: what a few of them hold, and which thresholds set how much aside."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.causes import OF_FORM, is_folder, is_present, refuse_machine_error
from crpipe.core.errors import DataError, FormatError
from crpipe.core.text import Column, table
from crpipe.events.file_formats import open_parquet, refuse_unread
from crpipe.events.layout import MULTIPLICITY
from crpipe.events.validity import find_invalid_events
from crpipe.split.grouping import MOST_ROWS, doubtful_groups
from crpipe.split.parts import add_counts, quantile_of
from crpipe.split.plausibility import EventSample, doubtful_values, summarize_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.readers import CheckedReader, ReaderChoice
    from crpipe.core.text import Progress
    from crpipe.split.plausibility import ColumnValues

SECONDS = 10.0
_LEFT = OF_FORM | {errno.ENOENT, errno.ENOTDIR}  # a name that was typed
_LEAST_SHARE = 0.5  # thresholds that would set aside more than this share of the items are of no use
_PER_DECADE = 10
_MIB = 1 << 20
_RECOMMENDED = 0.999  # share of the events that are no outliers
_QUANTILES = (0.5, 0.9, 0.99, 0.999, 0.9999)
_WIDTH = 110
_ITEM_BYTES = 4  # of items whose columns nobody named


@dataclass(frozen=True, slots=True)
class FileSample:
    """One raw file as the configured reader reads it, and how many events the files beside it have.

    name: path or URI. reader: what read it. columns: dtype of each column of the file, or of the layout.
    files, bytes, events, items: sums over the files that were counted. rows: events that were read;
    groups: how many groups they belong to; doubt: why the group columns look wrong, mostly empty; largest:
    items of the largest; below: share of them that are no outliers. notes: what the reader converted, or did
    not read. values: of each column, in the first events of the files that were counted; doubts: what looks
    wrong in them, and what to do.
    """

    name: str
    reader: str
    columns: Mapping[str, str]
    files: int
    bytes: int
    events: int
    items: int
    rows: int
    groups: int
    largest: int
    below: float
    notes: tuple[str, ...] = ()
    doubt: str = ""
    values: tuple[ColumnValues, ...] = ()
    doubts: tuple[str, ...] = ()


@dataclass(slots=True)
class _Rows:
    """What was read of one file. first: columns of the first blocks; reason: of the first illegal event."""

    multiplicities: list[NDArray[np.uint32]] = field(default_factory=lambda: [np.zeros(0, np.uint32)])
    groups: set[bytes] = field(default_factory=set)
    first: list[Mapping[str, NDArray[Any]]] = field(default_factory=list)
    illegal: int = 0
    reason: str = ""


def read_sample(
    choice: ReaderChoice, files: Sequence[Path], limit: int | None = None, seconds: float = SECONDS
) -> tuple[FileSample, str]:
    """Read the first file (as much as the time allows, at least one block), and count the others.

    The first block of the others is read too, as far as the time allows, for a look at their values.

    limit: most items of an event that is no outlier. Also return which of its values are illegal, and how
    many; empty where the split would take all. Raise FormatError or PluginError for a file that the reader
    cannot read.
    """
    end = time.monotonic() + seconds
    reader = choice.open()
    values = EventSample(reader.layout, reader.expectations, len(files))
    rows = _read_rows(reader, files[0], end, values)
    counts = np.concatenate(rows.multiplicities)
    counted = taken = events = items = 0
    for path in files:
        if counted and time.monotonic() > end:
            break
        totals = reader.totals(path)
        events, items = events + totals[0], items + totals[1]
        counted, taken = counted + 1, taken + path.stat().st_size
        if path != files[0] and time.monotonic() < end - seconds / 2:
            values.add_file()
            for block in islice(reader.rows(path), 1):
                values.add(block)
    names = rows.first[0] if rows.first else ()
    columns = {name: np.concatenate([block[name] for block in rows.first]) for name in names}
    sample = FileSample(
        name=str(files[0]),
        reader=choice.name,
        columns=_columns_of(files[0], reader),
        files=counted,
        bytes=taken,
        events=events,
        items=items,
        rows=len(counts),
        groups=len(rows.groups),
        largest=int(counts[counts <= limit].max(initial=0)) if limit else int(counts.max(initial=0)),
        below=float((counts <= limit).mean()) if limit is not None and len(counts) else 1.0,
        notes=tuple(reader.notes),
        doubt=doubtful_groups(columns, reader.layout),
        values=summarize_columns(values),
        doubts=tuple(doubtful_values(values)),
    )
    share = f"{rows.illegal} of the {len(counts)} events that were read are illegal"
    return sample, f"{rows.reason} ({share})" if rows.illegal else ""


def _columns_of(path: Path, reader: CheckedReader) -> dict[str, str]:
    """Name the columns of a Parquet file with their types; for other files, those that the reader gives."""
    try:
        return {each.name: str(each.type) for each in pq.read_schema(path)}
    except (pa.ArrowException, OSError):
        layout = reader.layout
        events = {each.name: each.dtype for each in layout.events}
        return events | {f"{layout.item}.{each.name}": each.dtype for each in layout.items}


def _read_rows(reader: CheckedReader, path: Path, end: float, values: EventSample) -> _Rows:
    """Read a file until the time is over, at least one block; check its values as the split does.

    values: gets its first events.
    """
    rows, row = _Rows(), 0
    values.add_file()
    for block in reader.rows(path):
        values.add(block)
        if row < MOST_ROWS:
            rows.first.append(block.columns)
        rows.multiplicities.append(block.multiplicity)
        columns = [np.ascontiguousarray(block.columns[name]) for name in reader.layout.group]
        rows.groups.update(group.tobytes() for group in np.unique(np.rec.fromarrays(columns)))
        reasons = find_invalid_events(block, reader.layout, reader.expectations)
        if reasons and not rows.reason:
            first = min(reasons)
            rows.reason = f"row {row + first}: {reasons[first]}"
        rows.illegal += len(reasons)
        row += len(block)
        if time.monotonic() > end:
            break
    return rows


# Thresholds: from ranges that are split, or from raw files before that.


def suggest_threshold(campaign: Campaign) -> str:
    """Tabulate thresholds against what each would set aside, from the multiplicity tables of split ranges.

    Raise DataError when there are no tables.
    """
    import polars as pl  # noqa: PLC0415 - 0.1 s that only this verb needs

    tables = [path for name in campaign.ranges if is_present(path := campaign.paths.multiplicity(name))]
    if not tables:
        raise DataError(
            "no range is split yet; name raw files (`crpipe outliers suggest FILE …`), or run `crpipe split` "
            "first"
        )
    counted = pl.scan_parquet(tables).group_by(MULTIPLICITY).len().collect(engine="streaming")
    layout, batch_events = campaign.layout, campaign.config.load.batch_events
    return "\n".join(_thresholds(dict(counted.iter_rows()), layout.item, layout.item_bytes(), batch_events))


def suggest_from_files(
    files: Sequence[Path], choice: ReaderChoice | None, batch_events: int, progress: Progress
) -> str:
    """Tabulate the same from raw files, with quantiles and a threshold to paste into the configuration.

    The files are read by ``choice``; without a reader they are Parquet with one column of lists. Directories
    stand for the files in them. Raise FormatError for a file that cannot be read, DataError without events.
    """
    paths = [path for given in files for path in _files_of(given)]
    reader = None if choice is None else choice.open()
    counts: dict[int, int] = {}
    for done, path in enumerate(paths, start=1):
        blocks = (
            _list_lengths(path) if reader is None else (block.multiplicity for block in reader.rows(path))
        )
        for multiplicities in blocks:
            add_counts(counts, multiplicities)
        progress.update("read", done, len(paths), path.name)
    total = sum(counts.values())
    if not total:
        raise DataError(f"{', '.join(map(str, files))}: no events; name other files")
    layout = None if reader is None else reader.layout
    item, item_bytes = ("items", _ITEM_BYTES) if layout is None else (layout.item, layout.item_bytes())
    quantiles = [str(quantile_of(counts, share)) for share in _QUANTILES]
    shares = [f"{share:.2%}" for share in _QUANTILES]
    columns = {"share of events": [*shares, "all"], item: [*quantiles, str(max(counts))]}
    return "\n".join(
        [
            f"{total} events in {len(paths)} files, {counts.get(0, 0) / total:.0%} without {item}",
            *_aligned(columns),
            "",
            *_thresholds(counts, item, item_bytes, batch_events),
            "",
            *_recommended(counts),
        ]
    )


def recommended_threshold(counts: dict[int, int]) -> tuple[int, float]:
    """Return the smallest tabulated threshold that at most one of a thousand events exceeds, and which share.

    counts: events by multiplicity, not empty.
    """
    least = quantile_of(counts, _RECOMMENDED)
    threshold = next(value for value in _candidates(max(least, 1)) if value >= least)
    aside = sum(events for value, events in counts.items() if value > threshold) / sum(counts.values())
    return threshold, aside


def _recommended(counts: dict[int, int]) -> Iterator[str]:
    """Yield what to paste for the recommended threshold."""
    threshold, aside = recommended_threshold(counts)
    yield f"recommended: at most 0.1% of the events are set aside (here {aside:.3%}); to paste:"
    yield "split:"
    yield f"  threshold: {threshold}"


def _files_of(given: Path) -> list[Path]:
    if not is_folder(given):
        return [given]
    paths = sorted(path for path in given.iterdir() if path.is_file() and path.name[0] != ".")
    if not paths:
        raise DataError(f"{given}: no files in this directory; name others")
    return paths


def _list_lengths(path: Path) -> Iterator[NDArray[np.int64]]:
    """Yield the lengths of the lists of the one column that has lists, or of the one with lists of lists."""
    try:
        with open_parquet(path) as file:
            refuse_unread(path, file.metadata)
            name = _list_column(path, file.schema_arrow)
            for batch in file.iter_batches(1024, columns=[name], use_threads=False):
                yield pc.fill_null(pc.list_value_length(batch.column(0)), 0).to_numpy(zero_copy_only=False)
    except (OSError, pa.ArrowException) as error:
        refuse_machine_error(error, path, _LEFT, _LEFT)
        raise FormatError(
            f"{path}: cannot be read as Parquet ({error}); name its reader with --set "
            "source.reader=module:Name"
        ) from error


def _list_column(path: Path, schema: pa.Schema) -> str:
    lists = [field for field in schema if pa.types.is_list(field.type) or pa.types.is_large_list(field.type)]
    nested = [field for field in lists if pa.types.is_nested(field.type.value_type)]
    for fields in (nested, lists):
        if len(fields) == 1:
            return str(fields[0].name)
    names = ", ".join(field.name for field in lists) or "none"
    raise FormatError(
        f"{path}: expected one column with a list of items, found {names} of {', '.join(schema.names)}; name "
        "the reader of its format with --set source.reader=module:Name"
    )


def _thresholds(counts: Mapping[int, int], item: str, item_bytes: int, batch_events: int) -> list[str]:
    """Tabulate thresholds; ``batch mean`` and ``batch + 3 sd`` are the memory of a bulk batch's items.

    One that sets aside no fewer events than the one before is left out.
    """
    values, events = np.array(sorted(counts.items()), np.int64).reshape(-1, 2).T
    items = values * events
    titles = ("threshold", "events aside", f"{item} aside", "batch mean", "batch + 3 sd")
    columns: dict[str, list[str]] = {title: [] for title in titles}
    before: list[str] = []
    for threshold in _candidates(int(values.max(initial=0))):
        kept = values <= threshold
        aside = items[~kept].sum() / max(items.sum(), 1)
        if not kept.any() or aside > _LEAST_SHARE:
            continue
        weights = events[kept] / events[kept].sum()
        mean = float(weights @ values[kept])
        spread = float(np.sqrt(weights @ (values[kept] - mean) ** 2 * batch_events))
        sizes = (mean * batch_events, mean * batch_events + 3 * spread)
        row = [str(threshold), f"{events[~kept].sum() / events.sum():.3%}", f"{aside:.1%}"]
        row += [f"{size * item_bytes / _MIB:.1f} MiB" for size in sizes]
        if row[1:] == before:
            continue
        before = row[1:]
        for column, cell in zip(columns.values(), row, strict=True):
            column.append(cell)
    return [*_aligned(columns), f"batches of {batch_events} events (load.batch_events)"]


def _candidates(largest: int) -> Iterator[int]:
    """Yield ten thresholds a decade, up to the first that no event exceeds."""
    last = 0
    for step in range(1, 200):
        threshold = round(10 ** (step / _PER_DECADE))
        if threshold > last:
            yield threshold
            last = threshold
        if threshold >= largest:
            return


def _aligned(columns: Mapping[str, Sequence[str]]) -> list[str]:
    return table([Column(title, cells, right=True) for title, cells in columns.items()], _WIDTH)
