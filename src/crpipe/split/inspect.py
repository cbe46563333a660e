"""What a data file holds, told to a person: raw Parquet of any width, either half of a shard, HDF5."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe.core.errors import FormatError
from crpipe.core.extras import require
from crpipe.events.layout import MULTIPLICITY
from crpipe.workloads.muons.layout import RAW_MUONS, RAW_PRIMARY
from crpipe.workloads.muons.reading.checks import reading
from crpipe.workloads.muons.reading.parquet import decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_PARQUET = b"PAR1"
_HDF5 = b"\x89HDF"
_QUANTILES = (0.5, 0.9, 0.99)
_SHOWN_MUONS = 3


def inspect_file(path: Path, rows: int) -> str:
    """Describe a file: schema, rows, multiplicities, its first ``rows`` events.

    Raise FormatError when it is missing, damaged, or neither Parquet nor HDF5.
    """
    with reading(path):
        with path.open("rb") as handle:
            magic = handle.read(len(_PARQUET))
        if magic == _PARQUET:
            return "\n".join(_parquet(path, rows))
        if magic == _HDF5:
            return "\n".join(_hdf5(path, rows))
    raise FormatError(
        f"{path}: neither Parquet nor HDF5 (it starts with {magic!r}); crpipe inspects raw files and shards"
    )


def _parquet(path: Path, rows: int) -> Iterator[str]:
    with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        kind = _kind(names)
        footer = file.metadata
        yield f"{path}: {kind}, {footer.num_rows} rows in {footer.num_row_groups} row groups"
        yield from (f"  {field.name}: {field.type}" for field in file.schema_arrow)
        if RAW_MUONS in names:
            yield from _multiplicities(_raw_multiplicity(file))
        elif MULTIPLICITY in names:
            yield from _multiplicities(file.read([MULTIPLICITY])[MULTIPLICITY].to_numpy())
        one_by_one = file.iter_batches(batch_size=1, use_threads=False)
        for batch in itertools.islice(one_by_one, rows):
            cells = (f"{name} {_cell(column[0])}" for name, column in zip(names, batch.columns, strict=True))
            yield "  " + ", ".join(cells)


def _kind(names: list[str]) -> str:
    if {RAW_PRIMARY, RAW_MUONS} <= {*names}:
        return "raw Parquet"
    if MULTIPLICITY in names:
        return "events of a shard" if "source_row" in names else "table with multiplicities"
    return "muons of a shard" if {"x_m", "y_m"} <= {*names} else "Parquet of another kind"


def _raw_multiplicity(file: pq.ParquetFile) -> NDArray[Any]:
    found = [np.zeros(0, np.int64)]
    for group in range(file.num_row_groups):
        lengths = (pc.list_value_length(batch.column(0)) for batch in decode(file, group, [RAW_MUONS]))
        found += [each.to_numpy(zero_copy_only=False) for each in lengths]
    return np.concatenate(found)


def _hdf5(path: Path, rows: int) -> Iterator[str]:
    h5py = require("h5py", extra="hdf5", why="to read HDF5 files")
    with h5py.File(path, "r") as file:
        yield f"{path}: HDF5"
        sets = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
        yield from (f"  {name}: {item.dtype} {list(item.shape)}" for name, item in sets.items())
        if not {"primaries", "muons", "counts"} <= {*sets}:
            raise FormatError(
                f"{path}: expected the datasets primaries, muons, counts, found {', '.join(sets) or 'none'}"
            )
        counts = sets["counts"][:]
        yield from _multiplicities(counts)
        ends = np.cumsum(counts[:rows], dtype=np.int64)
        for index, (end, count) in enumerate(zip(ends, counts[:rows], strict=True)):
            muons = sets["muons"][end - count : min(end, end - count + _SHOWN_MUONS)].tolist()
            yield f"  primary {_value(sets['primaries'][index].tolist())}, {count} muons {_value(muons)}"


def _multiplicities(values: NDArray[Any]) -> Iterator[str]:
    if not len(values):
        yield "  no events"
        return
    quantiles = np.quantile(values, _QUANTILES, method="inverted_cdf")
    named = ", ".join(f"{share:.0%} {value}" for share, value in zip(_QUANTILES, quantiles, strict=True))
    empty = int((values == 0).sum())
    yield (
        f"  multiplicity: {len(values)} events, {int(values.sum(dtype=np.int64))} muons, {empty} events "
        f"without; quantiles {named}; largest {values.max()}"
    )


def _cell(scalar: Any) -> str:
    """One value of a Parquet row; of muons only the first ones, for a giant has millions."""
    if not (scalar.is_valid and pa.types.is_list(scalar.type) and pa.types.is_list(scalar.type.value_type)):
        return _value(scalar.as_py())
    return f"{len(scalar)} {_value(scalar.values.slice(0, _SHOWN_MUONS).to_pylist())}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
