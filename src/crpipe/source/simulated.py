"""Raw files that a simulator makes when they are staged (source.uri: synthetic://)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from crpipe.config.names import build
from crpipe.core import checksums
from crpipe.core.errors import ConfigError, ListingError, SourceError
from crpipe.core.files import replacing, writing
from crpipe.core.foreign import Foreign
from crpipe.core.ranges import Range
from crpipe.core.raw_files import Entry, Proof
from crpipe.events.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crpipe.core.progress import Progress
    from crpipe.events.batch import Events
    from crpipe.source.uris import RangeSource

PREFIX = "synthetic://"


class Simulator(Protocol):
    """What makes the raw files of a campaign without a source.

    layout: what the reader yields from these files. Equal arguments give equal bytes.
    A simulator may also offer ``again(columns, seed) -> Events``, a second simulation of given events.
    """

    layout: Layout

    def files(self, name: Range) -> list[str]:
        """Name the files of a range."""

    def write(self, name: Range, file: str, seed: int, path: Path) -> None:
        """Simulate one file of a range and write it to ``path``."""

    def tables(self, folder: Path) -> Mapping[str, Path]:
        """Write the side tables into ``folder``; give their paths by name."""

    def again(self, columns: Mapping[str, Any], seed: int) -> Events:
        """Simulate given events a second time; may be missing."""


def open_simulator(name: str, options: Mapping[str, Any]) -> Simulator:
    """Build the simulator ``module:Name``; raise ConfigError when it is none."""
    simulator: Simulator = build("source.simulator", name, options, ("layout", "files", "write", "tables"))
    if not isinstance(simulator.layout, Layout):
        raise ConfigError(f"source.simulator: {name}.layout is no crpipe.events.layout.Layout")
    return simulator


def simulate_range(simulator: Simulator, name: Range, seed: int, out: Path, progress: Progress) -> None:
    """Write all files of a range into ``out``, each atomically."""
    files = _names(simulator, name)
    for done, file in enumerate(files, start=1):
        with replacing(out / file) as part, Foreign(f"{out / file}: the simulator failed"):
            simulator.write(name, file, seed, part)
        progress.advance(f"simulate {name}", done, len(files), file)


def _names(simulator: Simulator, name: Range) -> list[str]:
    with Foreign(f"range {name}: the simulator failed to name its files"):
        return simulator.files(name)


class GeneratedSource:
    """Lists the simulator's file names; their sizes are unknown until staging makes the files."""

    def __init__(self, simulator: Simulator, seed: int) -> None:
        self._simulator = simulator
        self._seed = seed

    async def entries(self, name: Range, place: RangeSource) -> Sequence[Entry]:  # noqa: ARG002 - there is no place
        """List the names of one range; no size and no time, because nothing exists yet."""
        return [Entry(file, f"{PREFIX}{name}/{file}", None, None) for file in _names(self._simulator, name)]

    async def describe(self, uris: Sequence[str], paths: Sequence[str]) -> Sequence[Entry]:  # noqa: ARG002
        """Refuse lists of files: the simulator has no other files than its own."""
        raise ListingError(
            "source.files: synthetic:// files cannot be listed by hand; leave source.files empty"
        )

    async def fetch(self, entry: Entry, part: Path) -> Proof:
        """Make one file."""
        return await asyncio.to_thread(self._make, entry, part)

    def _make(self, entry: Entry, part: Path) -> Proof:
        name, _, file = entry.uri.removeprefix(PREFIX).partition("/")
        if file not in _names(self._simulator, Range.parse(name)):
            raise SourceError(
                f"{file}: not a file of the simulated range {name}; delete its manifest to list the range "
                "again"
            )
        with writing(part), Foreign(f"{entry.uri}: the simulator failed"):
            self._simulator.write(Range.parse(name), file, self._seed, part)
        size = part.stat().st_size
        return Proof(size, checksums.of_file(part, checksums.OWN), checksums.OWN, "generated")
