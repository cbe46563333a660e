"""One output file that is made part by part: after a crash the same command continues with the next part."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, FormatError
from crpipe.core.files import digest, remove_tree, replacing
from crpipe.inference.output.root_file import RootWriter, refuse_for_root, uproot_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from crpipe.events.batch import Events

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
    groups = itertools.groupby(enumerate(blocks), lambda pair: pair[0] // BLOCKS_PER_PART)
    for number, group in groups:
        path = folder / f"part-{number:06d}.parquet"
        paths.append(path)
        counted = _Counted(group)
        if is_present(path):
            for _ in counted:
                pass
        else:
            _write_part(path, (table for index, block in counted for table in rows(index, block)), out)
        done += counted.events
        advance(done)
    if not done:
        raise FormatError(f"{out}: not written, the input holds no event")
    _join(paths, out, metadata)
    remove_tree(folder.parent)
    return done


class _Counted:
    """Passes numbered blocks on, and counts their events."""

    def __init__(self, blocks: Iterator[tuple[int, Events]]) -> None:
        self._blocks = blocks
        self.events = 0

    def __iter__(self) -> Iterator[tuple[int, Events]]:
        for number, block in self._blocks:
            self.events += len(block)
            yield number, block


def _write_part(path: Path, tables: Iterator[pa.Table], out: Path) -> None:
    first = next(tables)
    _refuse_columns(first.schema, out)
    with replacing(path) as part, pq.ParquetWriter(part, first.schema, **_PARQUET) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table)


def _refuse_columns(schema: pa.Schema, out: Path) -> None:
    """Raise ConfigError for columns that the format of ``out`` cannot hold."""
    if out.suffix == ".root":
        refuse_for_root(schema, out)
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if out.suffix == ".csv" and nested:
        raise ConfigError(
            f"--out {out}: CSV cannot hold the lists in {', '.join(nested)}; choose a name that ends in "
            ".parquet"
        )


def _join(parts: list[Path], out: Path, metadata: Mapping[str, Any]) -> None:
    schema = pq.read_schema(parts[0])
    with replacing(out) as part, _writer(part, out, schema, metadata) as writer:
        for table in _row_groups(_tables(parts, schema)):
            writer.write_table(table)


def _tables(parts: list[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Read the parts, one small table after the other."""
    for path in parts:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            if not file.schema_arrow.equals(schema):
                raise FormatError(
                    f"{path}: other columns than in {parts[0]}; delete {path.parent.parent} and run the "
                    "same command again"
                )
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Put tables together until they are worth a row group."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + len(table), size + table.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _writer(part: Path, out: Path, schema: pa.Schema, metadata: Mapping[str, Any]) -> Any:
    if out.suffix == ".root":
        return RootWriter(part, schema, metadata)
    if out.suffix == ".csv":
        return pyarrow.csv.CSVWriter(part, schema)
    return pq.ParquetWriter(part, schema, **_PARQUET)
