"""What is settled about a source before any job: that it can be one, and how many files it holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crpipe.config.loading import AUTO
from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.journal import Journal
from crpipe.core.records import NumberedFiles
from crpipe.source.listing import names_of, settle_positions
from crpipe.source.positions import RecordedPositions, shown
from crpipe.source.retries import Deadline
from crpipe.source.side_tables import check_table_uris, check_tables
from crpipe.source.sources import open_source
from crpipe.source.uris import Kind, SourceOptions, SourcePattern

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.config.sections import RangesSection
    from crpipe.core.ranges import Range
    from crpipe.core.text import Progress


def check_source(config: Config) -> None:
    """Raise ConfigError, without asking the source, when it cannot be one or a local side table changed."""
    SourcePattern.of(config)
    check_table_uris(config.source.tables)
    check_tables(config.paths().tables(), config.source.tables)


def ensure_counted(campaign: Campaign, progress: Progress) -> None:
    """Count the files of the source when ``ranges.last`` is auto and nobody counted them yet."""
    if campaign.config.ranges.last != AUTO:
        return
    positions = RecordedPositions.of(campaign.paths)
    positions.check_source(SourcePattern.of(campaign.config).shown)
    if not positions.exist():
        with Journal(campaign.paths.data_journal()).attempt("count", ""):
            count_files(campaign, progress)


def count_files(campaign: Campaign, progress: Progress, *, grown: bool = False) -> int:
    """Record the last file number that the source holds, and return it.

    grown: files that were added after the last one are numbered, too. Raise ListingError when the files
    cannot be listed or are not those recorded before, ConfigError when ``ranges.first`` or ``ranges.step``
    do not fit them, or the source has no end. ``campaign.ranges`` is unknown before.
    """
    ranges, options = campaign.config.ranges, SourceOptions.of(campaign.config)
    pattern, positions = SourcePattern.of(campaign.config), RecordedPositions.of(campaign.paths)
    deadline = Deadline(options.deadline_s, "count of the files", progress.message)
    if pattern.kind is Kind.SIMULATED:
        raise ConfigError("ranges.last: auto: a simulator makes any number of files; set it to a number")
    if pattern.kind is Kind.RANGE_LISTS:
        raise ConfigError("ranges.last: auto: there is no last list of files; set it to a number")
    if pattern.kind is Kind.RANGES:
        names, last = _ranges(pattern, ranges, options, deadline)
        positions.settle(names, last, pattern.shown, progress, grown=grown)
    elif pattern.kind is Kind.NUMBERS:
        names, last = _numbers(pattern, ranges.first, names_of(options, pattern.whole(), deadline), progress)
        positions.settle(names, last, pattern.shown, progress, grown=grown)
    else:
        names = settle_positions(options, pattern, positions, deadline, progress, grown=grown)
        _check_first(ranges.first, len(names) - 1)
    recorded = NumberedFiles.read(positions.record).last
    progress.message(f"{pattern.shown}: file numbers {ranges.first} to {recorded}")
    return recorded


def _numbers(
    pattern: SourcePattern, first: int, files: list[str], progress: Progress
) -> tuple[list[str], int]:
    """Choose the files with a number, and return the largest number, too."""
    numbers = {number for name in files if (number := pattern.number_of(name)) is not None}
    last = max(numbers, default=-1)
    if last < first:
        raise _nothing(pattern, first)
    missing = [number for number in range(first, last) if number not in numbers]
    if missing:
        names = [pattern.file_name(number) for number in missing]
        progress.message(
            f"warning: {len(missing)} files are missing: {shown(names)}; list will refuse their ranges"
        )
    return [pattern.file_name(number) for number in sorted(numbers)], last


def _ranges(
    pattern: SourcePattern, ranges: RangesSection, options: SourceOptions, deadline: Deadline
) -> tuple[list[str], int]:
    """List the ranges that have a directory (or files), and return the last number, too."""
    place = pattern.whole()
    if pattern.ranges_are_folders():

        async def ask() -> list[str]:
            async with open_source(options, place.scheme, place.host, deadline) as source:
                return list(await source.folders(place))

        names = asyncio.run(ask())
    else:
        names = names_of(options, place, deadline)
    there = {pattern.range_of(name) for name in names}
    in_order = sorted(one for one in there if one is not None)
    last = in_order[-1].last if in_order else -1
    if last < ranges.first:
        raise _nothing(pattern, ranges.first)
    for one in in_order:
        if one.first >= ranges.first:
            _check_fit(ranges.first, ranges.step, one, last)
    return [str(one) for one in in_order], last


def _check_fit(first: int, step: int, one: Range, last: int) -> None:
    if (one.first - first) % step or one.last != min(one.first + step - 1, last):
        raise ConfigError(
            f"ranges.step: {step} from {first} on does not give range {one}, which the source holds; "
            "correct ranges.first and ranges.step"
        )


def _check_first(first: int, last: int) -> None:
    if first > last:
        raise ConfigError(f"ranges.first: {first}: the source holds files 0 to {last} only")


def _nothing(pattern: SourcePattern, first: int) -> ListingError:
    return ListingError(
        f"{pattern.shown}: nothing there matches, from number {first} (ranges.first) on; correct source.uri"
    )
