"""Which files make up a range: the one answer, for `list`, `plan`, `init`, `doctor` and `count` alike."""

from __future__ import annotations

import asyncio
import posixpath
from collections import Counter
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from crpipe.campaign.raw_files import Entry, natural_key
from crpipe.campaign.simulators import generated_entries, open_simulator
from crpipe.core.causes import is_present
from crpipe.core.errors import AccessError, ConfigError, ListingError
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress, Progress, counted
from crpipe.source.positions import RecordedPositions, natural_order, shown
from crpipe.source.retries import Deadline, Failure, TemporaryFailure, retry, run_concurrently
from crpipe.source.sources import Source, open_source
from crpipe.source.uris import (
    LISTS_NONE,
    WEB,
    Kind,
    SourcePattern,
    host_and_path,
    place_of,
    scheme_of,
    uri_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.source.uris import RangeSource, SourceOptions

Answer = TypeVar("Answer")

_DEEPEST = 20  # directories below each other


class SourceFiles:
    """Answers which files make up a range, for every verb; what all ranges share is asked once.

    positions: the record of the numbers of a flat source's files; it is written where there is none yet, and
    compared after that. Without it nothing is written.
    """

    def __init__(
        self,
        pattern: SourcePattern,
        options: SourceOptions,
        deadline: Deadline,
        progress: Progress | None = None,
        positions: RecordedPositions | None = None,
    ) -> None:
        self.pattern = pattern
        self._options = options
        self._deadline = deadline
        self._progress = progress or NullProgress()
        self._positions = positions

    def of_range(self, name: Range) -> list[Entry]:
        """List the files of a range in natural order; raise ListingError where any is known to be missing."""
        return sorted(self._entries(name), key=lambda entry: natural_key(entry.path))

    def _entries(self, name: Range) -> Sequence[Entry]:
        kind = self.pattern.kind
        if kind is Kind.SIMULATED:
            simulator = open_simulator(self._options.simulator, self._options.simulator_options)
            return generated_entries(simulator, name)
        if kind is Kind.RANGES:
            return self._matching(name)
        if kind is Kind.RANGE_LISTS:
            return self._entries_of_list(read_list(self.pattern.list_file(name)))
        if kind is Kind.NUMBERS:
            return self._numbered(name)
        return self._at_positions(name)

    def _matching(self, name: Range) -> Sequence[Entry]:
        """List the files of the range's own directory that match the pattern, and report the others."""
        location = self.pattern.location(name)
        others: list[str] = []

        def chosen(file: str) -> bool:
            if location.has(file):
                return True
            others.append(file)
            return False

        entries = entries_of(self._options, location, chosen, self._deadline)
        if others:
            names = shown([file if file.isprintable() else repr(file) for file in sorted(others)])
            self._progress.message(
                f"{name}: {counted(len(entries) + len(others), 'file')} listed, {len(entries)} match "
                f"{location.pattern}, {len(others)} left out: {names}"
            )
        return entries

    def _entries_of_list(self, files: Sequence[str]) -> Sequence[Entry]:
        return describe_files(self._options, files, relative(files), "source.files", self._deadline)

    def _numbered(self, name: Range) -> Sequence[Entry]:
        """List the files whose names hold the numbers of the range; every number must be there."""
        location = self.pattern.location(name)
        numbers: set[int] = set()
        others = 0

        def chosen(file: str) -> bool:
            nonlocal others
            number = self.pattern.number_of(file)
            if number is None:
                others += 1
                return False
            numbers.add(number)
            return name.first <= number <= name.last

        entries = entries_of(self._options, location, chosen, self._deadline)
        if others:
            self._progress.message(
                f"{name}: {counted(others, 'file')} in {location.folder} with other names: ignored"
            )
        missing = [number for number in range(name.first, name.last + 1) if number not in numbers]
        if missing:
            files = [self.pattern.file_name(number) for number in missing]
            held = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
            raise ListingError(
                f"range {name}: {len(missing)} of {name.last - name.first + 1} files are missing in "
                f"{location.folder}: {shown(files)} (numbers found: {held}); correct ranges.first or "
                "ranges.last, skip the range with ranges.skip, or write a pattern with * to take the files "
                "that exist"
            )
        return entries

    def _at_positions(self, name: Range) -> Sequence[Entry]:
        """List the files whose positions make up the range; positions are those of the first listing."""
        names = self._by_position
        files = names[name.first : name.last + 1]
        if len(files) <= name.last - name.first:
            raise ListingError(
                f"range {name}: {self.pattern.shown} holds {counted(len(names), 'file')}, numbers 0 to "
                f"{len(names) - 1}; set ranges.last to {len(names) - 1}, or to auto"
            )
        if self.pattern.kind is Kind.FLAT_LIST:
            return self._entries_of_list(files)
        listed = frozenset(files)
        entries = entries_of(self._options, self.pattern.whole(), listed.__contains__, self._deadline)
        gone = sorted(listed - {entry.path for entry in entries})
        if gone:
            raise ListingError(
                f"range {name}: {shown(gone)}: gone during the listing; run the same command again"
            )
        return entries

    @cached_property
    def _by_position(self) -> list[str]:
        return self.by_position()

    def by_position(self, *, grown: bool = False) -> list[str]:
        """Name all files of a flat source by position; raise ListingError when they are not those recorded.

        grown: number those that follow the recorded ones, too.
        """
        names, positions = self.names(), self._positions
        if not names and not (positions and positions.exist()):
            where = self.pattern.shown
            raise ListingError(
                f"{where}: no file there matches; correct source.uri, for example /data/*.parquet"
            )
        if positions is not None:
            positions.record_or_check(names, len(names) - 1, self.pattern.shown, self._progress, grown=grown)
        return names

    def ranges(self) -> list[Range]:
        """Read the ranges in the names of directories (or of files), in order."""
        ranges = {self.pattern.range_of(name) for name in self.names()}
        return sorted(name for name in ranges if name is not None)

    def numbers(self) -> list[int]:
        """Read the numbers in the names of the files, in order."""
        return sorted(
            {number for each in self.names() if (number := self.pattern.number_of(each)) is not None}
        )

    def names(self) -> list[str]:
        """Name all files that are in one list or one directory; of ranges with directories, these."""
        pattern = self.pattern
        if pattern.kind is Kind.FLAT_LIST:
            return natural_order(read_list(pattern.list_file(None)))
        location = pattern.whole()
        if pattern.kind is Kind.RANGES and pattern.ranges_are_folders():
            return asyncio.run(_walk(self._options, location, lambda _: False, self._deadline))[1]
        names: list[str] = []

        def collect(name: str) -> bool:
            if location.has(name):
                names.append(name)
            return False

        entries_of(self._options, location, collect, self._deadline)
        return natural_order(names)


def entries_of(
    options: SourceOptions, location: RangeSource, chosen: Callable[[str], bool], deadline: Deadline
) -> Sequence[Entry]:
    """List the chosen files of one directory, and of those below it where the pattern says so."""
    entries, folders = asyncio.run(_walk(options, location, chosen, deadline))
    left_out = [repr(name) for name in folders if location.has(name)]
    if left_out and not location.deep:
        deadline.say_once(f"left out, because they are directories: {', '.join(left_out[:5])}")
    return entries


async def _walk(
    options: SourceOptions, top: RangeSource, chosen: Callable[[str], bool], deadline: Deadline
) -> tuple[list[Entry], list[str]]:
    """List chosen files and folders of a directory by their paths from there; of a deep one all below."""
    entries: list[Entry] = []
    folders: list[str] = []
    waiting = [""]
    async with open_source(options, top.scheme, top.host, deadline) as source:
        while waiting:
            below = waiting.pop()
            if below.count("/") > _DEEPEST:
                raise ListingError(
                    f"{top.what}: {top.folder}/{below}: {_DEEPEST} directories deep; does a link lead back? "
                    "Remove it, or name the files in source.files"
                )
            path = f"{top.folder.rstrip('/')}/{below}".rstrip("/") or "/"
            here = replace(top, folder=path) if top.deep else top
            ask = partial(source.listing, here, partial(_is_chosen, chosen, below))
            files, names = await _with_retries(ask, here, options, deadline)
            entries += [replace(entry, path=f"{below}{entry.path}") for entry in files]
            folders += [f"{below}{name}" for name in names]
            waiting += [f"{below}{name}/" for name in names if top.deep and not name.startswith(".")]
    return entries, folders


def _is_chosen(chosen: Callable[[str], bool], below: str, name: str) -> bool:
    return chosen(f"{below}{name}")


async def _with_retries(
    ask: Callable[[], Awaitable[Answer]], location: RangeSource, options: SourceOptions, deadline: Deadline
) -> Answer:
    """Ask for a directory's listing, with retries; raise ListingError, or AccessError for a refusal."""
    try:
        return await retry(ask, attempts=options.attempts, deadline=deadline)
    except TemporaryFailure as error:
        where = f"{location.what}: {uri_of(location.scheme, location.host, location.folder).rstrip('/')}"
        lists = LISTS_NONE if location.scheme in WEB else ""
        if error.kind is Failure.DENIED:
            raise AccessError(f"{where}: listing {error}; see `crpipe token`{lists}") from error
        text = str(error) if where in str(error) else f"{where}: {error}"
        if error.kind is Failure.MISSING:  # a directory that is not there, whenever it was asked for
            raise ListingError(f"{text}; {location.remedy}") from None
        later = f"run the same command again later, or {location.remedy}{lists}"
        raise ListingError(f"{text}; {later}") from error


def describe_files(
    options: SourceOptions, uris: Sequence[str], paths: Sequence[str], key: str, deadline: Deadline
) -> Sequence[Entry]:
    """Look up files by their URIs, of one host after another; ``paths`` are the names of their copies."""
    for uri in uris:
        if scheme_of(uri, key) in WEB and {"?", "#"} & {*uri}:
            raise ConfigError(
                f"{key}: {uri}: write the address up to the ? or #; in a name they are %3F and %23"
            )
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for uri, path in zip(uris, paths, strict=True):
        groups.setdefault(place_of(uri, key), {})[path] = uri
    entries: dict[str, Entry] = {}

    async def look_up(source: Source, item: tuple[str, str]) -> None:
        path, uri = item
        entries[path] = await retry(
            lambda: source.look_up(uri, path, key), attempts=options.attempts, deadline=deadline
        )

    async def look_up_all() -> None:
        for (scheme, host), files in groups.items():
            async with open_source(options, scheme, host, deadline) as source:
                await run_concurrently(files.items(), partial(look_up, source), options.concurrency)

    try:
        asyncio.run(look_up_all())
    except TemporaryFailure as error:
        if error.kind is Failure.DENIED:
            raise AccessError(f"{error}; see `crpipe token`") from error
        if error.kind is Failure.MISSING:
            raise ListingError(f"{error}; correct {key}") from None
        raise ListingError(f"{key}: {error}; run the same command again later") from error
    return [entries[path] for path in paths]


def read_list(path: Path) -> list[str]:
    """Read a list of files, at least one; a plain name is relative to the list's own directory."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"source.files: {path} cannot be read ({reason}); name an existing file") from error
    uris = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if "\0" in "".join(uris):
        raise ConfigError(f"source.files: {path} holds zero bytes: damaged, or UTF-16; write it in UTF-8")
    if not uris:
        raise ConfigError(f"source.files: {path}: the list names no file; write one on each line")
    return [uri if "://" in uri else str(path.parent.absolute() / uri) for uri in uris]


def are_copied(config: Config, name: str) -> bool:
    """Return whether a range's files are copied; those of this machine with copy_local or convert."""
    pattern, source = SourcePattern.of(config), config.source
    if source.copy_local or source.convert or pattern.kind is Kind.SIMULATED:
        return True
    if not source.files:
        return scheme_of(source.uri) != "file"
    one = Range.parse(name) if pattern.kind is Kind.RANGE_LISTS else None
    return any(scheme != "file" for scheme in _schemes(pattern.list_file(one)))


@cache
def _schemes(path: Path) -> set[str]:
    """Return the schemes in a list of files; none of a list that is not there."""
    return {scheme_of(uri, "source.files") for uri in read_list(path)} if is_present(path) else set()


def relative(files: Sequence[str]) -> list[str]:
    """Name each file relative to the directory that holds all of them; raise ConfigError for one twice.

    The same path of two hosts is one file: its events would count twice.
    """
    if not files:
        return []
    paths = [host_and_path(uri, "source.files")[1] for uri in files]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise ConfigError(f"source.files: the list names {shown(twice)} twice; remove one")
    root = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return [posixpath.relpath(path, root) for path in paths]
