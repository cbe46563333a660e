"""Count the files of a source once, at the first listing, for ``ranges.last: auto``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.records import NumberedFiles
from crpipe.source.listing import names_of, settle_positions
from crpipe.source.positions import Positions, shown
from crpipe.source.retries import Deadline
from crpipe.source.sources import open_source
from crpipe.source.uris import Kind, SourcePattern

if TYPE_CHECKING:
    from crpipe.core.ranges import Range
    from crpipe.core.text import Progress
    from crpipe.source.uris import SourceOptions


@dataclass(frozen=True, slots=True)
class CountJob:
    """The count of a campaign's files; ``first`` and ``step`` are those of section ``ranges``.

    grown: files that were added after the last one are numbered, too.
    """

    pattern: SourcePattern
    first: int
    step: int
    positions: Positions
    source: SourceOptions
    grown: bool = False


def count_files(job: CountJob, progress: Progress) -> int:
    """Record the last file number that the source holds, and return it.

    Raise ListingError when the files cannot be listed or are not those recorded before, ConfigError when
    ``ranges.first`` or ``ranges.step`` do not fit them, or the source has no end.
    """
    kind = job.pattern.kind
    deadline = Deadline(job.source.deadline_s, "count of the files", progress.say)
    if kind is Kind.SIMULATED:
        raise ConfigError("ranges.last: auto: a simulator makes any number of files; set it to a number")
    if kind is Kind.RANGE_LISTS:
        raise ConfigError("ranges.last: auto: there is no last list of files; set it to a number")
    if kind is Kind.RANGES:
        _settle(job, *_ranges(job, deadline), progress)
    elif kind is Kind.NUMBERS:
        _settle(job, *_numbers(job, deadline, progress), progress)
    else:
        names = settle_positions(job.source, job.pattern, job.positions, deadline, progress, grown=job.grown)
        _check_first(job, len(names) - 1)
    last = NumberedFiles.read(job.positions.record).last
    progress.say(f"{job.pattern.shown}: file numbers {job.first} to {last}")
    return last


def _settle(job: CountJob, names: list[str], last: int, progress: Progress) -> None:
    job.positions.settle(names, last, job.pattern.shown, progress, grown=job.grown)


def _numbers(job: CountJob, deadline: Deadline, progress: Progress) -> tuple[list[str], int]:
    """Find the files with a number, and the largest number."""
    numbers = {
        number
        for name in names_of(job.source, job.pattern.whole(), deadline)
        if (number := job.pattern.number_of(name)) is not None
    }
    last = max(numbers, default=-1)
    if last < job.first:
        raise _nothing(job)
    missing = [number for number in range(job.first, last) if number not in numbers]
    if missing:
        files = [job.pattern.file_name(number) for number in missing]
        progress.say(
            f"warning: {len(missing)} files are missing: {shown(files)}; list will refuse their ranges"
        )
    return [job.pattern.file_name(number) for number in sorted(numbers)], last


def _ranges(job: CountJob, deadline: Deadline) -> tuple[list[str], int]:
    """Find the ranges that have a directory (or files), and the last number."""
    place = job.pattern.whole()
    if job.pattern.ranges_are_folders():

        async def ask() -> list[str]:
            async with open_source(job.source, place.scheme, place.host, deadline) as source:
                return list(await source.folders(place))

        names = asyncio.run(ask())
    else:
        names = names_of(job.source, place, deadline)
    found = {job.pattern.range_of(name) for name in names}
    ranges = sorted(one for one in found if one is not None)
    last = ranges[-1].last if ranges else -1
    if last < job.first:
        raise _nothing(job)
    for one in ranges:
        if one.first >= job.first:
            _check_fit(job, one, last)
    return [str(one) for one in ranges], last


def _check_fit(job: CountJob, one: Range, last: int) -> None:
    if (one.first - job.first) % job.step or one.last != min(one.first + job.step - 1, last):
        raise ConfigError(
            f"ranges.step: {job.step} from {job.first} on does not give range {one}, which the source holds; "
            "correct ranges.first and ranges.step"
        )


def _check_first(job: CountJob, last: int) -> None:
    if job.first > last:
        raise ConfigError(f"ranges.first: {job.first}: the source holds files 0 to {last} only")


def _nothing(job: CountJob) -> ListingError:
    return ListingError(
        f"{job.pattern.shown}: nothing there matches, from number {job.first} (ranges.first) on; correct "
        "source.uri"
    )
