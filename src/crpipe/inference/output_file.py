"""One output file that is made part by part: after a crash the same command continues with the next part."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import itertools
import json
import math
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from crpipe.core.causes import OF_FORM, is_present, refuse_machine_error, retry_io
from crpipe.core.errors import ConfigError, FormatError, require
from crpipe.core.files import atomic_write, digest, remove_tree
from crpipe.core.text import counted
from crpipe.events.shard_reader import DAMAGE, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from crpipe.events.batch import Events

# Rows as a ROOT file: the TTree ``predictions``, one branch for each column, and the TTree ``metadata``.
#
# Written with uproot in portions, so memory does not grow with the rows; equal rows give equal bytes.


TREE, METADATA = "predictions", "metadata"
_PORTION = 1 << 16  # rows of one basket; small ones make the file large and its reading slow
_DATE = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)


def uproot_module() -> ModuleType:
    """Import uproot; raise MissingExtra where it is not installed."""
    require("awkward", extra="root", why="to write ROOT files")
    return require("uproot", extra="root", why="to write ROOT files")


def write_root(
    path: Path, schema: pa.Schema, tables: Iterable[pa.Table], metadata: Mapping[str, Any]
) -> None:
    """Write tables of one schema into a ROOT file.

    metadata: one entry of the tree ``metadata``: texts, whole numbers or floats.
    """
    uproot = uproot_module()
    # ROOT files have a UUID: that of random numbers would make equal files differ.
    text = json.dumps([schema.names, *sorted(metadata.items())])
    number = uuid.uuid5(uuid.NAMESPACE_OID, text)
    # Not by its name, which uproot would write into the file.
    with (
        _fixed_dates(uproot),
        path.open("w+b") as handle,
        uproot.recreate(handle, uuid_function=lambda: number) as file,
    ):

        def tree(name: str, schema: pa.Schema, title: str) -> Any:
            return file.mktree(name, {field.name: _branch(field.type) for field in schema}, title=title)

        rows = tree(TREE, schema, "one entry for each row")
        for table in _grouped(tables, _PORTION):
            if len(table):
                rows.extend(_arrays(table))
        origin = pa.table({name: [value] for name, value in metadata.items()})
        tree(METADATA, origin.schema, "where the predictions come from").extend(_arrays(origin))


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
            f"--out: {name} lacks {counted(column.null_count, 'value')}, which a ROOT tree cannot "
            "hold; choose a name that ends in .parquet"
        )
    if _branch(column.type) == "string":
        return require("awkward", extra="root", why="to write ROOT files").from_arrow(column)
    return values_of(column)


@contextlib.contextmanager
def _fixed_dates(uproot: ModuleType) -> Iterator[None]:
    """Set one date for all records of a ROOT file in the block: that of now would make equal files differ.

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


BLOCKS_PER_PART = 16
# A row group of the output: each one takes some kB in the file's footer, which readers keep in memory.
GROUP_ROWS, GROUP_BYTES = 1 << 17, 1 << 24
SUFFIXES = (".parquet", ".csv", ".root")
# A dictionary of floats is as long as the column: with one, ten million items take 2 GB to write.
_PARQUET = {"compression": "zstd", "use_dictionary": False}


def check_suffix(out: Path) -> None:
    """Raise ConfigError unless the name says Parquet, CSV or ROOT; MissingExtra where ROOT needs one."""
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out {out}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if out.suffix == ".root":
        uproot_module()


def write_in_parts(
    out: Path,
    identity: Any,
    blocks: Iterable[Events],
    rows: Callable[[int, Events], Iterable[pa.Table]],
    advance: Callable[[int], None],
    metadata: Mapping[str, Any],
) -> int:
    """Write the ``rows(number, block)`` of all blocks to ``out`` and return the number of events.

    Parts are kept in ``<out>.parts`` until all are done. ``identity`` is a JSON value that names everything
    that the rows depend on: parts of another identity are not used. ``advance`` is called with the events
    done. ``metadata`` says in a ROOT file where the rows come from. Raise FormatError when there is no event
    at all.
    """
    folder = out.with_name(f"{out.name}.parts") / digest(identity)
    paths, done = [], 0

    def counting(group: Iterable[tuple[int, Events]]) -> Iterator[tuple[int, Events]]:
        nonlocal done
        for index, block in group:
            done += len(block)
            yield index, block

    groups = itertools.groupby(enumerate(blocks), lambda pair: pair[0] // BLOCKS_PER_PART)
    for number, group in groups:
        path = folder / f"part-{number:06d}.parquet"
        paths.append(path)
        numbered = counting(group)
        if is_present(path) and _is_whole(path):
            collections.deque(numbered, maxlen=0)  # read, to count its events and compare their keys
        else:
            _write_part(path, (table for index, block in numbered for table in rows(index, block)), out)
        advance(done)
    if not done:
        raise FormatError(f"{out}: not written, the input holds no event")
    _join(paths, out, metadata)
    remove_tree(folder.parent)
    return done


def _write_part(path: Path, tables: Iterator[pa.Table], out: Path) -> None:
    first = next(tables)
    refuse_columns(first.schema, out)
    with (
        atomic_write(path) as part,
        pq.ParquetWriter(part, first.schema, write_page_checksum=True, **_PARQUET) as writer,
    ):
        for table in itertools.chain([first], tables):
            writer.write_table(table)


def _is_whole(part: Path) -> bool:
    """Return whether a part of an earlier call can be read; one that is damaged is made again."""
    try:
        retry_io(lambda: collections.deque(_tables([part], pq.read_schema(part)), maxlen=0), part)
    except DAMAGE as error:
        refuse_machine_error(error, part, OF_FORM, OF_FORM)
        return False
    return True


def refuse_columns(schema: pa.Schema, out: Path) -> None:
    """Raise ConfigError for columns that the format of ``out`` cannot hold.

    A branch of a ROOT tree holds no lists, dates, or texts of a dictionary.
    """
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if out.suffix == ".csv" and nested:
        raise ConfigError(
            f"--out {out}: CSV cannot hold the lists in {', '.join(nested)}; choose a name that ends in "
            ".parquet, or, of generated events, one row for each item: --flat"
        )
    others = [f"{field.name} ({field.type})" for field in schema if _branch(field.type) is None]
    if out.suffix == ".root" and others:
        raise ConfigError(
            f"--out {out}: a ROOT tree of numbers and texts cannot hold {', '.join(others)}; choose a name "
            "that ends in .parquet, or other columns with --columns"
        )


def _join(parts: list[Path], out: Path, metadata: Mapping[str, Any]) -> None:
    schema = pq.read_schema(parts[0])
    tables = _grouped(_tables(parts, schema), GROUP_ROWS, GROUP_BYTES)
    with atomic_write(out) as part:
        if out.suffix == ".root":
            write_root(part, schema, tables, metadata)
            return
        csv = out.suffix == ".csv"
        writer = pyarrow.csv.CSVWriter(part, schema) if csv else pq.ParquetWriter(part, schema, **_PARQUET)
        with writer:
            for table in tables:
                writer.write_table(table)


def _tables(parts: list[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Read the parts, one small table after the other."""
    for path in parts:
        with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
            if not file.schema_arrow.equals(schema):
                raise FormatError(
                    f"{path}: other columns than in {parts[0]}; delete {path.parent.parent} and run the "
                    "same command again"
                )
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)


def _grouped(tables: Iterable[pa.Table], most_rows: int, most_bytes: float = math.inf) -> Iterator[pa.Table]:
    """Concatenate tables until they have this many rows, or bytes in memory."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + len(table), size + table.nbytes
        if rows >= most_rows or size >= most_bytes:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)
