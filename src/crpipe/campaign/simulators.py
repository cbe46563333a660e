"""Raw files that a simulator makes when they are staged (source.uri: synthetic://)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from crpipe.campaign.raw_files import Entry, Verification
from crpipe.config.plugins import build
from crpipe.core import checksums
from crpipe.core.causes import is_plain, plugin_errors
from crpipe.core.errors import ConfigError, PluginError, SourceError
from crpipe.core.files import atomic_write, disk_errors, make_folder
from crpipe.core.ranges import Range
from crpipe.events.layout import Layout

if TYPE_CHECKING:
    from crpipe.core.text import Progress
    from crpipe.events.batch import Events

PREFIX = "synthetic://"


class Simulator(Protocol):
    """What makes the raw files of a campaign without a source.

    layout: what the reader yields from these files. Equal arguments give equal bytes.
    offers: names of the side tables that ``tables`` writes; may be missing where it writes none.
    A simulator may also offer ``again(columns, seed) -> Events``, a second simulation of given events, and
    ``fresh(groups, seed) -> Events``, one event of each of so many new groups.
    """

    layout: Layout
    offers: tuple[str, ...]

    def files(self, name: Range) -> Sequence[str]:
        """Name the files of a range."""

    def write(self, name: Range, file: str, seed: int, path: Path) -> None:
        """Simulate one file of a range and write it to ``path``; called from several threads."""

    def tables(self, folder: Path) -> Mapping[str, Path]:
        """Write the side tables into ``folder``; return their paths by name."""

    def again(self, columns: Mapping[str, Any], seed: int) -> Events:
        """Simulate given events a second time; may be missing."""

    def fresh(self, groups: int, seed: int) -> Events:
        """Simulate one event of each of so many new groups, as files have them; may be missing."""


def open_simulator(name: str, options: Mapping[str, Any]) -> Simulator:
    """Build the simulator ``module:Name``; raise ConfigError when it is none."""
    simulator: Simulator = build("source.simulator", name, options, ("layout", "files", "write", "tables"))
    if not isinstance(simulator.layout, Layout):
        raise ConfigError(f"source.simulator: {name}.layout is no crpipe.events.layout.Layout")
    return simulator


def offered_tables(simulator: Simulator) -> tuple[str, ...]:
    """Name the side tables that a simulator writes."""
    return tuple(getattr(simulator, "offers", ()))


def simulate_range(simulator: Simulator, name: Range, seed: int, out: Path, progress: Progress) -> None:
    """Write all files of a range into ``out``, each atomically."""
    files = file_names(simulator, name)
    for done, file in enumerate(files, start=1):
        with atomic_write(out / file) as part:
            _write(simulator, name, file, seed, part)
        progress.update(f"simulate {name}", done, len(files), file)


def generated_entries(simulator: Simulator, name: Range) -> list[Entry]:
    """List the files of one range; no size and no time, because nothing exists yet."""
    return [Entry(file, f"{PREFIX}{name}/{file}", None, None) for file in file_names(simulator, name)]


def file_names(simulator: Simulator, name: Range) -> list[str]:
    """Ask the simulator for the names of a range's files; raise PluginError when it gives something else."""
    who = named(simulator)
    with plugin_errors(f"range {name}: {who}.files failed"):
        files = simulator.files(name)
    if isinstance(files, str) or not all(isinstance(file, str) and file for file in files):
        raise PluginError(f"range {name}: {who}.files gave {files!r}; it has to give a list of file names")
    return list(files)


def numbered_files(name: Range, count: int, spell: Callable[[int], str]) -> list[str]:
    """Name one file for each of the first ``count`` numbers of a range, for a simulator's ``files``.

    Raise ConfigError when the range has fewer numbers.
    """
    last = name.first + count - 1
    if last > name.last:
        raise ConfigError(
            f"simulator.files_per_range: {count} files do not fit into range {name}; lower it, or raise "
            "ranges.size"
        )
    return [spell(number) for number in range(name.first, last + 1)]


def number_of(file: str, name: Range, files: Sequence[str]) -> int:
    """Find the number of one of a range's files; raise SourceError for a file of another range."""
    check_listed(file, name, files)
    return name.first + files.index(file)


def check_listed(file: str, name: Range, files: Container[str]) -> None:
    """Raise SourceError unless a file is one of those of its range."""
    if file not in files:
        raise SourceError(
            f"{file}: not a file of the simulated range {name}; delete its manifest to list the range again"
        )


def written_tables(simulator: Simulator, folder: Path) -> dict[str, Path]:
    """Write the simulator's side tables into ``folder``; raise PluginError when it gives others."""
    who = named(simulator)
    with plugin_errors(f"{folder}: {who}.tables failed"), disk_errors(folder):
        make_folder(folder)
        tables = simulator.tables(folder)
    if not isinstance(tables, Mapping):
        raise PluginError(f"{who}.tables gave {tables!r}; it has to give the paths of its tables by name")
    for name, path in tables.items():
        if not (isinstance(path, Path) and is_plain(path)):
            raise PluginError(f"{who}.tables: {name}: {path!r} is no file that it wrote")
    return dict(tables)


def named(simulator: Simulator) -> str:
    """Name a simulator as the configuration does: ``module:Name``."""
    kind = type(simulator)
    return f"{kind.__module__}:{kind.__qualname__}"


def _write(simulator: Simulator, name: Range, file: str, seed: int, path: Path) -> None:
    who = named(simulator)
    with plugin_errors(f"{PREFIX}{name}/{file}: {who}.write failed"), disk_errors(path):
        simulator.write(name, file, seed, path)
    if not is_plain(path):
        raise PluginError(f"{PREFIX}{name}/{file}: {who}.write wrote no file at the path it was given")


class GeneratedSource:
    """Makes the files that the simulator names."""

    def __init__(self, simulator: Simulator, seed: int) -> None:
        self._simulator = simulator
        self._seed = seed
        self._known: dict[str, set[str]] = {}

    async def fetch(self, entry: Entry, part: Path) -> Verification:
        """Make one file."""
        name, _, file = entry.uri.removeprefix(PREFIX).partition("/")
        if name not in self._known:
            self._known[name] = set(file_names(self._simulator, Range.parse(name)))
        check_listed(file, Range.parse(name), self._known[name])
        return await asyncio.to_thread(self._make, Range.parse(name), file, part)

    def _make(self, name: Range, file: str, part: Path) -> Verification:
        _write(self._simulator, name, file, self._seed, part)
        size = part.stat().st_size
        return Verification(size, checksums.of_file(part, checksums.OWN), checksums.OWN, "generated")
