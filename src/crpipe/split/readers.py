"""Readers of raw files, by name: a path comes in, bounded blocks of events go out.

The name in ``source.reader`` says how the file is laid out; nothing is guessed from its width.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from crpipe.core.errors import ConfigError
from crpipe.events.layout import Layout
from crpipe.workloads.muons.layout import PRIMARY_IDS
from crpipe.workloads.muons.reading.hdf5 import Hdf5Bundles
from crpipe.workloads.muons.reading.parquet import MUON_NAMES, PRIMARY_NAMES, ParquetBundles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.events.batch import Events


class Reader(Protocol):
    """What reads one kind of raw file."""

    @property
    def layout_name(self) -> str:
        """Name of the layout, as it stands in the manifests of the shards."""

    @property
    def layout(self) -> Layout:
        """Columns of the events and items that ``rows`` yields."""

    def rows(self, path: Path) -> Iterator[Events]:
        """Yield all events in the order of the file, in blocks of bounded memory.

        Raise FormatError (path, row, expected, found) when the file cannot be read whole.
        """

    def totals(self, path: Path) -> tuple[int, int]:
        """Count events and items without decoding them, where the format allows; raise FormatError."""


_IDS = tuple(field.name for field in PRIMARY_IDS)

READERS: Mapping[str, Reader] = {
    "bundles": ParquetBundles(),
    "bundles_depth_time": ParquetBundles(primary=(*PRIMARY_NAMES, "time")),
    "bundles_time_depth": ParquetBundles(primary=(*PRIMARY_NAMES[:3], "time", PRIMARY_NAMES[3])),
    "bundles_ids": ParquetBundles(primary=(*_IDS, *PRIMARY_NAMES)),
    "bundles_ids_muons": ParquetBundles(primary=(*_IDS, *PRIMARY_NAMES), muon=(*_IDS, *MUON_NAMES)),
    "bundles_hdf5": Hdf5Bundles(),
}


def find_reader(name: str) -> Reader:
    """Find a reader by its name, or by the import path ``module:name`` of an instance."""
    if name in READERS:
        return READERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, READERS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"source.reader: no reader {name!r}, only {', '.join(READERS)}{hint}")
    try:
        reader: Reader = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"source.reader: {name!r} cannot be used ({error}); expected module:name"
        ) from error
    lacking = [part for part in ("layout_name", "layout", "rows", "totals") if not hasattr(reader, part)]
    if lacking or not isinstance(reader.layout, Layout):
        raise ConfigError(f"source.reader: {name} is no instance of a reader (crpipe.split.readers.Reader)")
    return reader
