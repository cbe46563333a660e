"""Which shards a link is trained on: written when it begins, compared when it goes on or is adopted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.files import digest, read_json, write_json
from crpipe.core.paths import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def shards_record(store: Path, key: str) -> Path:
    """Name the record in a link's store; an earlier crpipe wrote none."""
    return store / f"shards-{key}.json"


def note_shards(record: Path, folders: Iterable[Path]) -> None:
    """Record the manifests of the shards that a training begins with."""
    there = [folder for folder in folders if (folder / MANIFEST).exists()]
    write_json(record, {folder.name: _digest_of(folder) for folder in there})


def changed_shards(record: Path, folders: Iterable[Path]) -> list[Path]:
    """List the folders that hold other shards than those recorded; none where there is no record."""
    if not record.exists():
        return []
    noted = read_json(record)
    there = [folder for folder in folders if (folder / MANIFEST).exists()]
    return [folder for folder in there if noted.get(folder.name) != _digest_of(folder)]


def _digest_of(folder: Path) -> str:
    return digest(read_json(folder / MANIFEST))
