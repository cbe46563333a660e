"""Finds local raw files of the same content in two ranges before anything is copied, within a time limit."""

from __future__ import annotations

import filecmp
import time
from typing import TYPE_CHECKING

from crpipe.campaign.duplicates import Twins
from crpipe.core import checksums
from crpipe.source.uris import host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from crpipe.campaign.raw_files import Entry

LIMIT_S = 10.0
_ENDS = 4096  # bytes at the beginning and at the end that are compared first
_Listed = tuple[str, str, str]  # range, path, local file


def find_same(listed: Mapping[str, Sequence[Entry]], limit_s: float = LIMIT_S) -> Twins | None:
    """Compare the files of equal size of different ranges; None where no two are alike, or time is over.

    Files that are not on this machine, or cannot be read, are left out.
    """
    end = time.monotonic() + limit_s
    by_size: dict[int, list[_Listed]] = {}
    for name, entries in listed.items():
        for entry in entries:
            if entry.size and scheme_of(entry.uri) == "file":
                file = host_and_path(entry.uri)[1]
                by_size.setdefault(entry.size, []).append((name, entry.path, file))
    for size, files in by_size.items():
        if len({name for name, _, _ in files}) > 1:
            found = _first_pair(_alike(files, size, end), end)
            if found is not None:
                one, other = found
                return Twins(1, (one[0], other[0]), (one[1], other[1]))
    return None


def _alike(files: Iterable[_Listed], size: int, end: float) -> Iterable[list[_Listed]]:
    """Group files of one size by their first and last bytes."""
    groups: dict[str, list[_Listed]] = {}
    for file in files:
        if time.monotonic() > end:
            break
        try:
            with open(file[2], "rb") as handle:  # noqa: PTH123 - a text
                digest = checksums.new(checksums.OWN)
                digest.update(handle.read(_ENDS))
                handle.seek(max(0, size - _ENDS))
                digest.update(handle.read(_ENDS))
        except OSError:
            continue
        groups.setdefault(digest.hexdigest(), []).append(file)
    return groups.values()


def _first_pair(groups: Iterable[list[_Listed]], end: float) -> tuple[_Listed, _Listed] | None:
    """Find two files of different ranges with the same bytes; each is compared with its group's first."""
    for first, *others in groups:
        for other in others:
            if time.monotonic() > end:
                return None
            try:
                if other[0] != first[0] and filecmp.cmp(first[2], other[2], shallow=False):
                    return first, other
            except OSError:
                continue
    return None
