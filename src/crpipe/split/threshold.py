"""The multiplicity above which an event is an outlier: a fixed number, or a quantile of reference ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from crpipe.core.errors import ConfigError, DataError, FormatError, ListingError
from crpipe.core.files import read_json, write_json
from crpipe.core.raw_files import STAGED, check_present, read_staged
from crpipe.events.layout import MULTIPLICITY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.core.progress import Progress
    from crpipe.events.layout import Layout
    from crpipe.split.readers import CheckedReader, ReaderChoice


@dataclass(frozen=True, slots=True)
class StagedRange:
    """A staged range that is only read: its staged table and the folder of its raw copies."""

    name: str
    staged: Path
    raw: Path


@dataclass(frozen=True, slots=True)
class ThresholdJob:
    """A threshold to choose: the ``quantile`` of the multiplicities in ``ranges``, written to ``target``."""

    target: Path
    quantile: float
    ranges: tuple[StagedRange, ...]
    reader: ReaderChoice
    on_bad_file: Literal["fail", "quarantine"]


def check_threshold(layout: Layout, threshold: int) -> None:
    """Raise ConfigError when the threshold makes an outlier of every event of a layout of fixed size."""
    if threshold < layout.fixed:
        raise ConfigError(
            f"split.threshold: {threshold} is below the {layout.fixed} {layout.item} of every event, so that "
            f"all would be outliers; set it to {layout.fixed} or more"
        )


def choose_threshold(job: ThresholdJob, progress: Progress) -> None:
    """Write the threshold that the job's quantile of the reference ranges' events do not exceed.

    Only the raw files of the reference ranges are read. A threshold that was already chosen for the same
    quantile and ranges is kept, so that it outlives the raw files. Raise ListingError when there are no
    events.
    """
    chosen = {"quantile": job.quantile, "ranges": [each.name for each in job.ranges]}
    if job.target.exists() and chosen.items() <= read_json(job.target).items():
        progress.say(f"{job.target}: already chosen")
        return
    reader = job.reader.open()
    counts: dict[int, int] = {}
    for each in job.ranges:
        for found in _scan(job, each, reader, progress):
            for value, events in zip(*np.unique(found, return_counts=True), strict=True):
                counts[int(value)] = counts.get(int(value), 0) + int(events)
    total = sum(counts.values())
    if not total:
        names = ", ".join(each.name for each in job.ranges)
        raise ListingError(f"split.reference_ranges: {names} hold no events; name other ranges")
    cut = quantile_of(counts, job.quantile)
    write_json(job.target, chosen | {"threshold": max(1, cut), "events": total})


def read_threshold(path: Path) -> int:
    """Read the threshold that ``choose_threshold`` wrote; raise DataError when it is missing or damaged."""
    chosen: dict[str, Any] = read_json(path)
    return int(chosen["threshold"])


def quantile_of(counts: dict[int, int], quantile: float) -> int:
    """Find the smallest value that at least the share ``quantile`` of the counted events do not exceed.

    Example: of {1: 5, 7: 4, 90: 1}, the quantile 0.9 is 7.
    """
    values = np.array(sorted(counts), np.int64)
    ends = np.cumsum([counts[int(value)] for value in values])
    return int(values[np.searchsorted(ends, quantile * ends[-1])])


def _scan(
    job: ThresholdJob, where: StagedRange, reader: CheckedReader, progress: Progress
) -> Iterator[NDArray[np.uint32]]:
    """Yield the multiplicities of all events of each file of a range that can be read."""
    files = [file for file in read_staged(where.staged) if file.state == STAGED]
    total = sum(file.size for file in files)
    done = 0
    for file in files:
        check_present(where.raw, file)
        try:
            yield np.concatenate(
                [
                    np.zeros(0, np.uint32),
                    *(events.multiplicity for events in reader.rows(where.raw / file.path)),
                ]
            )
        except FormatError as error:
            if job.on_bad_file == "fail":
                raise
            progress.say(f"left out of the threshold: {error}")
        done += file.size
        progress.advance(f"threshold {where.name}", done, total)


_LEAST_SHARE = 0.5  # thresholds that would set aside more than this share of the items are of no use
_PER_DECADE = 10
_MIB = 1 << 20


def suggest_threshold(tables: Sequence[Path], layout: Layout, batch_events: int) -> str:
    """Tabulate thresholds against what each would set aside, from the multiplicity tables of ranges.

    ``batch mean`` and ``batch + 3 sd`` are the memory of the items in a batch of bulk events. Raise DataError
    when there are no tables.
    """
    if not tables:
        raise DataError("no range is split yet; run `crpipe split` for at least one range first")
    values, events = _counted(tables)
    items = values * events
    rows: list[tuple[str, ...]] = [
        ("threshold", "events aside", f"{layout.item} aside", "batch mean", "batch + 3 sd")
    ]
    for threshold in _candidates(int(values.max(initial=0))):
        kept = values <= threshold
        aside = items[~kept].sum() / max(items.sum(), 1)
        if not kept.any() or aside > _LEAST_SHARE:
            continue
        weights = events[kept] / events[kept].sum()
        mean = float(weights @ values[kept])
        spread = float(np.sqrt(weights @ (values[kept] - mean) ** 2 * batch_events))
        counts = (mean * batch_events, mean * batch_events + 3 * spread)
        size = [f"{count * layout.item_bytes() / _MIB:.1f} MiB" for count in counts]
        share = events[~kept].sum() / events.sum()
        rows.append((str(threshold), f"{share:.3%}", f"{aside:.1%}", *size))
    return "\n".join([*_aligned(rows), f"batches of {batch_events} events (load.batch_events)"])


def _counted(tables: Sequence[Path]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the events of each multiplicity: distinct values [V] in ascending order, and events [V]."""
    import polars as pl  # noqa: PLC0415 - 0.1 s that only this verb needs

    counted = pl.scan_parquet(list(tables)).group_by(MULTIPLICITY).len().sort(MULTIPLICITY)
    found = counted.collect(engine="streaming")
    values, events = (found[name].to_numpy().astype(np.int64) for name in (MULTIPLICITY, "len"))
    return values, events


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


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
