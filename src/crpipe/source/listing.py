"""List one range of the source into its manifest, which says what should exist; one directory at a time."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
import shutil
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import (
    Entry,
    check_paths,
    count_listed,
    far_fewer,
    natural_key,
    read_manifest,
    write_manifest,
)
from crpipe.campaign.simulators import generated_entries, open_simulator
from crpipe.campaign.split_record import LISTING, SplitRecord
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, DataError, ListingError
from crpipe.core.files import atomic_write
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress
from crpipe.source.copies import is_reserved
from crpipe.source.positions import SHOWN, RecordedPositions, natural_order, shown
from crpipe.source.retries import Deadline
from crpipe.source.sources import open_source
from crpipe.source.uris import Kind, RangeSource, SourceOptions, SourcePattern, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress

_LISTED = {Kind.RANGES, Kind.NUMBERS, Kind.FLAT}  # sources whose files a listing names
COMPARED = 200  # manifests of other ranges
TIME = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True)
class Changes:
    """How a listing differs from an earlier one: a line for each file that is new, gone, or another one."""

    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether it differs."""
        return bool(self.new or self.gone or self.other)

    def shown(self) -> list[str]:
        """Return the first lines, in the order of the files, and the number of the others."""
        lines = sorted([*self.new, *self.gone, *self.other])
        more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return [*lines[:SHOWN], *more]


def list_range(campaign: Campaign, name: str, progress: Progress) -> None:
    """Write the manifest of one range.

    Raise ListingError when the range cannot be listed, holds fewer than ``source.min_files`` files, or is no
    longer what its existing manifest says. An unchanged manifest is left as it is; a finished range gets
    the one back that it was made from.
    """
    source, manifest = campaign.config.source, campaign.paths.manifest(name)
    record = SplitRecord.of(campaign.paths, name)
    finished = record if record.is_whole() else None
    if finished is not None and _restore(manifest, finished):
        progress.message(
            f"{name}: already split, its listing is restored; to make it again: {finished.remove()}"
        )
        return
    listing = _Listing(campaign, name, progress)
    listed = listing.entries()
    _check_paths(name, listed)
    if len(listed) < source.min_files:
        raise ListingError(
            f"range {name}: {len(listed)} files match {listing.pattern.shown}, at least {source.min_files} "
            "needed (source.min_files); check source.uri, or skip the range with ranges.skip"
        )
    entries = listed[: source.max_files or None]
    if is_present(manifest):
        _refuse_changes(name, manifest, entries, finished)
    else:
        if finished is not None:
            finished.refuse_other_listing(entries)
        write_manifest(manifest, entries, len(listed))
    some = "" if len(entries) == len(listed) else f" of {len(listed)} (source.max_files)"
    progress.message(f"{name}: {len(entries)}{some} files, {_total(entries)}")
    _warn_of_few(name, manifest, len(entries), progress)


def find_changes(campaign: Campaign, name: str, aside: Collection[str] = ()) -> Changes:
    """List a range once more, and compare with its manifest: a whole answer may still lack files.

    aside: files of the manifest that are not compared. Nothing is asked where no listing was, for files that
    a simulator makes or a person named; nor where numbered files are set aside, whose numbers may be missing.
    Raise ListingError when the range cannot be listed.
    """
    listing = _Listing(campaign, name, NullProgress())
    kind = listing.pattern.kind
    if kind not in _LISTED or (aside and kind is not Kind.RANGES):
        return Changes()
    now = listing.entries()[: campaign.config.source.max_files or None]
    before = read_manifest(campaign.paths.manifest(name))
    return _compare(*({one.path: one for one in each if one.path not in aside} for each in (before, now)))


def confirm_listing(campaign: Campaign, name: str, aside: Collection[str] = ()) -> None:
    """Raise ListingError unless a second listing of a range agrees with its manifest."""
    changes = find_changes(campaign, name, aside)
    if changes:
        manifest = campaign.paths.manifest(name)
        again = f"rm {shlex.quote(str(manifest))}; crpipe list {name}"
        raise ListingError(
            "\n".join(
                [
                    f"range {name}: listed a second time, the source is not what {manifest} says:",
                    *changes.shown(),
                    f"the first listing was not whole, or the source changes. To take the new one: {again}",
                    "Then the same command again: copies that are still right are kept.",
                ]
            )
        )


def _restore(manifest: Path, finished: SplitRecord) -> bool:
    """Write a deleted manifest again from the copy that the split kept; return whether one is sound."""
    kept = finished.folder / LISTING
    if is_present(manifest) or not is_present(kept):
        return False
    try:
        if finished.differs(read_manifest(kept)):
            return False
    except DataError:
        return False
    with atomic_write(manifest) as part:
        shutil.copyfile(kept, part)
    return True


class _Listing:
    """Asks the source once for the files of one range."""

    def __init__(self, campaign: Campaign, name: str, progress: Progress) -> None:
        config = campaign.config
        self.pattern = SourcePattern.of(config)
        self._options = SourceOptions.of(config)
        self._positions = RecordedPositions.of(campaign.paths)
        self._name = Range.parse(name)
        self._progress = progress

    def entries(self) -> list[Entry]:
        """List the files in natural order; raise ListingError."""
        return sorted(self._entries(), key=lambda entry: natural_key(entry.path))

    def _entries(self) -> Sequence[Entry]:
        kind = self.pattern.kind
        if kind is Kind.SIMULATED:
            simulator = open_simulator(self._options.simulator, self._options.simulator_options)
            return generated_entries(simulator, self._name)
        if kind is Kind.RANGES:
            return self._matching()
        if kind is Kind.RANGE_LISTS:
            return self._described(read_list(self.pattern.list_file(self._name)))
        if kind is Kind.NUMBERS:
            return self._numbered()
        return self._at_positions()

    def _deadline(self) -> Deadline:
        """Start the time that the listing may take."""
        return Deadline(self._options.deadline_s, f"listing of range {self._name}", self._progress.message)

    def _matching(self) -> Sequence[Entry]:
        """List the files of the range's own directory that match the pattern, and report the others."""
        place = self.pattern.place(self._name)
        others: list[str] = []

        def chosen(name: str) -> bool:
            if place.has(name):
                return True
            others.append(name)
            return False

        entries = entries_of(self._options, place, chosen, self._deadline())
        if others:
            names = shown([name if name.isprintable() else repr(name) for name in sorted(others)])
            self._progress.message(
                f"{self._name}: {len(entries) + len(others)} files listed, {len(entries)} match "
                f"{place.pattern}, {len(others)} are left out: {names}"
            )
        return entries

    def _described(self, files: Sequence[str]) -> Sequence[Entry]:
        return described(self._options, files, relative(files), "source.files", self._deadline())

    def _numbered(self) -> Sequence[Entry]:
        """List the files whose names hold the numbers of the range; every number must be there."""
        place, name = self.pattern.place(self._name), self._name
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

        entries = entries_of(self._options, place, chosen, self._deadline())
        if others:
            self._progress.message(
                f"{name}: {others} files in {place.folder} have other names and are ignored"
            )
        missing = [number for number in range(name.first, name.last + 1) if number not in numbers]
        if missing:
            files = [self.pattern.file_name(number) for number in missing]
            held = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
            raise ListingError(
                f"range {name}: {len(missing)} of {name.last - name.first + 1} files are missing in "
                f"{place.folder}: {shown(files)} (numbers found: {held}); correct ranges.first or "
                "ranges.last, skip the range with ranges.skip, or write a pattern with * to take the files "
                "that exist"
            )
        return entries

    def _at_positions(self) -> Sequence[Entry]:
        """List the files whose positions make up the range; positions are those of the first listing."""
        names = settle_positions(
            self._options, self.pattern, self._positions, self._deadline(), self._progress
        )
        chosen = names[self._name.first : self._name.last + 1]
        if len(chosen) <= self._name.last - self._name.first:
            raise ListingError(
                f"range {self._name}: {self.pattern.shown} holds {len(names)} files, numbers 0 to "
                f"{len(names) - 1}; set ranges.last to {len(names) - 1}, or to auto"
            )
        if self.pattern.kind is Kind.FLAT_LIST:
            return self._described(chosen)
        wanted = frozenset(chosen)
        entries = entries_of(self._options, self.pattern.whole(), wanted.__contains__, self._deadline())
        gone = sorted(wanted - {entry.path for entry in entries})
        if gone:
            raise ListingError(
                f"range {self._name}: {shown(gone)}: gone during the listing; run the same command again"
            )
        return entries


def entries_of(
    options: SourceOptions, place: RangeSource, chosen: Callable[[str], bool], deadline: Deadline
) -> Sequence[Entry]:
    """List the chosen files of one directory."""

    async def ask() -> Sequence[Entry]:
        async with open_source(options, place.scheme, place.host, deadline) as source:
            return await source.entries(place, chosen)

    return asyncio.run(ask())


def names_of(options: SourceOptions, place: RangeSource, deadline: Deadline) -> list[str]:
    """Name the files of one directory that match its pattern, in natural order."""
    found: list[str] = []

    def collect(name: str) -> bool:
        if place.has(name):
            found.append(name)
        return False

    entries_of(options, place, collect, deadline)
    return natural_order(found)


def described(
    options: SourceOptions, uris: Sequence[str], paths: Sequence[str], key: str, deadline: Deadline
) -> Sequence[Entry]:
    """Look up files of one source by their URIs; ``paths`` are the names that their copies will have."""
    if not uris:
        return []
    places = {(scheme_of(uri, key), host_and_path(uri, key)[0]) for uri in uris}
    if len(places) > 1:
        raise ConfigError(f"{key}: mixes sources ({shown(list(uris))}); keep one kind in one list")
    scheme, host = places.pop()

    async def ask() -> Sequence[Entry]:
        async with open_source(options, scheme, host, deadline) as source:
            return await source.describe(uris, paths, key)

    return asyncio.run(ask())


def read_list(path: Path) -> list[str]:
    """Read a list of files; a plain name is relative to the list's own directory."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"source.files: {path} cannot be read ({reason}); name an existing file") from error
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [uri if "://" in uri else str(path.parent.absolute() / uri) for uri in found]


def relative(files: Sequence[str]) -> list[str]:
    """Name each file relative to the directory that holds all of them; raise ConfigError for one twice."""
    if not files:
        return []
    paths = [host_and_path(uri, "source.files")[1] for uri in files]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise ConfigError(f"source.files: the list names {shown(twice)} twice; remove one")
    root = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return [posixpath.relpath(path, root) for path in paths]


def settle_positions(
    options: SourceOptions,
    pattern: SourcePattern,
    positions: RecordedPositions,
    deadline: Deadline,
    progress: Progress,
    *,
    grown: bool = False,
) -> list[str]:
    """Name all files of a flat source by position; raise ListingError when they are not those recorded."""
    if pattern.kind is Kind.FLAT_LIST:
        names = natural_order(read_list(pattern.list_file(None)))
    else:
        names = names_of(options, pattern.whole(), deadline)
    if not names and not positions.exist():
        raise ListingError(
            f"{pattern.shown}: no file there matches; correct source.uri, for example /data/*.parquet"
        )
    positions.settle(names, len(names) - 1, pattern.shown, progress, grown=grown)
    return names


def _check_paths(name: str, entries: Sequence[Entry]) -> None:
    """Refuse a path that is there twice, leaves the range's directory, or has the name of a file of ours."""
    problem = check_paths(entry.path for entry in entries)
    if problem:
        raise ListingError(
            f"range {name}: {problem}; report it to the site, or name the files in source.files"
        )
    reserved = next((entry.path for entry in entries if is_reserved(entry.path)), "")
    if reserved:
        raise ListingError(
            f"range {name}: {reserved}: crpipe needs this name for itself; narrow the pattern in "
            "source.uri, or rename the file"
        )


def _warn_of_few(name: str, manifest: Path, count: int, progress: Progress) -> None:
    """Report a range with far fewer files than the others: a whole listing may still lack files."""
    others = sorted(manifest.parent.glob(f"*{manifest.suffix}"))[:COMPARED]
    counts = {other.stem: count_listed(other) for other in others} | {name: count}
    if name in far_fewer(counts):
        usual = statistics.median(counts.values())
        progress.message(
            f"warning: {name}: {count} files, ranges have {usual:g} as a rule; if the listing is not "
            f"whole, delete {manifest} and list the range again; source.min_files refuses such ranges"
        )


def _refuse_changes(name: str, path: Path, entries: Sequence[Entry], finished: SplitRecord | None) -> None:
    before = read_manifest(path)
    changes = _compare(*({entry.path: entry for entry in each} for each in (before, entries)))
    if changes:
        remedy = "delete the manifest to take the new listing, and with it what was made from the old one"
        if finished is not None:
            remedy = f"the range is split and stays as it is; to make it again: {finished.remove()}"
        raise ListingError(
            "\n".join(
                [
                    f"range {name}: the source is no longer what {path} says:",
                    *changes.shown(),
                    remedy,
                ]
            )
        )


def _compare(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> Changes:
    both = [(file, _change(file, old[file], new[file])) for file in sorted({*old} & {*new})]
    return Changes(
        tuple(f"  {file}: new" for file in sorted({*new} - {*old})),
        tuple(f"  {file}: gone" for file in sorted({*old} - {*new})),
        tuple(change for _, change in both if change),
    )


def _change(file: str, old: Entry, new: Entry) -> str:
    if old.size != new.size:
        return f"  {file}: {old.size} bytes before, {new.size} now"
    if old.mtime and new.mtime and old.mtime != new.mtime:
        return f"  {file}: last written {old.mtime:{TIME}} before, {new.mtime:{TIME}} now"
    return ""


def _total(entries: Sequence[Entry]) -> str:
    sizes = [entry.size for entry in entries]
    if any(size is None for size in sizes):
        return "sizes known once they are made"
    return f"{sum(size or 0 for size in sizes) / 1e6:.1f} MB"
