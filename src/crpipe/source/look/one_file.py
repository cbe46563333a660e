"""Copies one raw file of a source that is not on this machine, within size and time, for `crpipe plan`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crpipe.core.errors import ChangedError, CrpipeError, FormatError, SourceError, TransferError
from crpipe.source.look.listings import REMOTE_S, LookDeadline
from crpipe.source.retries import Failure, TemporaryFailure, retry
from crpipe.source.sources import open_copier
from crpipe.source.uris import host_and_path, scheme_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crpipe.campaign.raw_files import Entry
    from crpipe.source.uris import SourceOptions

MOST_BYTES = 64 << 20


def smallest(entries: Sequence[Entry]) -> Entry | None:
    """Choose the smallest file that is not empty."""
    return min((entry for entry in entries if entry.size), key=lambda entry: entry.size or 0, default=None)


def typical(entries: Sequence[Entry]) -> Entry | None:
    """Choose a file of the median size among those that are not empty: the smallest may hold no event."""
    sizes = sorted((entry.size or 0, entry.path, entry) for entry in entries if entry.size)
    return sizes[len(sizes) // 2][2] if sizes else None


def bring(entry: Entry, part: Path, options: SourceOptions) -> None:
    """Copy one file to ``part``.

    Raise FormatError when the file itself is bad, SourceError when it is too large or comes too late.
    """
    if (entry.size or 0) > MOST_BYTES:
        raise SourceError(
            f"{entry.uri} has {(entry.size or 0) >> 20} MiB, {MOST_BYTES >> 20} at most are read"
        )
    deadline = LookDeadline(REMOTE_S, entry.uri)

    async def copy() -> None:
        async with open_copier(
            options, scheme_of(entry.uri), host_and_path(entry.uri)[0], deadline
        ) as copier:
            await retry(lambda: copier.fetch(entry, part), attempts=2, deadline=deadline)

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
