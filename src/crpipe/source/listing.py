"""List one range of the source into its manifest, which says what should exist; one directory at a time."""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import check_paths, count_listed, far_fewer, read_manifest, write_manifest
from crpipe.campaign.split_record import LISTING, SplitRecord
from crpipe.core.causes import is_present
from crpipe.core.errors import DataError, ListingError
from crpipe.core.files import copy_file
from crpipe.core.ranges import Range
from crpipe.core.text import NullProgress, Progress, counted
from crpipe.source.copies import is_reserved
from crpipe.source.positions import SHOWN, RecordedPositions
from crpipe.source.range_files import SourceFiles
from crpipe.source.retries import Deadline
from crpipe.source.uris import Kind, SourceOptions, SourcePattern

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.raw_files import Entry
    from crpipe.config.loading import Config

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
    manifest = campaign.paths.manifest(name)
    record = SplitRecord.of(campaign.paths, name)
    finished = record if record.is_whole() else None
    if finished is not None and _restore(manifest, finished):
        progress.message(
            f"{name}: already split, its listing is restored; to make it again: {finished.remove()}"
        )
        return
    listed = _listing(campaign, name, progress).of_range(Range.parse(name))
    entries = take_files(campaign.config, name, listed)
    if is_present(manifest):
        _refuse_changes(name, manifest, entries, finished)
    else:
        if finished is not None:
            finished.refuse_other_listing(entries)
        write_manifest(manifest, entries, len(listed))
    some = "" if len(entries) == len(listed) else f"{len(entries)} (source.max_files) of "
    progress.message(f"{name}: {some}{counted(len(listed), 'file')}, {_total(entries)}")
    _warn_of_few(name, manifest, len(entries), progress)


def find_changes(campaign: Campaign, name: str, aside: Collection[str] = ()) -> Changes:
    """List a range once more, and compare with its manifest: a whole answer may still lack files.

    aside: files of the manifest that are not compared. Nothing is asked where no listing was, for files that
    a simulator makes or a person named; nor where numbered files are set aside, whose numbers may be missing.
    Raise ListingError when the range cannot be listed.
    """
    files = _listing(campaign, name, NullProgress())
    kind = files.pattern.kind
    if kind not in _LISTED or (aside and kind is not Kind.RANGES):
        return Changes()
    now = files.of_range(Range.parse(name))[: campaign.config.source.max_files or None]
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
        if finished.changes(read_manifest(kept)):
            return False
    except DataError:
        return False
    copy_file(kept, manifest)
    return True


def _listing(campaign: Campaign, name: str, progress: Progress) -> SourceFiles:
    """Ask the source for one range of a campaign, whose record numbers the files of a flat source."""
    options = SourceOptions.of(campaign.config)
    deadline = Deadline(options.deadline_s, f"listing of range {name}", progress.message)
    positions = RecordedPositions.of(campaign.paths)
    return SourceFiles(SourcePattern.of(campaign.config), options, deadline, progress, positions)


def take_files(config: Config, name: str, listed: Sequence[Entry]) -> list[Entry]:
    """Return those of a range's files that a campaign takes, at most ``source.max_files``.

    Raise ListingError for fewer files than ``source.min_files``, and for a path that cannot be copied to.
    """
    source = config.source
    _check_paths(name, listed)
    if len(listed) < source.min_files:
        match = "matches" if len(listed) == 1 else "match"
        raise ListingError(
            f"range {name}: {counted(len(listed), 'file')} {match} {source.files or source.uri}, at least "
            f"{source.min_files} needed (source.min_files); check source.uri, or skip the range with "
            "ranges.skip"
        )
    return list(listed[: source.max_files or None])


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
            f"warning: {name}: {counted(count, 'file')}, ranges have {usual:g} as a rule; if the listing is "
            f"not whole, delete {manifest} and list the range again; source.min_files refuses such ranges"
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
