"""List one range of the source into its manifest: what should exist, asked one directory at a time."""

from __future__ import annotations

import asyncio
import posixpath
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError, ListingError
from crpipe.core.raw_files import Entry, read_manifest, write_manifest
from crpipe.source.retries import Deadline
from crpipe.source.sources import open_source
from crpipe.source.uris import explicit_files, host_and_path, place_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.core.ranges import Range

SHOWN = 5  # differing files named in an error
TIME = "%Y-%m-%d %H:%M:%S"


def list_range(config: Config, name: Range, progress: Progress) -> None:
    """Write the manifest of one range.

    Raise ListingError when the range cannot be listed, holds fewer than ``source.min_files`` files, or is no
    longer what its existing manifest says. An unchanged manifest is left as it is.
    """
    path = config.paths().manifest(str(name))
    files = explicit_files(config, name)
    work = _listed(config, name) if files is None else _named(config, name, files)
    entries = sorted(asyncio.run(work), key=lambda entry: entry.path)
    if len(entries) < config.source.min_files:
        raise ListingError(
            f"range {name}: {len(entries)} files match {config.source.files or config.source.uri}, "
            f"at least {config.source.min_files} needed (source.min_files); check source.uri, "
            "or skip the range with ranges.skip"
        )
    if path.exists():
        _refuse_changes(name, path, entries)
    else:
        write_manifest(path, entries)
    progress.say(f"{name}: {len(entries)} files, {_total(entries)}")


async def _listed(config: Config, name: Range) -> Sequence[Entry]:
    place = place_of(config, name)
    async with open_source(config, place.scheme, place.host, _deadline(config, name)) as source:
        return await source.entries(name, place)


async def _named(config: Config, name: Range, files: Sequence[str]) -> Sequence[Entry]:
    if not files:
        return []
    places = {(scheme_of(uri), host_and_path(uri)[0]) for uri in files}
    if len(places) > 1:
        raise ConfigError(f"source.files: the list of range {name} mixes sources; keep one kind in one list")
    scheme, host = places.pop()
    async with open_source(config, scheme, host, _deadline(config, name)) as source:
        return await source.describe(files, _relative(name, files))


def _relative(name: Range, files: Sequence[str]) -> list[str]:
    """Name each file relative to the directory that holds all of them; two equal names would be one file."""
    paths = [host_and_path(uri)[1] for uri in files]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ConfigError(f"source.files: the list of range {name} names {twice} twice; remove one")
    root = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return [posixpath.relpath(path, root) for path in paths]


def _deadline(config: Config, name: Range) -> Deadline:
    return Deadline(config.source.deadline_minutes * 60, f"listing of range {name}")


def _refuse_changes(name: Range, path: Path, entries: Sequence[Entry]) -> None:
    old = {entry.path: entry for entry in read_manifest(path)}
    new = {entry.path: entry for entry in entries}
    changes = [_change(file, old.get(file), new.get(file)) for file in sorted({*old, *new})]
    changes = [change for change in changes if change]
    if changes:
        more = [f"  … and {len(changes) - SHOWN} more"] if len(changes) > SHOWN else []
        raise ListingError(
            "\n".join(
                [
                    f"range {name}: the source is no longer what {path} says:",
                    *changes[:SHOWN],
                    *more,
                    "delete the manifest to take the new listing, and with it what was made from the old one",
                ]
            )
        )


def _change(file: str, old: Entry | None, new: Entry | None) -> str:
    if old is None:
        return f"  {file}: new"
    if new is None:
        return f"  {file}: gone"
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
