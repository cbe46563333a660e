"""The raw files' own schema: one nested row per event, as the simulation writes it and crpipe exports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.workloads.muons.layout import BUNDLES, PRIMARY, PRIMARY_IDS, RAW_MUONS, RAW_PRIMARY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SCHEMA = pa.schema(
    [
        *((field.name, pa.uint64()) for field in PRIMARY_IDS),
        (RAW_PRIMARY, pa.list_(pa.float32())),
        (RAW_MUONS, pa.list_(pa.list_(pa.float32()))),
    ]
)
# A dictionary of floats is as long as the column: with one, ten million muons take 2 GB to write.
WRITER = {"compression": "zstd", "use_dictionary": False}


def nested_table(
    columns: Mapping[str, NDArray[Any]], multiplicity: NDArray[Any], muons: NDArray[np.float32]
) -> pa.Table:
    """Nest flat events into rows of the raw files' schema.

    columns: [N] each, those of layout.BUNDLES. multiplicity: [N]. muons: [M, 3] float32, event after event.
    """
    assert set(columns) >= {field.name for field in BUNDLES.events}
    primary = np.stack([columns[field.name] for field in PRIMARY], axis=1).astype(np.float32)
    starts = np.zeros(len(multiplicity) + 1, np.int32)
    np.cumsum(multiplicity, out=starts[1:])
    return pa.Table.from_arrays(
        [
            *(pa.array(columns[field.name].astype(np.uint64)) for field in PRIMARY_IDS),
            _rows(primary),
            pa.ListArray.from_arrays(pa.array(starts), _rows(muons)),
        ],
        schema=SCHEMA,
    )


def _rows(values: NDArray[np.float32]) -> pa.ListArray:
    """Turn [N, K] into N lists of K values."""
    starts = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(starts), pa.array(values.ravel()))
