"""Rows as a ROOT file: the TTree ``predictions``, one branch for each column, and the TTree ``metadata``.

Written with uproot in portions, so memory does not grow with the rows; equal rows give equal bytes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import uuid
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from crpipe.core.errors import ConfigError
from crpipe.core.extras import require
from crpipe.events.shard_reader import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import ModuleType, TracebackType

    from numpy.typing import NDArray

TREE, METADATA = "predictions", "metadata"
_PORTION = 1 << 16  # rows of one basket; small ones make the file large and its reading slow
_DATE = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def uproot_module() -> ModuleType:
    """Import uproot; raise MissingExtra where it is not installed."""
    require("awkward", extra="root", why="to write ROOT files")
    return require("uproot", extra="root", why="to write ROOT files")


def refuse_for_root(schema: pa.Schema, out: Path) -> None:
    """Raise ConfigError for columns that a branch cannot hold: lists, dates, texts of a dictionary."""
    held = [field.name for field in schema if _branch(field.type) is None]
    if held:
        kinds = ", ".join(f"{name} ({schema.field(name).type})" for name in held)
        raise ConfigError(
            f"--out {out}: a ROOT tree of numbers and texts cannot hold {kinds}; choose a name that ends in "
            ".parquet, or other columns with --columns"
        )


class RootWriter:
    """Writes tables of one schema into a ROOT file, which is whole when the block ends.

    metadata: one entry of the tree ``metadata``: texts, whole numbers or floats.
    """

    def __init__(self, path: Path, schema: pa.Schema, metadata: Mapping[str, Any]) -> None:
        self._path, self._schema, self._metadata = path, schema, metadata
        self._stack = contextlib.ExitStack()
        self._held: list[pa.Table] = []
        self._rows = 0

    def __enter__(self) -> Self:
        """Open the file and declare the branches."""
        uproot = uproot_module()
        # ROOT files have a UUID: that of random numbers would make equal files differ.
        text = json.dumps([self._schema.names, *sorted(self._metadata.items())])
        own = uuid.uuid5(uuid.NAMESPACE_OID, text)
        self._stack.enter_context(_fixed_dates(uproot))
        # Not by its name, which uproot would write into the file.
        handle = self._stack.enter_context(self._path.open("w+b"))
        self._file = self._stack.enter_context(uproot.recreate(handle, uuid_function=lambda: own))
        branches = {field.name: _branch(field.type) for field in self._schema}
        self._tree = self._file.mktree(TREE, branches, title="one entry for each row")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is held, then the metadata, and close the file; after an error only close it."""
        with self._stack:
            if error is None:
                self._flush()
                row = pa.table({name: [value] for name, value in self._metadata.items()})
                branches = {field.name: _branch(field.type) for field in row.schema}
                tree = self._file.mktree(METADATA, branches, title="where the predictions come from")
                tree.extend(_arrays(row))

    def write_table(self, table: pa.Table) -> None:
        """Append rows."""
        self._held.append(table)
        self._rows += len(table)
        if self._rows >= _PORTION:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._tree.extend(_arrays(pa.concat_tables(self._held)))
        self._held, self._rows = [], 0


def _branch(kind: pa.DataType) -> str | None:
    """Name the type of the branch of a column; None where there is none."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return str(kind)
    return {pa.float32(): "float32", pa.float64(): "float64"}.get(kind)


def _arrays(table: pa.Table) -> dict[str, Any]:
    return {name: _array(name, table[name]) for name in table.column_names}


def _array(name: str, column: pa.ChunkedArray) -> NDArray[Any] | Any:
    if column.null_count:
        raise ConfigError(
            f"--out: {column.null_count} values of {name} are missing, which a ROOT tree cannot hold; choose "
            "a name that ends in .parquet"
        )
    if _branch(column.type) == "string":
        return require("awkward", extra="root", why="to write ROOT files").from_arrow(column)
    return values_of(column)


@contextlib.contextmanager
def _fixed_dates(uproot: ModuleType) -> Iterator[None]:
    """Give all records of a ROOT file one date: that of now would make equal files differ.

    uproot has no option for it. A version without this function writes equal contents with other dates.
    """
    util = uproot._util  # noqa: SLF001
    real = getattr(util, "datetime_to_code", None)
    if real is None:
        yield
        return
    fixed = real(_DATE)
    util.datetime_to_code = lambda _: fixed
    try:
        yield
    finally:
        util.datetime_to_code = real
