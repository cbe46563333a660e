"""What a source holds now, within a time limit, with nothing written: for `crpipe plan` and `doctor`."""

from __future__ import annotations

import asyncio
import filecmp
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from crpipe.campaign.duplicates import Twins
from crpipe.core import checksums
from crpipe.core.errors import (
    AccessError,
    ChangedError,
    CrpipeError,
    FormatError,
    ListingError,
    OutageError,
    SourceError,
    TransferError,
)
from crpipe.core.text import counted
from crpipe.source.listing import take_files
from crpipe.source.positions import shown
from crpipe.source.range_files import SourceFiles, read_list
from crpipe.source.retries import Deadline, Failure, TemporaryFailure, retry
from crpipe.source.sources import open_copier
from crpipe.source.suggestions import hint_of
from crpipe.source.uris import REMOTE, Kind, SourceOptions, SourcePattern, host_and_path, place_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from crpipe.campaign.raw_files import Entry
    from crpipe.config.loading import Config
    from crpipe.core.ranges import Range

LIMIT_S = 20.0  # to list all ranges, or the first one of a federation; and to fetch one file
SAME_S = 10.0  # to compare files
MOST_BYTES = 64 << 20  # of a file that is fetched
_ATTEMPTS = 2  # a person waits
_WORST = 3  # missing ranges that are named one by one
_ENDS = 4096  # bytes at the beginning and at the end of a file that are compared first


@dataclass(slots=True)
class Listings:
    """The files of each range that was listed; what was not listed, and why; what is wrong."""

    files: dict[str, list[Entry]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class PreviewDeadline(Deadline):
    """A deadline whose error says that the source did not answer, in place of how a job goes on."""

    def __init__(self) -> None:
        super().__init__(LIMIT_S, "the source")

    def expired_error(self, reason: str) -> OutageError:
        """Make the error of a source that did not answer in time."""
        return OutageError(f"no answer within {LIMIT_S:g} s ({reason or 'the first try still ran'})")


def is_remote(config: Config, ranges: Sequence[Range]) -> bool:
    """Return whether the files, or some of them, are not on this machine."""
    pattern = SourcePattern.of(config)
    uris = [pattern.uri]
    if pattern.kind in {Kind.FLAT_LIST, Kind.RANGE_LISTS}:
        name = ranges[0] if pattern.kind is Kind.RANGE_LISTS else None
        uris = read_list(pattern.list_file(name))
    return any(scheme_of(uri) in REMOTE for uri in uris)


def list_now(config: Config, ranges: Sequence[Range], *, offline: bool = False) -> Listings:
    """List all of the ranges in a local source, and the first one in a remote source.

    An unreachable source is a warning. A directory that is not there, or holds too few files, is a problem.
    """
    result = Listings()
    if SourcePattern.of(config).kind is Kind.SIMULATED:
        result.notes.append("nothing: a simulator makes the files when they are staged")
    elif not ranges:
        result.notes.append("nothing new: every range is listed")
    elif not is_remote(config, ranges):
        _list(config, ranges, result, remote=False)
    elif offline:
        result.notes.append("nothing: --offline skips a remote source")
    else:
        _list_first(config, ranges, result)
    return result


def _quick_options(config: Config) -> SourceOptions:
    """Return how the source is asked while a person waits: with few attempts."""
    return replace(SourceOptions.of(config), attempts=_ATTEMPTS)


def _list_first(config: Config, ranges: Sequence[Range], result: Listings) -> None:
    try:
        _list(config, ranges[:1], result, remote=True)
    except CrpipeError as error:
        # What a refusal needs depends on the source, and is said by the error.
        why = str(error) if isinstance(error, AccessError) else str(error).partition("; ")[0]
        result.warnings.append(f"the source was not read: {why}; `crpipe plan --offline` skips this")
    if result.files and len(ranges) > 1:
        result.notes.append(f"{counted(len(ranges) - 1, 'more range')} of this remote source not listed yet")


def _list(config: Config, ranges: Sequence[Range], result: Listings, *, remote: bool) -> None:
    """List the ranges; what is wrong with them is a problem. Raise CrpipeError where nobody answers."""
    deadline = PreviewDeadline()
    source = SourceFiles(SourcePattern.of(config), _quick_options(config), deadline)
    wrong: dict[str, str] = {}
    for done, name in enumerate(ranges):
        if not deadline.left():
            rest = len(ranges) - done
            result.notes.append(f"{counted(rest, 'other range')} not listed within {LIMIT_S:g} s")
            break
        try:
            result.files[str(name)] = take_files(config, str(name), source.of_range(name))
        except ListingError as error:
            # What a remote source answers is wrong for good; that it does not answer may pass.
            if remote and (isinstance(error.__cause__, TemporaryFailure) or not deadline.left()):
                raise
            hint = hint_of(source.pattern, name)  # which of the general remedies helps
            wrong[str(name)] = f"{str(error).rpartition('; ')[0]}; {hint}" if hint else str(error)
            if not result.files:
                break
    result.problems += list(wrong.values())[:_WORST]
    if len(wrong) > _WORST:
        result.problems.append(
            f"{counted(len(wrong) - _WORST, 'more range')} like these: {shown(list(wrong)[_WORST:])}"
        )
    if wrong and result.files:
        last = list(result.files)[-1]
        present = f"{counted(len(result.files), 'range')} found, up to {last}: "
        shorter = f"set ranges.last to {last.partition('-')[2].lstrip('0') or '0'} if that is all, or "
        shorter = "" if last == str(ranges[-1]) else shorter
        result.problems.append(f"{present}{shorter}name the missing ones in ranges.skip")


# One file of a source that is not on this machine.


def smallest(entries: Sequence[Entry]) -> Entry | None:
    """Choose the smallest file that is not empty."""
    return min((entry for entry in entries if entry.size), key=lambda entry: entry.size or 0, default=None)


def typical(entries: Sequence[Entry]) -> Entry | None:
    """Choose a file of the median size among those that are not empty: the smallest may hold no event."""
    sizes = sorted((entry.size or 0, entry.path, entry) for entry in entries if entry.size)
    return sizes[len(sizes) // 2][2] if sizes else None


def fetch_sample(config: Config, entry: Entry, part: Path) -> None:
    """Copy one file to ``part``.

    Raise FormatError when the file itself is bad, SourceError when it is too large or comes too late.
    """
    if (entry.size or 0) > MOST_BYTES:
        raise SourceError(
            f"{entry.uri} has {(entry.size or 0) >> 20} MiB, {MOST_BYTES >> 20} at most are read"
        )
    deadline, options = PreviewDeadline(), _quick_options(config)
    scheme, host = place_of(entry.uri)

    async def copy() -> None:
        async with open_copier(options, scheme, host, deadline) as copier:
            await retry(lambda: copier.fetch(entry, part), attempts=_ATTEMPTS, deadline=deadline)

    try:
        asyncio.run(copy())
    except TemporaryFailure as error:
        is_bad = error.kind in {Failure.WRONG_BYTES, Failure.NOT_SERVED}
        kind = FormatError if is_bad else SourceError
        raise kind(f"{entry.uri}: {error}") from error
    except ChangedError as error:  # the file may be good
        raise SourceError(str(error)) from error
    except TransferError as error:
        raise FormatError(str(error)) from error
    except CrpipeError as error:
        raise SourceError(f"{entry.uri}: {error}") from error


# Files of the same content in two ranges, before anything is copied.


def find_same(listed: Mapping[str, Iterable[Entry]], limit_s: float = SAME_S) -> Twins | None:
    """Compare the files of equal size of different ranges; None where no two are alike, or time is over.

    Files that are not on this machine, or cannot be read, are left out.
    """
    end = time.monotonic() + limit_s
    by_size: dict[int, list[tuple[str, Entry]]] = {}
    for name, entries in listed.items():
        for entry in entries:
            if entry.size and scheme_of(entry.uri) == "file":
                by_size.setdefault(entry.size, []).append((name, entry))
    for size, files in by_size.items():
        firsts: dict[str, tuple[str, Entry]] = {}  # of the files that begin and end alike
        for name, entry in files if len({name for name, _ in files}) > 1 else ():
            if time.monotonic() > end:
                return None
            try:
                path = host_and_path(entry.uri)[1]
                first, like = firsts.setdefault(_digest_of_ends(path, size), (name, entry))
                if first != name and filecmp.cmp(host_and_path(like.uri)[1], path, shallow=False):
                    return Twins(1, (first, name), (like.path, entry.path))
            except OSError:
                continue
    return None


def _digest_of_ends(path: str, size: int) -> str:
    digest = checksums.new(checksums.OWN)
    with open(path, "rb") as handle:  # noqa: PTH123 - a text
        digest.update(handle.read(_ENDS))
        handle.seek(max(0, size - _ENDS))
        digest.update(handle.read(_ENDS))
    return digest.hexdigest()
