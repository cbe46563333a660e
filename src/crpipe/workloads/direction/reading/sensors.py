"""Sensors that are numbered on their strings: which row of the geometry each is, and a check of its place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from crpipe.core.errors import FormatError
from crpipe.core.files import replacing
from crpipe.workloads.direction.geometry import read_geometry

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

POSITIONS = ("sensor_pos_x", "sensor_pos_y", "sensor_pos_z")
NAMES = ("string_id", "sensor_on_string")
_NEAR_M = 0.5
_SAME_M = 0.01


@dataclass(frozen=True, slots=True)
class Hits:
    """Which sensors were hit, by string and number on it, [M] each, where they are, [M, 3] m, and the row."""

    string: NDArray[np.int64]
    sensor: NDArray[np.int64]
    places: NDArray[np.float64]
    rows: NDArray[np.int64]

    def name(self, hit: int) -> str:
        """Spell one hit for a message."""
        return (
            f"row {self.rows[hit]}: sensor {self.sensor[hit]} of string {self.string[hit]} at "
            f"{self.places[hit].tolist()} m"
        )


@dataclass(frozen=True, slots=True)
class Sensors:
    """The sensors of a geometry, [S]: sorted keys, the row of each, and places [S, 3] in m by row."""

    path: Path
    keys: NDArray[np.int64]
    rows: NDArray[np.int64]
    places: NDArray[np.float32]

    def find(self, path: Path, hits: Hits) -> NDArray[np.int64]:
        """Give the row in the geometry of each hit, [M]; raise FormatError for one missing or 0.5 m off."""
        keys = key_of(hits.string, hits.sensor)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found = self.rows[at]
        unknown = self.keys[at] != keys
        wrong = unknown | ~(np.abs(hits.places - self.places[found]).max(axis=1, initial=0) <= _NEAR_M)
        if wrong.any():
            hit = int(np.argmax(wrong))
            known = "no such sensor" if unknown[hit] else f"it at {self.places[found[hit]].tolist()} m"
            raise FormatError(
                f"{path}: {hits.name(hit)}, but {self.path} has {known}; give the geometry of these files in "
                "source.tables, as geometry (geometry_of makes it from the files)"
            )
        return found


class Places:
    """Collects where sensors are; the same sensor must be at the same place, within 1 cm."""

    def __init__(self) -> None:
        self._known: dict[int, NDArray[np.float64]] = {}

    def add(self, path: Path, hits: Hits) -> None:
        """Take the sensors of some hits; raise FormatError where one is at two places."""
        keys, first, of = np.unique(key_of(hits.string, hits.sensor), return_index=True, return_inverse=True)
        mine = [
            self._known.setdefault(int(key), hits.places[at]) for key, at in zip(keys, first, strict=True)
        ]
        known = np.reshape(mine, (-1, 3))[of]
        wrong = ~(np.abs(hits.places - known).max(axis=1, initial=0) <= _SAME_M)
        if wrong.any():
            hit = int(np.argmax(wrong))
            raise FormatError(
                f"{path}: {hits.name(hit)}, but other hits of it are at {known[hit].tolist()} m; take files "
                "of one geometry only"
            )

    def write(self, out: Path) -> None:
        """Write the table, sorted by string and sensor; its row is the sensor_id."""
        rows = [",".join(["sensor_id", "x", "y", "z", *NAMES])]
        for row, key in enumerate(sorted(self._known)):
            place = ",".join(map(repr, self._known[key].tolist()))
            rows.append(f"{row},{place},{key >> 32},{key & 0xFFFFFFFF}")
        with replacing(out) as part:
            part.write_text("\n".join(rows) + "\n")


def key_of(string: NDArray[np.int64], sensor: NDArray[np.int64]) -> NDArray[np.int64]:
    """Join the number of a string and that of a sensor on it into one number each: [M]."""
    return (string.astype(np.int64) << 32) + sensor


@lru_cache(maxsize=4)
def read_sensors(path: Path) -> Sensors:
    """Read a geometry whose columns string_id and sensor_on_string name each sensor; raise FormatError."""
    places = read_geometry(path)
    try:
        options = pyarrow.csv.ConvertOptions(
            include_columns=list(NAMES), column_types=dict.fromkeys(NAMES, pa.int64())
        )
        table = pyarrow.csv.read_csv(path, convert_options=options)
    except (pa.ArrowInvalid, KeyError) as error:
        raise FormatError(
            f"{path}: expected the columns {' and '.join(NAMES)} with whole numbers beside sensor_id, x, y, "
            f"z ({error}); geometry_of makes such a table from files of Prometheus"
        ) from error
    keys = key_of(*(table[name].to_numpy() for name in NAMES))
    order = np.argsort(keys, kind="stable")
    twice = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(twice):
        raise FormatError(f"{path}: row {order[twice[0] + 1]}: string_id and sensor_on_string occur twice")
    return Sensors(path, keys[order], order, places)


def numbers(path: Path, values: pa.Array, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Turn numbers, possibly spelled as strings, into an array; raise FormatError with its row."""
    if values.null_count:
        first = values.is_null().index(pa.scalar(value=True)).as_py()
        raise FormatError(f"{path}: row {rows[first]}: {name}: expected a value, found a null")
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        try:
            values = pc.cast(values, pa.float64())
        except pa.ArrowInvalid as error:
            first = next(index for index, each in enumerate(values) if not _is_number(each))
            raise FormatError(
                f"{path}: row {rows[first]}: {name}: expected a number, found {values[first].as_py()!r}"
            ) from error
    if pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    found: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def _is_number(value: pa.Scalar) -> bool:
    try:
        pc.cast(value, pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
