"""Where raw files come from: one small interface, chosen by the scheme of ``source.uri``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from crpipe.source.uris import FEDERATIONS, RangeSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.ranges import Range
    from crpipe.core.raw_files import Entry, Proof
    from crpipe.source.retries import Deadline


class Source(Protocol):
    """A place that holds raw files."""

    async def entries(self, name: Range, place: RangeSource) -> Sequence[Entry]:
        """List the files of one range directory that match the pattern; raise ListingError."""

    async def describe(self, uris: Sequence[str], paths: Sequence[str]) -> Sequence[Entry]:
        """Look up size and time of named files; raise ListingError for the first that is not there."""

    async def fetch(self, entry: Entry, part: Path) -> Proof:
        """Copy one file to ``part`` and verify it.

        Raise Transient when another try may succeed, TransferError when this file is bad for good, and any
        other CrpipeError when no file can be copied (no access, no space).
        """


def open_source(
    config: Config, scheme: str, host: str, deadline: Deadline
) -> AbstractAsyncContextManager[Source]:
    """Open the backend of a scheme; nothing is connected before the first call."""
    # Each backend brings its own libraries; a local campaign does not pay 0.5 s for those of a federation.
    if scheme in FEDERATIONS:
        from crpipe.source.pelican.source import RemoteSource  # noqa: PLC0415

        return RemoteSource(config.source, host, deadline)
    if scheme == "synthetic":
        from crpipe.source.simulated import GeneratedSource, open_simulator  # noqa: PLC0415

        simulator = open_simulator(config.source.simulator, config.options("simulator"))
        return contextlib.nullcontext(GeneratedSource(simulator, config.seed))
    from crpipe.source.local import LocalSource  # noqa: PLC0415

    return contextlib.nullcontext(LocalSource())
