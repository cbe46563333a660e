"""The manifest of a folder of shards: which files there are, their sizes and hashes, and their whole layout.

What it says can be checked at any time, and shards are read from it alone. A link records the manifests of
the shards that it is trained on when it begins; they are compared when it goes on or is adopted.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from crpipe.core import checksums
from crpipe.core.causes import MachineWatch, expect, is_present, is_there, retry_io
from crpipe.core.errors import DataError, LayoutError, ShardError
from crpipe.core.files import digest, drop_page_cache, sha256
from crpipe.core.paths import FINISHED, MANIFEST, ROLES
from crpipe.events.batch import Events
from crpipe.events.layout import Layout
from crpipe.events.shard_reader import REMEDY, Shards
from crpipe.events.shard_records import ShardEntry, ShardFile, ShardManifest, TrainedShards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


def open_manifest(folder: Path, data: str | None) -> ShardManifest:
    """Read a folder's manifest; raise ShardError when it is missing, damaged or of other data keys.

    ``data`` is the digest of the data keys; None accepts any.
    """
    path = folder / MANIFEST
    if is_present(folder / FINISHED):  # the split writes this record before the manifest's name appears
        expect(path, folder / FINISHED, REMEDY)
    try:
        manifest = ShardManifest.read(path)
    except DataError as error:
        raise ShardError(str(error)) from error
    for name in ("layout", "threshold"):
        if getattr(manifest, name) is None and name not in manifest.unknown:
            raise ShardError(f"{path}: the key {name} is missing; {REMEDY}")
    if data is not None and manifest.data != data:
        raise ShardError(
            f"{path}: made under other data keys ({manifest.data}, the configuration has {data}); "
            "restore the configuration, or set `results` to a new directory"
        )
    return manifest


def layout_of(manifest: ShardManifest, folder: Path) -> Layout:
    """Read the layout that a manifest describes; raise ShardError when it describes none."""
    try:
        return Layout.from_description(manifest.layout)
    except LayoutError as error:
        raise ShardError(f"{folder / MANIFEST}: the key layout: {error}; {REMEDY}") from error


def read_layout(folder: Path) -> Layout:
    """Read the layout of a folder's shards from its manifest."""
    return layout_of(open_manifest(folder, None), folder)


def verify(folder: Path) -> tuple[int, int]:
    """Check the sizes, columns and rows of a folder's files, and return its events and items.

    Raise ShardError naming the first file that is not what the manifest says.
    """
    manifest = open_manifest(folder, None)
    layout = layout_of(manifest, folder)
    for role in ROLES:
        Shards(folder, role, layout)
    return manifest.totals()


def check_hashes(folder: Path, entry: ShardEntry) -> None:
    """Raise ShardError unless both files of a manifest's entry have the recorded hash."""
    for part, recorded in entry.files.items():
        _check_hash(folder / f"{entry.name}.{part}.parquet", recorded.sha256)


def check_on_disk(folders: Iterable[Path], workers: int) -> None:
    """Raise ShardError unless all files of folders are as they were written, read from the disk once more.

    Checksums were taken when the files were written, from memory; what counts is what the disk gives back.
    crc32c finds damage as well as sha256, in a fraction of the time; an earlier crpipe recorded none.
    """
    wanted = [
        (folder / f"{entry.name}.{part}.parquet", recorded)
        for folder in folders
        for entry in open_manifest(folder, None).shards
        for part, recorded in entry.files.items()
    ]

    def check(file: tuple[Path, ShardFile]) -> None:
        path, recorded = file
        drop_page_cache(path)
        if recorded.crc32c is not None:
            _check_hash(path, recorded.crc32c, _crc32c)
        else:
            _check_hash(path, recorded.sha256)
        drop_page_cache(path)

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(check, wanted):
            pass


def _crc32c(path: Path) -> str:
    return checksums.of_file(path, "crc32c")


def _check_hash(path: Path, recorded: str, hashed: Callable[[Path], str] = sha256) -> None:
    with MachineWatch(path):
        if not is_there(path):
            raise ShardError(f"{path}: missing, though the manifest names it; {REMEDY}")
        actual = retry_io(lambda: hashed(path))
    if actual != recorded:
        raise ShardError(f"{path}: damaged: its bytes are not those the manifest names; {REMEDY}")


def groups_of(shards: Shards, layout: Layout) -> Iterator[Events]:
    """Read all events of all shards, one row group of events at a time."""
    for number, pair in enumerate(shards.pairs):
        for index in range(pair.events.groups):
            yield read_group(shards, number, index, layout)


def read_group(shards: Shards, shard: int, index: int, layout: Layout) -> Events:
    """Read one row group of events with its items."""
    group = shards.group(shard, index)
    low, high = int(group.item_rows[0]), int(group.item_rows[-1])
    items = np.empty((high - low, len(layout.items)), np.float32)
    shards.items(shard, low, high, items)
    return Events(group.columns, group.multiplicity, items)


def shards_record(store: Path, key: str) -> Path:
    """Name the record in a link's store; an earlier crpipe wrote none."""
    return store / f"shards-{key}.json"


def note_shards(record: Path, folders: Iterable[Path]) -> None:
    """Record the manifests of the shards that a training begins with."""
    there = [folder for folder in folders if is_present(folder / MANIFEST)]
    TrainedShards(manifests={folder.name: _digest_of(folder) for folder in there}).write(record)


def changed_shards(record: Path, folders: Iterable[Path]) -> list[Path]:
    """List the folders that hold other shards than those recorded; none where there is no record."""
    if not is_present(record):
        return []
    noted = TrainedShards.read(record).manifests
    there = [folder for folder in folders if is_present(folder / MANIFEST)]
    return [folder for folder in there if noted.get(folder.name) != _digest_of(folder)]


def _digest_of(folder: Path) -> str:
    return digest(ShardManifest.read(folder / MANIFEST).as_json())
