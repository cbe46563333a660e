"""Column names, types, units and legal values of muon bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crpipe.events.expectations import Expectations
from crpipe.events.layout import Field, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

PRIMARY_IDS = (
    Field("primary_major_id", "uint64", "", 0, 2**64 - 1, "production run of the primary"),
    Field(
        "primary_minor_id",
        "uint64",
        "",
        0,
        2**64 - 1,
        "number of the primary within its run: the same in all its rows",
    ),
)

PRIMARY = (
    Field("energy_gev", "float32", "GeV", 1e-3, 1e15, "energy of the primary"),
    Field("zenith_rad", "float32", "rad", 0.0, 3.1415930, "zenith angle of the primary, 0 = vertically down"),
    Field("mass_number", "float32", "", 1, 300, "mass number of the primary nucleus"),
    Field("depth_m", "float32", "m", 0.0, 1e5, "vertical depth in the ice at which the muons are recorded"),
)

MUON = (
    Field("energy_gev", "float32", "GeV", 0.0, 1e15, "energy of the muon at this depth"),
    Field("x_m", "float32", "m", -1e6, 1e6, "x from the shower axis, in the plane across it"),
    Field("y_m", "float32", "m", -1e6, 1e6, "y from the shower axis, in the plane across it"),
)

BUNDLES = Layout("muons", (*PRIMARY_IDS, *PRIMARY), MUON, ("primary_major_id", "primary_minor_id"))

# The medians show another unit, and the energies of the muons of a bundle come out of their primary's.
EXPECTATIONS = Expectations(
    typical={
        "energy_gev": (100, 1e11),
        "depth_m": (50, 2e4),
        "muons.energy_gev": (1, 3e4),
        "muons.x_m": (0.05, 100),
        "muons.y_m": (0.05, 100),
    },
    sums={"energy_gev": "energy_gev"},
)

# The simulation's converter: one list column per row for the primary, one list of lists for its muons.
RAW_PRIMARY = "primary"

RAW_MUONS = "muons"

# The converter from and to HDF5 has the ids and a time in each row; times are not read.
CONVERTED_PRIMARY = (*BUNDLES.group, *(field.name for field in PRIMARY[:3]), "time", PRIMARY[3].name)
CONVERTED_MUON = (*BUNDLES.group, *(field.name for field in MUON), "time")

# The raw files' own schema: one nested row per event, as the simulation writes it and crpipe exports it.

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
