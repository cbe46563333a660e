"""The side table ``geometry``: where each sensor is."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv

from crpipe.core.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

COLUMNS = ("sensor_id", "x", "y", "z")
_FARTHEST_M = 1e5


@lru_cache(maxsize=4)
def read_geometry(path: Path) -> NDArray[np.float32]:
    """Read sensor_geometry.csv: positions [S, 3] in m, the row is the sensor_id.

    Columns: sensor_id, x, y, z; further ones are ignored. Raise FormatError for a table without them, with
    other ids than 0 to S-1 in order, or with positions that are not finite numbers of metres: a normalised
    table would train without a word and be wrong everywhere else.
    """
    try:
        convert = pyarrow.csv.ConvertOptions(include_columns=list(COLUMNS))
        table = pyarrow.csv.read_csv(path, convert_options=convert)
        ids, *axes = (table[name].to_numpy().astype(np.float64) for name in COLUMNS)
    except (OSError, KeyError, ValueError, pa.ArrowInvalid) as error:
        raise FormatError(f"{path}: expected the columns {', '.join(COLUMNS)} ({error})") from error
    places = np.stack(axes, axis=1)
    wrong = np.flatnonzero(ids != np.arange(len(ids)))
    if not len(ids) or len(wrong):
        row = int(wrong[0]) if len(wrong) else 0
        found = ids[row] if len(ids) else "no row"
        raise FormatError(f"{path}: row {row}: expected sensor_id {row}, found {found}; sort the table by it")
    if not (np.isfinite(places).all() and np.abs(places).max() < _FARTHEST_M):
        raise FormatError(f"{path}: positions must be finite and within ±{_FARTHEST_M:g} m")
    if np.abs(places).max() < 10:  # noqa: PLR2004 - the smallest telescopes are larger
        raise FormatError(
            f"{path}: all sensors are within {np.abs(places).max():g} m of the centre; give positions in m, "
            "not normalised ones"
        )
    found_places: NDArray[np.float32] = places.astype(np.float32)
    return found_places
