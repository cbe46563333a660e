"""Files of the simulation Prometheus in two forms: its own nested one, and the flat tables made of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from crpipe.core.errors import FormatError
from crpipe.core.files import atomic_write
from crpipe.events.batch import Events, cuts, offsets
from crpipe.workloads.common.raw_files import note_unread, open_parquet
from crpipe.workloads.direction.layout import EXACT_NS, EXPECTATIONS, PULSES_WITH_ENERGY, read_geometry
from crpipe.workloads.direction.reading import columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.events.layout import Layout

# Sensors that are numbered on their strings: which row of the geometry each is, and a check of its place.

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
        """Format one hit for a message."""
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
        """Return the row in the geometry of each hit, [M]; raise FormatError for one missing or 0.5 m off."""
        keys = key_of(hits.string, hits.sensor)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        rows = self.rows[at]
        unknown = self.keys[at] != keys
        wrong = unknown | ~(np.abs(hits.places - self.places[rows]).max(axis=1, initial=0) <= _NEAR_M)
        if wrong.any():
            hit = int(np.argmax(wrong))
            entry = "no such sensor" if unknown[hit] else f"it at {self.places[rows[hit]].tolist()} m"
            raise FormatError(
                f"{path}: {hits.name(hit)}, but {self.path} has {entry}; give the geometry of these files in "
                "source.tables, as geometry (geometry_of makes it from the files)"
            )
        return rows


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
    return values.to_numpy(zero_copy_only=False)


def _is_number(value: pa.Scalar) -> bool:
    try:
        pc.cast(value, pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


_FLAT = {
    "event_no": columns.INTEGER,
    "sensor_string_id": columns.INTEGER,
    "sensor_id": columns.INTEGER,
    "t": columns.REAL,
    **dict.fromkeys(POSITIONS, columns.NUMBER),
}
_TRUTH = {
    "event_no": columns.INTEGER,
    "injection_azimuth": columns.REAL,
    "injection_zenith": columns.REAL,
    "injection_energy": columns.REAL,
}
_STATE = ("initial_state_azimuth", "initial_state_zenith", "initial_state_energy")
_FINAL = ("final_state_azimuth", "final_state_zenith", "final_state_energy")
_PHOTONS = ("string_id", "sensor_id", "t", *POSITIONS)
_ROWS = 16  # events that are decoded at once: the largest one seen has 150,000 photons, 7 MB
_PER_FILE = 1_000_000


class PrometheusHits:
    """Reader of the flat form: one row per hit, the rows of an event together.

    Hits: event_no, sensor_string_id, sensor_id (a number on its string), sensor_pos_x, _y, _z, t. The side
    table ``truth`` has one row per event: event_no, injection_azimuth, injection_zenith, injection_energy.
    An event without hits has no rows, and so does not exist here.

    injection_zenith is the angle of the travel against the vertical, injection_azimuth that of the origin:
    the neutrino came from azimuth = injection_azimuth, zenith = π - injection_zenith. Seen in GraphNeT's 50
    events (ORCA): tracks with Cherenkov light were fitted along the muon, whose angles follow the injection,
    with either sign of both angles. This choice has the smallest residuals in 17 of 32 events of at least 20
    hits (the others 4, 5 and 6), and in 9 of the 13 that look like a track. The code of Prometheus of 2022
    does not turn the azimuth; positions that are turned by π would look the same. Vertices are of no help: 4
    of 5 hits are earlier than light from them.

    Times stay as they are, in ns from a zero of the simulation; the 50 events have 16 to 1028 ns. A negative
    one is not legal, and a split reports it. Each hit counts as 1 photoelectron and is not auxiliary.
    """

    layout: Layout = PULSES_WITH_ENERGY
    needs: tuple[str, ...] = ("truth", "geometry")
    formats = ("Parquet",)
    expectations = EXPECTATIONS

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of the file, in blocks of about a million hits."""
        sensors = read_sensors(tables["geometry"])
        with open_parquet(path) as file:
            columns.check_columns(path, file.schema_arrow, _FLAT)
            ids, counts = _runs(path, file)
            truth = _flat_truth(tables["truth"], ids, path)
            stream = columns.ItemStream(path, columns.batches(file, _FLAT), _flat_decoder(path, sensors))
            starts = offsets(counts)
            for first, last in cuts(counts, columns.EVENTS, columns.ITEMS):
                items, _ = stream.take(int(starts[last] - starts[first]))
                event_columns = {name: column[first:last] for name, column in truth.items()}
                yield Events(event_columns, counts[first:last], items)

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:  # noqa: ARG002
        """Count hits by the footer; events are counted in the column event_no."""
        with open_parquet(path) as file:
            columns.check_columns(path, file.schema_arrow, _FLAT)
            note_unread(file.schema_arrow.names, _FLAT)
            return len(_runs(path, file)[0]), file.metadata.num_rows


class PrometheusPhotons:
    """Reader of Prometheus' own nested form: one row per event, with lists of photons and of final states.

    photons: string_id, sensor_id (a number on its string), sensor_pos_x, _y, _z, t. mc_truth:
    initial_state_azimuth, _zenith, _energy and final_state_azimuth, _zenith, _energy. An event may lack
    photons. event_id is 1,000,000 times the first number in the file's name (0 without one) plus the row.

    The states are directions of travel, so that the neutrino came from the opposite one: in all 6 events of
    a file for ARCA with 4 photons or more, the light lies ahead of the vertex (mean cosines 0.4 to 0.8).
    Before 21 April 2023 Prometheus stored the initial azimuth, and only that, turned by π. In its example for
    IceCube bright and early light follow the final states (mean cosines 0.28 and 0.40 over 8 events, for the
    stored azimuth 0.18 and 0.20). So the azimuth is turned back where its horizontal direction is opposite
    to the sum of the final momenta.

    Times stay as they are, in ns from the interaction; the samples have 34 to 8711 ns. A negative one is not
    legal, and a split reports it. Each photon counts as 1 photoelectron and is not auxiliary.
    """

    layout: Layout = PULSES_WITH_ENERGY
    needs: tuple[str, ...] = ("geometry",)
    formats = ("Parquet",)
    expectations = EXPECTATIONS

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of the file, 16 at once."""
        sensors = read_sensors(tables["geometry"])
        row = 0
        with open_parquet(path) as file:
            names = _check_nested(path, file.schema_arrow)
            for batch in columns.batches(file, names, rows=_ROWS):
                hits, time, counts = _nested_hits(path, batch, row)
                items = _items(path, sensors.find(path, hits), time, hits.rows)
                yield Events(_nested_truth(path, batch, row), counts.astype(np.uint32), items)
                row += batch.num_rows

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:  # noqa: ARG002
        """Count events by the footer, and photons by one of their lists."""
        with open_parquet(path) as file:
            names = _check_nested(path, file.schema_arrow)
            note_unread(_leaves_of(file.schema_arrow).names, names)
            photons = 0
            for batch in columns.batches(file, ["photons.sensor_id"], rows=_ROWS):
                photons += int(_lists_of(path, batch, 0, ("sensor_id",))[0].sum())
            return file.metadata.num_rows, photons


def geometry_of(paths: Iterable[Path], out: Path) -> None:
    """Write the side table ``geometry`` from the places of the sensors in files of either form.

    A sensor that no file has hit is missing: give all files of a campaign. Raise FormatError where a sensor
    has two places.
    """
    known: dict[int, NDArray[np.float64]] = {}  # places by key_of
    for path in paths:
        with open_parquet(path) as file:
            nested = "photons" in file.schema_arrow.names
            if not nested:
                columns.check_columns(path, file.schema_arrow, _FLAT)
            names = _check_nested(path, file.schema_arrow) if nested else list(_FLAT)
            row = 0
            for batch in columns.batches(file, names, rows=_ROWS if nested else 0):
                hits = _nested_hits(path, batch, row)[0] if nested else _flat_hits(path, batch, row)
                _add_places(known, path, hits)
                row += batch.num_rows
    rows = [",".join(["sensor_id", "x", "y", "z", *NAMES])]
    for row, key in enumerate(sorted(known)):
        position = ",".join(map(repr, known[key].tolist()))
        rows.append(f"{row},{position},{key >> 32},{key & 0xFFFFFFFF}")
    with atomic_write(out) as part:
        part.write_text("\n".join(rows) + "\n")


def _add_places(known: dict[int, NDArray[np.float64]], path: Path, hits: Hits) -> None:
    """Add the places of the sensors of some hits; raise FormatError where one is at two, over 1 cm apart."""
    keys, first, of = np.unique(key_of(hits.string, hits.sensor), return_index=True, return_inverse=True)
    mine = [known.setdefault(int(key), hits.places[at]) for key, at in zip(keys, first, strict=True)]
    places = np.reshape(mine, (-1, 3))[of]
    wrong = ~(np.abs(hits.places - places).max(axis=1, initial=0) <= _SAME_M)
    if wrong.any():
        hit = int(np.argmax(wrong))
        raise FormatError(
            f"{path}: {hits.name(hit)}, but other hits of it are at {places[hit].tolist()} m; take files "
            "of one geometry only"
        )


def _runs(path: Path, file: pq.ParquetFile) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Find the events of a flat file: event_no and hits of each, [N]; raise FormatError for a torn one."""
    parts = [np.zeros(0, np.int64)]
    row = 0
    for batch in columns.batches(file, ["event_no"]):
        parts.append(columns.values(path, batch, "event_no", row))
        row += batch.num_rows
    numbers_of = np.concatenate(parts)
    begins = np.flatnonzero(np.diff(numbers_of, prepend=numbers_of[:1] - 1))
    ids = numbers_of[begins]
    unique_ids, first = np.unique(ids, return_index=True)
    if len(unique_ids) < len(ids):
        again = int(begins[np.setdiff1d(np.arange(len(ids)), first)[0]])
        raise FormatError(
            f"{path}: row {again}: expected the hits of each event together, found event_no "
            f"{numbers_of[again]} again; sort the file by event_no"
        )
    return ids, np.diff(begins, append=len(numbers_of)).astype(np.uint32)


def _flat_truth(truth: Path, ids: NDArray[np.int64], path: Path) -> dict[str, NDArray[np.generic]]:
    """Find the truth of events by their numbers, in their order; raise FormatError."""
    kinds = [np.int64 if kind is columns.INTEGER else np.float64 for kind in _TRUTH.values()]
    parts: list[list[NDArray[Any]]] = [[np.zeros(0, kind)] for kind in kinds]
    row = 0
    with open_parquet(truth) as file:
        columns.check_columns(truth, file.schema_arrow, _TRUTH)
        for batch in columns.batches(file, _TRUTH):
            batch_columns = [columns.values(truth, batch, name, row) for name in _TRUTH]
            here = np.isin(batch_columns[0], ids)
            for part, column in zip(parts, batch_columns, strict=True):
                part.append(column[here])
            row += batch.num_rows
    number, azimuth, zenith, energy = (np.concatenate(part) for part in parts)
    order = np.argsort(number, kind="stable")
    unique_numbers, counts = np.unique(number, return_counts=True)
    lost = np.setdiff1d(ids, unique_numbers)
    if len(lost) or (counts > 1).any():
        event = lost[0] if len(lost) else int(unique_numbers[np.argmax(counts > 1)])
        raise FormatError(
            f"{truth}: expected one row with event_no {event}, which is in {path}, found "
            f"{'none' if len(lost) else int(counts.max())}; give the mc_truth of all files as one table in "
            "source.tables, as truth"
        )
    rows = order[np.searchsorted(unique_numbers, ids)]
    with np.errstate(invalid="ignore"):  # an infinite angle is not legal, and is reported with its event
        came_from = {"azimuth": azimuth[rows] % (2 * np.pi), "zenith": np.pi - zenith[rows]}
    return {"event_id": ids, **came_from, "energy_gev": energy[rows].astype(np.float64)}


def _flat_decoder(path: Path, sensors: Sensors) -> columns.Decoder:
    def decode(batch: pa.RecordBatch, row: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        hits = _flat_hits(path, batch, row)
        time = columns.values(path, batch, "t", row)
        items = _items(path, sensors.find(path, hits), time, hits.rows)
        return items, columns.values(path, batch, "event_no", row)

    return decode


def _flat_hits(path: Path, batch: pa.RecordBatch, row: int) -> Hits:
    names = ("sensor_string_id", "sensor_id", *POSITIONS)
    rows = row + np.arange(batch.num_rows)
    string, sensor, *axes = (
        numbers(path, batch.column(batch.schema.get_field_index(name)), name, rows) for name in names
    )
    return Hits(string, sensor, np.stack(axes, axis=1), rows)


def _items(
    path: Path, sensor: NDArray[np.int64], time: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return pulses [M, 4]; raise FormatError for a time that float32 would round to another nanosecond."""
    columns.refuse(path, rows, time, ~(np.abs(time) <= EXACT_NS), f"t within ±{EXACT_NS} ns")
    items = np.zeros((len(time), 4), np.float32)
    items[:, 0], items[:, 1], items[:, 2] = sensor, time, 1
    return items


def _check_nested(path: Path, schema: pa.Schema) -> list[str]:
    """Name the columns to read; raise FormatError when one is missing or of another type."""
    expected = {
        **{f"photons.{name}": columns.INTEGERS for name in _PHOTONS[:2]},
        "photons.t": columns.REALS,
        **{f"photons.{name}": columns.NUMBERS for name in POSITIONS},
        **{f"mc_truth.{name}": columns.REAL for name in _STATE},
        **{f"mc_truth.{name}": columns.REALS for name in _FINAL},
    }
    columns.check_columns(path, _leaves_of(schema), expected)
    return list(expected)


def _leaves_of(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a schema, those of a struct as ``struct.column``."""
    leaves = []
    for field in schema:
        inner = field.type if pa.types.is_struct(field.type) else None
        leaves += [field] if inner is None else [pa.field(f"{field.name}.{e.name}", e.type) for e in inner]
    return pa.schema(leaves)


def _lists_of(
    path: Path, batch: pa.RecordBatch, row: int, names: tuple[str, ...], column: str = "photons"
) -> tuple[NDArray[np.int64], list[pa.Array]]:
    """Flatten lists that belong together: their lengths [N], and the values of each; raise FormatError."""
    parent = batch.column(batch.schema.get_field_index(column))
    lists = [_typed(pc.struct_field(parent, name)) for name in names]
    lengths = [pc.fill_null(pc.list_value_length(each), -1).to_numpy(zero_copy_only=False) for each in lists]
    for name, length in zip(names, lengths, strict=True):
        wrong = (length != lengths[0]) | (length < 0)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise FormatError(
                f"{path}: row {row + at}: {column}.{name}: expected a list as long as {column}.{names[0]}, "
                f"found {length[at] if length[at] >= 0 else 'a null'}; have the file made again"
            )
    return lengths[0].astype(np.int64), [each.flatten() for each in lists]


def _typed(lists: pa.Array) -> pa.Array:
    """Return a column without a type, which holds nothing but nulls, that of lists."""
    return lists.cast(pa.list_(pa.null())) if pa.types.is_null(lists.type) else lists


def _nested_hits(
    path: Path, batch: pa.RecordBatch, row: int
) -> tuple[Hits, NDArray[np.float64], NDArray[np.int64]]:
    """Return the photons of a batch of events, their times, and how many each event has."""
    counts, photons = _lists_of(path, batch, row, _PHOTONS)
    rows = row + np.repeat(np.arange(batch.num_rows), counts)
    string, sensor, time, *axes = (
        numbers(path, values, f"photons.{name}", rows) for name, values in zip(_PHOTONS, photons, strict=True)
    )
    return Hits(string, sensor, np.stack(axes, axis=1), rows), time, counts


def _nested_truth(path: Path, batch: pa.RecordBatch, row: int) -> dict[str, NDArray[np.generic]]:
    events = batch.num_rows
    truth = batch.column(batch.schema.get_field_index("mc_truth"))
    here = row + np.arange(events)
    azimuth, zenith, energy = (
        numbers(path, pc.struct_field(truth, name), f"mc_truth.{name}", here) for name in _STATE
    )
    counts, final = _lists_of(path, batch, row, _FINAL, "mc_truth")
    owner = np.repeat(np.arange(events), counts)
    final_azimuth, final_zenith, final_energy = (
        numbers(path, each, f"mc_truth.{name}", row + owner) for name, each in zip(_FINAL, final, strict=True)
    )
    name = re.search(r"[0-9]+", path.stem)
    number = int(name[0]) if name else 0
    if number >= 2**63 // _PER_FILE:
        raise FormatError(
            f"{path}: {number} in its name is too large: event_id is {_PER_FILE} times as much, and below "
            "2^63; rename the file"
        )
    with np.errstate(invalid="ignore"):  # as in _flat_truth
        along = final_energy * np.sin(final_zenith) * np.cos(final_azimuth - azimuth[owner])
        turned = np.bincount(owner, along, minlength=events) < 0
        came_from = (azimuth + np.where(turned, 0, np.pi)) % (2 * np.pi)
    return {
        "event_id": _PER_FILE * number + here,
        "azimuth": came_from,
        "zenith": np.pi - zenith,
        "energy_gev": energy.astype(np.float64),
    }
