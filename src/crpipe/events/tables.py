"""Side tables of a campaign: files that hold for all ranges, such as a geometry or a list of dead channels.

``source.tables`` names them; the tables job stages each once, verified, and records its hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crpipe.core.causes import is_present, is_there, persist
from crpipe.core.errors import DataError
from crpipe.core.files import read_json

Tables = Mapping[str, Path]  # the name in source.tables -> the verified copy


def read_tables(record: Path) -> dict[str, dict[str, Any]]:
    """Read tables.json: {name: {uri, path, size, sha256}}; empty when the campaign has no side tables yet."""
    if not is_present(record):
        return {}
    found: dict[str, dict[str, Any]] = read_json(record)
    return found


def table_paths(record: Path) -> dict[str, Path]:
    """Find the copy of each side table; raise DataError when one is missing or has another size."""
    paths = {}
    for name, row in read_tables(record).items():
        path = record.parent / row["path"]
        if not is_there(path) or persist(path.stat).st_size != row["size"]:
            raise DataError(
                f"{path}: the copy of table {name} is missing or has another size; delete {record} and run "
                "the same command again"
            )
        paths[name] = path
    return paths


def table_keys(record: Path) -> dict[str, str]:
    """Return the hashes of the side tables as keys for a fingerprint: {"tables.NAME": sha256}."""
    return {f"tables.{name}": row["sha256"] for name, row in read_tables(record).items()}
