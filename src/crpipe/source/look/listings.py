"""Lists what a source holds now, within a time limit, and writes nothing: for `crpipe plan`."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import natural_key
from crpipe.core.errors import CrpipeError, ListingError, OutageError
from crpipe.core.ranges import PATTERN as RANGE_NAME
from crpipe.source.listing import described, entries_of, names_of, read_list, relative
from crpipe.source.look.folders import is_folder, names_in, usual_pattern
from crpipe.source.positions import natural_order, shown
from crpipe.source.retries import Deadline, TemporaryFailure
from crpipe.source.uris import FEDERATIONS, RANGE, Kind, SourceOptions, SourcePattern, scheme_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.campaign.raw_files import Entry
    from crpipe.config.loading import Config
    from crpipe.core.ranges import Range
    from crpipe.source.uris import RangeSource

REMOTE_S = 20.0  # for the first range of a federation
LOCAL_S = 20.0  # for all ranges of a directory tree
_ATTEMPTS = 2  # a person waits
_WORST = 3  # missing ranges that are named one by one


@dataclass(slots=True)
class Listings:
    """What was found: the files of each listed range; what was not listed and why; what is wrong."""

    found: dict[str, list[Entry]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class LookDeadline(Deadline):
    """A deadline whose error says that the source did not answer, in place of how a job goes on."""

    def __init__(self, seconds: float, what: str) -> None:
        super().__init__(seconds, what)
        self._seconds = seconds

    def passed(self, reason: str) -> OutageError:
        """Make the error of a source that did not answer in time."""
        return OutageError(f"no answer within {self._seconds:g} s ({reason or 'the first try still ran'})")


def is_remote(config: Config, ranges: Sequence[Range]) -> bool:
    """Return whether the files are in a federation."""
    pattern = SourcePattern.of(config)
    uri = pattern.uri
    if pattern.kind in {Kind.FLAT_LIST, Kind.RANGE_LISTS}:
        name = ranges[0] if pattern.kind is Kind.RANGE_LISTS else None
        uri = next(iter(read_list(pattern.list_file(name))), uri)
    return scheme_of(uri) in FEDERATIONS


def quick_options(config: Config) -> SourceOptions:
    """Return how the source is asked while a person waits: with few attempts."""
    return replace(SourceOptions.of(config), attempts=_ATTEMPTS)


def look(config: Config, ranges: Sequence[Range], *, offline: bool = False) -> Listings:
    """List all of the ranges in a local source, and the first one in a remote source.

    An unreachable source is a warning. A directory that is not there, or holds too few files, is a problem.
    """
    result = Listings()
    if SourcePattern.of(config).kind is Kind.SIMULATED:
        result.notes.append("nothing: a simulator makes the files when they are staged")
        return result
    if not ranges:
        result.notes.append("nothing new: every range is listed")
        return result
    remote = is_remote(config, ranges)
    if offline and remote:
        result.notes.append("nothing: --offline skips a remote source")
    elif remote:
        _look_at_first(config, ranges, result)
    else:
        _look_at_all(config, ranges, result)
    return result


def _look_at_first(config: Config, ranges: Sequence[Range], result: Listings) -> None:
    name = ranges[0]
    deadline = LookDeadline(REMOTE_S, f"range {name}")
    try:
        result.found[str(name)] = _Finder(config, deadline, remote=True).files(name)
    except ListingError as error:
        # What the source answers is wrong for good; that it does not answer may pass.
        if deadline.left() and not isinstance(error.__cause__, TemporaryFailure):
            result.problems.append(str(error))
        else:
            result.warnings += _unread(error)
    except CrpipeError as error:
        result.warnings += _unread(error)
    else:
        rest = len(ranges) - 1
        result.notes += [f"{rest} more ranges of this remote source are not listed yet"] if rest else []


def _unread(error: CrpipeError) -> list[str]:
    why = str(error).partition("; ")[0]
    way = "`crpipe token` shows whether a token is missing, `crpipe plan --offline` skips this"
    return [f"the source was not read: {why}; {way}"]


def _look_at_all(config: Config, ranges: Sequence[Range], result: Listings) -> None:
    deadline = LookDeadline(LOCAL_S, "the source")
    finder = _Finder(config, deadline, remote=False)
    wrong: dict[str, str] = {}
    for done, name in enumerate(ranges):
        if not deadline.left():
            rest = len(ranges) - done
            result.notes.append(f"{rest} other ranges were not listed within {LOCAL_S:g} s")
            break
        try:
            result.found[str(name)] = finder.files(name)
        except ListingError as error:
            wrong[str(name)] = str(error)
            if not result.found:
                break
    result.problems += list(wrong.values())[:_WORST]
    if len(wrong) > _WORST:
        result.problems.append(f"{len(wrong) - _WORST} more ranges like these: {shown(list(wrong)[_WORST:])}")
    if wrong and result.found:
        result.problems.append(
            f"{len(result.found)} ranges are there, up to {list(result.found)[-1]}: set ranges.last to "
            f"{list(result.found)[-1].partition('-')[2].lstrip('0') or '0'} if that is all, or ranges.skip"
        )


class _Finder:
    """Lists one range after the other; what is the same for all of them is asked once."""

    def __init__(self, config: Config, deadline: Deadline, *, remote: bool) -> None:
        self._pattern = SourcePattern.of(config)
        self._options = quick_options(config)
        self._least, self._most = max(1, config.source.min_files), config.source.max_files or None
        self._deadline = deadline
        self._remote = remote

    def files(self, name: Range) -> list[Entry]:
        """List the files of one range; raise ListingError for fewer than there should be."""
        pattern = self._pattern
        try:
            entries = sorted(self._entries(name), key=lambda entry: natural_key(entry.path))
        except ListingError as error:
            hint = self._hint(name)
            if not hint:
                raise
            general = f"; {pattern.place(name).remedy}"  # the hint says which of it helps
            raise ListingError(f"{str(error).removesuffix(general)}; {hint}") from error
        if len(entries) < self._least:
            raise ListingError(
                f"range {name}: {len(entries)} files match {pattern.shown}, at least {self._least} "
                f"needed (source.min_files); {self._hint(name) or 'correct source.uri'}"
            )
        if pattern.kind is Kind.NUMBERS:
            self._check_numbers(name, entries)
        return entries[: self._most]

    def _entries(self, name: Range) -> Sequence[Entry]:
        pattern, options = self._pattern, self._options
        if pattern.kind is Kind.RANGES:
            place = pattern.place(name)
            return entries_of(options, place, place.has, self._deadline)
        if pattern.kind is Kind.NUMBERS:
            return self._numbered(name)
        if pattern.kind is Kind.RANGE_LISTS:
            files = read_list(pattern.list_file(name))[: self._most]
            return described(options, files, relative(files), "source.files", self._deadline)
        chosen = self._names[name.first : name.last + 1]
        if self._names and len(chosen) <= name.last - name.first:
            raise ListingError(
                f"range {name}: {pattern.shown} holds {len(self._names)} files, numbers 0 to "
                f"{len(self._names) - 1}; set ranges.last to {max(0, len(self._names) - 1)}, or to auto"
            )
        if pattern.kind is Kind.FLAT_LIST:
            return described(options, chosen, relative(chosen), "source.files", self._deadline)
        return entries_of(options, pattern.whole(), frozenset(chosen).__contains__, self._deadline)

    def _numbered(self, name: Range) -> Sequence[Entry]:
        """List the files whose names hold the numbers of the range."""
        wanted = frozenset(self._numbers(name))
        place = self._pattern.place(name)
        return entries_of(self._options, place, wanted.__contains__, self._deadline)

    def _numbers(self, name: Range) -> list[str]:
        return [self._pattern.file_name(number) for number in range(name.first, name.last + 1)]

    def _check_numbers(self, name: Range, entries: Sequence[Entry]) -> None:
        """Raise ListingError unless every number is there."""
        found = {entry.path for entry in entries}
        wanted = self._numbers(name)
        missing = [file for file in wanted if file not in found]
        if missing:
            raise ListingError(
                f"range {name}: {len(missing)} of {len(wanted)} files are missing in "
                f"{self._pattern.place(name).folder}: {shown(missing)}; correct ranges.first, "
                "ranges.last or ranges.step, or write a pattern with * to take the files that exist"
            )

    @cached_property
    def _names(self) -> list[str]:
        """All files of a flat source, by their numbers."""
        pattern = self._pattern
        if pattern.kind is Kind.FLAT_LIST:
            return natural_order(read_list(pattern.list_file(None)))
        return names_of(self._options, pattern.whole(), self._deadline)

    def _is_numbered(self) -> bool:
        """Return whether a flat source has files: then their number is wrong, not their place."""
        try:
            return self._pattern.kind is Kind.FLAT and bool(self._names)
        except ListingError:
            return False

    def _hint(self, name: Range) -> str:
        """Describe what is there in place of the files of a range, and what to write."""
        if self._pattern.files or self._remote or self._is_numbered():
            return ""
        return hint_of(self._pattern, self._pattern.place(name))


def hint_of(pattern: SourcePattern, place: RangeSource) -> str:
    """Describe what a local directory holds in place of the expected files, and what to write.

    Example: for /data/{range} with the directory /data/0000000-0000009 it names /data/{range}/*.parquet.
    """
    whole = Path(place.folder) / place.pattern
    if is_folder(whole):
        names = _names(whole)
        below = next((whole / name for name in names if RANGE_NAME.fullmatch(name)), None)
        inside = f"{RANGE}/{usual_pattern(below)}" if below is not None else usual_pattern(whole)
        return f"{whole} is a directory: write source.uri: {pattern.uri.rstrip('/')}/{inside}"
    folder = Path(place.folder)
    closed = next((each for each in [*reversed(folder.parents), folder] if _is_closed(each, folder)), None)
    while not is_folder(folder) and folder != folder.parent:
        folder = folder.parent
    found = names_in(folder)
    if closed or found is None:
        return f"make it readable: chmod u+rx {shlex.quote(str(closed or folder))}, or ask its owner"
    names = sorted(found, key=natural_key)
    there = f"{folder} holds {shown(names) if names else 'nothing'}"
    if folder != Path(place.folder) and any(place.has(name) for name in names):
        return f"{there}; for the files of this one directory write source.uri: {folder}/{place.pattern}"
    if pattern.kind is Kind.RANGES and any(pattern.range_of(name) for name in names):
        return f"{there}; set ranges.first, ranges.last and ranges.step to what is there"
    usual = usual_pattern(folder)
    if folder == Path(place.folder) and usual != "*" and pattern.kind is not Kind.NUMBERS:
        return f"{there}; write source.uri: {pattern.uri.rpartition('/')[0]}/{usual}"
    return f"{there}; correct source.uri"


def _is_closed(folder: Path, listed: Path) -> bool:
    """Return whether this user may not enter a directory that is there, nor list the one to be ``listed``."""
    needed = os.X_OK | (os.R_OK if folder == listed else 0)
    is_there = os.access(folder, os.F_OK, effective_ids=True)
    return is_there and not os.access(folder, needed, effective_ids=True)


def _names(folder: Path) -> list[str]:
    return sorted(names_in(folder) or (), key=natural_key)
