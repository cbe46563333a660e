"""Where raw files come from: small interfaces, chosen by the scheme of a URI."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from crpipe.source.uris import FEDERATIONS, SYNTHETIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from crpipe.campaign.raw_files import Entry, Verification
    from crpipe.source.retries import Deadline
    from crpipe.source.uris import RangeSource, SourceOptions


class Copier(Protocol):
    """What can copy (or make) files."""

    async def fetch(self, entry: Entry, part: Path) -> Verification:
        """Copy one file to ``part`` and verify it.

        Raise TemporaryFailure when a retry may succeed, TransferError when this file is bad for good, and any
        other CrpipeError when no file can be copied (no access, no space).
        """


class Source(Copier, Protocol):
    """A place that holds files which can be listed."""

    async def entries(self, place: RangeSource, chosen: Callable[[str], bool]) -> Sequence[Entry]:
        """List the chosen files of one directory; raise ListingError."""

    async def folders(self, place: RangeSource) -> Sequence[str]:
        """Name the directories in one directory; raise ListingError."""

    async def describe(self, uris: Sequence[str], paths: Sequence[str], key: str) -> Sequence[Entry]:
        """Look up size and time of files that ``key`` names; raise ListingError for the first missing one."""


def open_source(
    options: SourceOptions, scheme: str, host: str, deadline: Deadline
) -> AbstractAsyncContextManager[Source]:
    """Open a directory tree or a federation; nothing is connected before the first call."""
    # Each backend brings its own libraries; a local campaign does not pay 0.5 s for those of a federation.
    if scheme in FEDERATIONS:
        from crpipe.source.pelican.source import RemoteSource  # noqa: PLC0415

        return RemoteSource(options, host, deadline)
    from crpipe.source.local import LocalSource  # noqa: PLC0415

    return contextlib.nullcontext(LocalSource())


def open_copier(
    options: SourceOptions, scheme: str, host: str, deadline: Deadline
) -> AbstractAsyncContextManager[Copier]:
    """Open what copies the files of a scheme, or makes those of ``synthetic://``."""
    if scheme == SYNTHETIC:
        from crpipe.campaign.simulators import GeneratedSource, open_simulator  # noqa: PLC0415

        simulator = open_simulator(options.simulator, options.simulator_options)
        return contextlib.nullcontext(GeneratedSource(simulator, options.seed))
    return open_source(options, scheme, host, deadline)
