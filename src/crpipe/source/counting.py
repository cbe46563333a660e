"""What is settled about a source before any job: that it can be one, and how many files it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.config.loading import AUTO, Config
from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.journal import Journal
from crpipe.core.ranges import Range
from crpipe.core.records import NumberedFiles
from crpipe.core.text import counted
from crpipe.source.positions import RecordedPositions, shown
from crpipe.source.range_files import SourceFiles
from crpipe.source.retries import Deadline
from crpipe.source.side_tables import check_table_uris, check_tables
from crpipe.source.uris import Kind, SourceOptions, SourcePattern

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign
    from crpipe.config.sections import RangesSection
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
    cannot be listed or are not those recorded before, ConfigError when ``ranges.first`` or ``ranges.size``
    do not fit them, or the source has no end. ``campaign.ranges`` is unknown before.
    """
    config, ranges = campaign.config, campaign.config.ranges
    options, pattern = SourceOptions.of(config), SourcePattern.of(config)
    positions = RecordedPositions.of(campaign.paths)
    deadline = Deadline(options.deadline_s, "count of the files", progress.message)
    files = SourceFiles(pattern, options, deadline, progress, positions)
    if pattern.kind is Kind.SIMULATED:
        raise ConfigError("ranges.last: auto: a simulator makes any number of files; set it to a number")
    if pattern.kind is Kind.RANGE_LISTS:
        raise ConfigError("ranges.last: auto: there is no last list of files; set it to a number")
    if pattern.kind is Kind.RANGES:
        names = _range_names(files, ranges)
        positions.record_or_check(names, Range.parse(names[-1]).last, pattern.shown, progress, grown=grown)
    elif pattern.kind is Kind.NUMBERS:
        numbers = _numbers(files, ranges.first, progress)
        names = [pattern.file_name(number) for number in numbers]
        positions.record_or_check(names, numbers[-1], pattern.shown, progress, grown=grown)
    else:
        _check_first(ranges.first, len(files.by_position(grown=grown)) - 1)
    recorded = NumberedFiles.read(positions.record).last
    progress.message(f"{pattern.shown}: file numbers {ranges.first} to {recorded}")
    return recorded


def _numbers(files: SourceFiles, first: int, progress: Progress) -> list[int]:
    """Read the numbers of all files, and report those that are missing."""
    numbers = files.numbers()
    if not numbers or numbers[-1] < first:
        raise _nothing(files.pattern, first)
    missing = sorted({*range(first, numbers[-1])} - {*numbers})
    if missing:
        names = [files.pattern.file_name(number) for number in missing]
        progress.message(
            f"warning: {counted(len(missing), 'file')} missing: {shown(names)}; list will refuse their ranges"
        )
    return numbers


def _range_names(files: SourceFiles, ranges: RangesSection) -> list[str]:
    """Name the ranges that have a directory (or files), in order."""
    there = files.ranges()
    if not there or there[-1].last < ranges.first:
        raise _nothing(files.pattern, ranges.first)
    for one in there:
        if one.first >= ranges.first:
            _check_fit(ranges.first, ranges.size, one, there[-1].last)
    return [str(one) for one in there]


def _check_fit(first: int, step: int, one: Range, last: int) -> None:
    if (one.first - first) % step or one.last != min(one.first + step - 1, last):
        raise ConfigError(
            f"ranges.size: {step} from {first} on does not give range {one}, which the source holds; "
            "correct ranges.first and ranges.size"
        )


def _check_first(first: int, last: int) -> None:
    if first > last:
        raise ConfigError(f"ranges.first: {first}: the source holds files 0 to {last} only")


def _nothing(pattern: SourcePattern, first: int) -> ListingError:
    return ListingError(
        f"{pattern.shown}: nothing there matches, from number {first} (ranges.first) on; correct source.uri"
    )
