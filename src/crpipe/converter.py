"""The converter's rows: one nested row per event, as the simulation writes it and crpipe hands it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.fields import BUNDLES, MUON, PRIMARY, PRIMARY_IDS, RAW_MUONS, RAW_PRIMARY

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


def nested_table(
    columns: Mapping[str, NDArray[Any]], multiplicity: NDArray[Any], muons: NDArray[np.float32]
) -> pa.Table:
    """Nest flat events into the converter's rows.

    columns: [N] each, those of fields.BUNDLES. multiplicity: [N]. muons: [M, 3] float32, event after event.
    """
    assert set(columns) >= {field.name for field in BUNDLES.events}
    primary = np.stack([columns[field.name] for field in PRIMARY], axis=1).astype(np.float32)
    tracks = _lists(np.full(len(muons), len(MUON)), pa.array(muons.ravel()))
    return pa.Table.from_arrays(
        [
            *(pa.array(columns[field.name].astype(np.uint64)) for field in PRIMARY_IDS),
            _lists(np.full(len(primary), len(PRIMARY)), pa.array(primary.ravel())),
            _lists(multiplicity, tracks),
        ],
        schema=SCHEMA,
    )


def _lists(lengths: NDArray[Any], values: pa.Array) -> pa.ListArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)
