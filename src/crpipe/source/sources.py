"""Where raw files come from, and where a copy of a run goes: small interfaces, by the scheme of a URI."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from crpipe.source.uris import (
    FEDERATIONS,
    REMOTE,
    STORES,
    SYNTHETIC,
    WRITABLE,
    SourceOptions,
    host_and_path,
    scheme_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from crpipe.campaign.raw_files import Entry, Verification
    from crpipe.config.loading import Config
    from crpipe.source.retries import Deadline
    from crpipe.source.uris import RangeSource


class Copier(Protocol):
    """What can copy (or make) files."""

    async def fetch(self, entry: Entry, part: Path) -> Verification:
        """Copy one file to ``part`` and verify it.

        Raise TemporaryFailure when a retry may succeed, TransferError when this file is bad for good, and any
        other CrpipeError when no file can be copied (no access, no space).
        """


class Source(Copier, Protocol):
    """A place that holds files which can be listed."""

    async def listing(
        self, location: RangeSource, chosen: Callable[[str], bool]
    ) -> tuple[list[Entry], list[str]]:
        """List the chosen files of one directory, and name the directories in it.

        One try: raise TemporaryFailure when a retry may succeed, ListingError or AccessError when not. Ask
        ``chosen`` once for each file, when no retry can follow.
        """

    async def look_up(self, uri: str, path: str, key: str) -> Entry:
        """Look up size and time of a file that ``key`` names, as the entry ``path``; raise as ``listing``."""

    async def checksum(self, uri: str) -> tuple[int, tuple[str, str] | None]:
        """Ask for a file's size, algorithm and checksum; None where the source names none.

        Raise as ``fetch``.
        """


def open_source(
    options: SourceOptions, scheme: str, host: str, deadline: Deadline
) -> AbstractAsyncContextManager[Source]:
    """Open a directory, a federation, a server or a bucket; nothing is connected before the first call."""
    # Each backend brings its own libraries; a local campaign does not pay 0.5 s for those of a federation.
    if scheme in STORES:
        from crpipe.source.stores import FsspecSource  # noqa: PLC0415

        return FsspecSource(options, scheme, host)
    if scheme in REMOTE:
        from crpipe.source.pelican.source import RemoteSource  # noqa: PLC0415

        return RemoteSource(options, scheme, host, deadline)
    from crpipe.source.local import LocalSource  # noqa: PLC0415

    return contextlib.nullcontext(LocalSource(in_place=options.in_place))


def open_copier(
    options: SourceOptions, scheme: str, host: str, deadline: Deadline
) -> AbstractAsyncContextManager[Copier]:
    """Open what copies the files of a scheme, or makes those of ``synthetic://``."""
    if scheme == SYNTHETIC:
        from crpipe.campaign.simulators import GeneratedSource, open_simulator  # noqa: PLC0415

        simulator = open_simulator(options.simulator, options.simulator_options)
        return contextlib.nullcontext(GeneratedSource(simulator, options.seed))
    return open_source(options, scheme, host, deadline)


class SecondPlace(Protocol):
    """What holds a copy of a run.

    Each method raises TemporaryFailure when a retry may succeed, and another CrpipeError when not.
    """

    async def send(self, file: Path, name: str) -> None:
        """Send a file, and verify what arrived."""

    async def size(self, name: str) -> int | None:
        """Return the size in bytes that a file has there; None where it is missing."""

    async def read(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Pass a file to ``write`` piece by piece; return False where it is missing or cannot be read."""


def open_second_place(config: Config) -> AbstractAsyncContextManager[SecondPlace]:
    """Open the place that ``sync.to`` names."""
    to = config.sync.to
    scheme = scheme_of(to, "sync.to")
    if scheme in WRITABLE:
        from crpipe.source.stores import FsspecPlace  # noqa: PLC0415

        return FsspecPlace(SourceOptions.of(config), to)
    if scheme in FEDERATIONS:
        from crpipe.source.pelican.upload import Upload  # noqa: PLC0415

        return Upload(SourceOptions.of(config), to)
    from crpipe.source.local import Directory  # noqa: PLC0415

    return contextlib.nullcontext(Directory(Path(host_and_path(to, "sync.to")[1])))
