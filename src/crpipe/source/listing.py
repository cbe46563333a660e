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
from crpipe.core.files import replacing
from crpipe.core.text import Silent
from crpipe.source.copies import is_reserved
from crpipe.source.positions import SHOWN, Positions, natural_order, shown
from crpipe.source.retries import Deadline
from crpipe.source.sources import open_source
from crpipe.source.uris import Kind, RangeSource, SourcePattern, host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from crpipe.core.ranges import Range
    from crpipe.core.text import Progress
    from crpipe.source.uris import SourceOptions

_LISTED = {Kind.RANGES, Kind.NUMBERS, Kind.FLAT}  # sources whose files a listing names
COMPARED = 200  # manifests of other ranges
TIME = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True)
class ListJob:
    """The listing of one range: where its files are, its manifest, and the record of positions.

    max_files: only the first files, in natural order, are taken; 0: all. split: the record of the range's
    split, where there may be one.
    """

    name: Range
    pattern: SourcePattern
    manifest: Path
    positions: Positions
    min_files: int
    source: SourceOptions
    max_files: int = 0
    split: SplitRecord | None = None

    def deadline(self, progress: Progress) -> Deadline:
        """Start the time that the listing may take."""
        return Deadline(self.source.deadline_s, f"listing of range {self.name}", progress.say)


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
        """Give the first lines, in the order of the files, and the number of the others."""
        lines = sorted([*self.new, *self.gone, *self.other])
        more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return [*lines[:SHOWN], *more]


def list_range(job: ListJob, progress: Progress) -> None:
    """Write the manifest of one range.

    Raise ListingError when the range cannot be listed, holds fewer than ``source.min_files`` files, or is no
    longer what its existing manifest says. An unchanged manifest is left as it is; a finished range gets
    the one back that it was made from.
    """
    finished = job.split if job.split is not None and job.split.is_whole() else None
    if finished is not None and _restore(job.manifest, finished):
        progress.say(
            f"{job.name}: already split, its listing is restored; to make it again: {finished.remove()}"
        )
        return
    found = sorted(_entries(job, progress), key=lambda entry: natural_key(entry.path))
    _check_paths(job.name, found)
    if len(found) < job.min_files:
        raise ListingError(
            f"range {job.name}: {len(found)} files match {job.pattern.shown}, at least {job.min_files} "
            "needed (source.min_files); check source.uri, or skip the range with ranges.skip"
        )
    entries = found[: job.max_files or None]
    if is_present(job.manifest):
        _refuse_changes(job.name, job.manifest, entries, finished)
    else:
        if finished is not None:
            finished.refuse_other_listing(entries)
        write_manifest(job.manifest, entries, len(found))
    some = "" if len(entries) == len(found) else f" of {len(found)} (source.max_files)"
    progress.say(f"{job.name}: {len(entries)}{some} files, {_total(entries)}")
    _warn_of_few(job, len(entries), progress)


def find_changes(job: ListJob, aside: Collection[str] = ()) -> Changes:
    """List a range once more, and compare with its manifest: a whole answer may still lack files.

    aside: files of the manifest that are not compared. Nothing is asked where no listing was, for files that
    a simulator makes or a person named; nor where numbered files are set aside, whose numbers may be missing.
    Raise ListingError when the range cannot be listed.
    """
    kind = job.pattern.kind
    if kind not in _LISTED or (aside and kind is not Kind.RANGES):
        return Changes()
    found = sorted(_entries(job, Silent()), key=lambda entry: natural_key(entry.path))
    new = {entry.path: entry for entry in found[: job.max_files or None]}
    old = {entry.path: entry for entry in read_manifest(job.manifest)}
    return _compare(*({path: one for path, one in each.items() if path not in aside} for each in (old, new)))


def confirm_listing(job: ListJob, aside: Collection[str] = ()) -> None:
    """Raise ListingError unless a second listing of a range agrees with its manifest."""
    changes = find_changes(job, aside)
    if changes:
        again = f"rm {shlex.quote(str(job.manifest))}; crpipe list {job.name}"
        raise ListingError(
            "\n".join(
                [
                    f"range {job.name}: listed a second time, the source is not what {job.manifest} says:",
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
    with replacing(manifest) as part:
        shutil.copyfile(kept, part)
    return True


def _entries(job: ListJob, progress: Progress) -> Sequence[Entry]:
    kind = job.pattern.kind
    if kind is Kind.SIMULATED:
        simulator = open_simulator(job.source.simulator, job.source.simulator_options)
        return generated_entries(simulator, job.name)
    if kind is Kind.RANGES:
        return _matching(job, progress)
    if kind is Kind.RANGE_LISTS:
        return _described(job, read_list(job.pattern.list_file(job.name)), progress)
    if kind is Kind.NUMBERS:
        return _numbered(job, progress)
    return _at_positions(job, progress)


def _matching(job: ListJob, progress: Progress) -> Sequence[Entry]:
    """List the files of the range's own directory that match the pattern, and report the others."""
    place = job.pattern.place(job.name)
    others: list[str] = []

    def chosen(name: str) -> bool:
        if place.has(name):
            return True
        others.append(name)
        return False

    entries = entries_of(job.source, place, chosen, job.deadline(progress))
    if others:
        names = shown([name if name.isprintable() else repr(name) for name in sorted(others)])
        progress.say(
            f"{job.name}: {len(entries) + len(others)} files listed, {len(entries)} match {place.pattern}, "
            f"{len(others)} are left out: {names}"
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


def _described(job: ListJob, files: Sequence[str], progress: Progress) -> Sequence[Entry]:
    return described(job.source, files, relative(files), "source.files", job.deadline(progress))


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


def _numbered(job: ListJob, progress: Progress) -> Sequence[Entry]:
    """List the files whose names hold the numbers of the range; every number must be there."""
    place, name = job.pattern.place(job.name), job.name
    numbers: set[int] = set()
    others = 0

    def chosen(file: str) -> bool:
        nonlocal others
        number = job.pattern.number_of(file)
        if number is None:
            others += 1
            return False
        numbers.add(number)
        return name.first <= number <= name.last

    entries = entries_of(job.source, place, chosen, job.deadline(progress))
    if others:
        progress.say(f"{name}: {others} files in {place.folder} have other names and are ignored")
    missing = [number for number in range(name.first, name.last + 1) if number not in numbers]
    if missing:
        files = [job.pattern.file_name(number) for number in missing]
        held = f"{min(numbers)} to {max(numbers)}" if numbers else "none"
        raise ListingError(
            f"range {name}: {len(missing)} of {name.last - name.first + 1} files are missing in "
            f"{place.folder}: {shown(files)} (numbers found: {held}); correct ranges.first or ranges.last, "
            "skip the range with ranges.skip, or write a pattern with * to take the files that exist"
        )
    return entries


def _at_positions(job: ListJob, progress: Progress) -> Sequence[Entry]:
    """List the files whose positions make up the range; positions are those of the first listing."""
    names = settle_positions(job.source, job.pattern, job.positions, job.deadline(progress), progress)
    chosen = names[job.name.first : job.name.last + 1]
    if len(chosen) <= job.name.last - job.name.first:
        raise ListingError(
            f"range {job.name}: {job.pattern.shown} holds {len(names)} files, numbers 0 to {len(names) - 1}; "
            f"set ranges.last to {len(names) - 1}, or to auto"
        )
    if job.pattern.kind is Kind.FLAT_LIST:
        return _described(job, chosen, progress)
    wanted = frozenset(chosen)
    entries = entries_of(job.source, job.pattern.whole(), wanted.__contains__, job.deadline(progress))
    gone = sorted(wanted - {entry.path for entry in entries})
    if gone:
        raise ListingError(
            f"range {job.name}: {shown(gone)}: gone during the listing; run the same command again"
        )
    return entries


def settle_positions(
    options: SourceOptions,
    pattern: SourcePattern,
    positions: Positions,
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


def _check_paths(name: Range, entries: Sequence[Entry]) -> None:
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


def _warn_of_few(job: ListJob, count: int, progress: Progress) -> None:
    """Report a range with far fewer files than the others: a whole listing may still lack files."""
    others = sorted(job.manifest.parent.glob(f"*{job.manifest.suffix}"))[:COMPARED]
    counts = {other.stem: count_listed(other) for other in others} | {str(job.name): count}
    if str(job.name) in far_fewer(counts):
        usual = statistics.median(counts.values())
        progress.say(
            f"warning: {job.name}: {count} files, ranges have {usual:g} as a rule; if the listing is not "
            f"whole, delete {job.manifest} and list the range again; source.min_files refuses such ranges"
        )


def _refuse_changes(name: Range, path: Path, entries: Sequence[Entry], finished: SplitRecord | None) -> None:
    old = {entry.path: entry for entry in read_manifest(path)}
    changes = _compare(old, {entry.path: entry for entry in entries})
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
