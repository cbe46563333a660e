"""Raw files that the built-in simulator makes when they are staged (source.uri: synthetic://)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crpipe.core import checksums
from crpipe.core.errors import ListingError
from crpipe.core.files import writing
from crpipe.core.ranges import Range
from crpipe.core.raw_files import Entry, Proof
from crpipe.workloads.muons.simulator.files import file_names, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.source.uris import RangeSource

PREFIX = "synthetic://"


class GeneratedSource:
    """Lists the simulator's file names; their sizes are unknown until staging makes the files."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def entries(self, name: Range, place: RangeSource) -> Sequence[Entry]:  # noqa: ARG002 - there is no place
        """List the names of one range; no size and no time, because nothing exists yet."""
        return [
            Entry(file, f"{PREFIX}{name}/{file}", None, None)
            for file in file_names(self._config.synthetic, name)
        ]

    async def describe(self, uris: Sequence[str], paths: Sequence[str]) -> Sequence[Entry]:  # noqa: ARG002
        """Refuse lists of files: the simulator has no other files than its own."""
        raise ListingError(
            "source.files: synthetic:// files cannot be listed by hand; leave source.files empty"
        )

    async def fetch(self, entry: Entry, part: Path) -> Proof:
        """Make one file; equal configurations make equal bytes."""
        return await asyncio.to_thread(self._make, entry, part)

    def _make(self, entry: Entry, part: Path) -> Proof:
        name, _, file = entry.uri.removeprefix(PREFIX).partition("/")
        with writing(part):
            write_file(self._config.synthetic, self._config.seed, Range.parse(name), file, part)
        size = part.stat().st_size
        return Proof(size, checksums.of_file(part, checksums.OWN), checksums.OWN, "generated")
