"""The multiplicity above which an event is an outlier: a fixed number, or a quantile of reference ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow.parquet as pq

from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, FormatError, ListingError
from crpipe.core.files import read_json, write_json
from crpipe.core.raw_files import STAGED, check_present, read_staged
from crpipe.events.layout import MULTIPLICITY
from crpipe.events.split_record import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.core.progress import Progress
    from crpipe.events.layout import Layout
    from crpipe.events.split_record import SplitRecord
    from crpipe.split.readers import CheckedReader, ReaderChoice


@dataclass(frozen=True, slots=True)
class StagedRange:
    """A range that is only read: its staged table and the folder of its raw copies, gone once it is split."""

    name: str
    staged: Path
    raw: Path
    split: SplitRecord


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

    Only the reference ranges are read. A threshold that was already chosen for the same
    quantile and ranges is kept, so that it outlives the raw files. Raise ListingError when there are no
    events.
    """
    chosen = {"quantile": job.quantile, "ranges": [each.name for each in job.ranges]}
    if is_present(job.target) and chosen.items() <= read_json(job.target).items():
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
    """Yield the multiplicities of all events of the files that can be read; a split range has a table."""
    if where.split.is_whole():
        yield pq.read_table(where.split.folder / TABLE, columns=[MULTIPLICITY])[MULTIPLICITY].to_numpy()
        return
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
