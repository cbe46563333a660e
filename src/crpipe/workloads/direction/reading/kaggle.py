"""Files of pulses as of the Kaggle challenge: one row per pulse in, bounded blocks of events out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.core.raw_files import open_parquet
from crpipe.events.batch import Events, cuts, offsets
from crpipe.events.layout import Field
from crpipe.workloads.direction.geometry import read_geometry
from crpipe.workloads.direction.layout import ENERGY, EXACT_NS, PULSES_WITH_ENERGY, pulses
from crpipe.workloads.direction.reading import columns
from crpipe.workloads.direction.reading.spans import Spans, embedded_spans, read_spans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.events.tables import Tables
    from crpipe.workloads.direction.reading.options import KaggleFilesOptions

KINDS = {
    "sensor_id": columns.INTEGER,
    "time": columns.INTEGER,
    "charge": columns.REAL,
    "auxiliary": columns.BOOL,
    "event_id": columns.INTEGER,
}


class KaggleFiles:
    """Reader of batch_{number}.parquet, whose events are rows of a table for all files (``meta``).

    Pulses: sensor_id, time (ns), charge, auxiliary, event_id. Metadata: batch_id (the number in the file's
    name), event_id, first_pulse_index, last_pulse_index (inclusive), azimuth, zenith and options.truth;
    metadata without both angles gives NaN for them: enough to predict. Pulses out of the geometry or with
    another event's id, and spans that do not cover the file, are a FormatError.
    """

    needs: tuple[str, ...] = ("meta", "geometry")

    def __init__(self, options: KaggleFilesOptions) -> None:
        self._truth = options.truth
        self.layout: Layout = pulses(*(_truth_field(name) for name in options.truth))

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of their pulses, in blocks of about a million pulses."""
        sensors = len(read_geometry(tables["geometry"]))
        with columns.reading(path), open_parquet(path) as file:
            yield from _blocks(path, file, self._spans(path, tables, file), sensors)

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events by the metadata and pulses by the file's footer."""
        with columns.reading(path), open_parquet(path) as file:
            return len(self._spans(path, tables, file).rows), file.metadata.num_rows

    def _spans(self, path: Path, tables: Tables, file: pq.ParquetFile) -> Spans:
        number = re.search(r"[0-9]+$", path.stem)
        if number is None:
            raise FormatError(
                f"{path}: expected a number at the end of the name, as in batch_7.parquet: the batch_id of "
                "its events in the metadata; rename the file, and write {number} in source.uri"
            )
        return read_spans(tables["meta"], int(number[0]), self._truth, path, file.metadata.num_rows)


class SimulatedFiles:
    """Reader of the same files of pulses, each with its own metadata in its Parquet footer.

    A side table would have to know all ranges before the first one is simulated, and would change when a
    campaign grows.
    """

    layout: Layout = PULSES_WITH_ENERGY
    needs: tuple[str, ...] = ("geometry",)

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of their pulses, in blocks of about a million pulses."""
        sensors = len(read_geometry(tables["geometry"]))
        with columns.reading(path), open_parquet(path) as file:
            yield from _blocks(path, file, self._spans(path, file), sensors)

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:  # noqa: ARG002
        """Count events and pulses by the footer."""
        with columns.reading(path), open_parquet(path) as file:
            return len(self._spans(path, file).rows), file.metadata.num_rows

    def _spans(self, path: Path, file: pq.ParquetFile) -> Spans:
        return embedded_spans(path, file.schema_arrow, (ENERGY.name,), file.metadata.num_rows)


def _truth_field(name: str) -> Field:
    if name == ENERGY.name:
        return ENERGY
    return Field(name, "float64", "", -1e300, 1e300, f"{name} of the metadata")


def _blocks(path: Path, file: pq.ParquetFile, spans: Spans, sensors: int) -> Iterator[Events]:
    columns.check_columns(path, file.schema_arrow, KINDS)
    stream = columns.ItemStream(path, columns.batches(file, KINDS), _decoder(path, sensors))
    starts = offsets(spans.multiplicity)
    for first, last in cuts(spans.multiplicity, columns.EVENTS, columns.ITEMS):
        known = {name: column[first:last] for name, column in spans.columns.items()}
        counts = spans.multiplicity[first:last]
        items, owners = stream.take(int(starts[last] - starts[first]))
        wrong = owners != np.repeat(known["event_id"], counts)
        if wrong.any():
            at = int(np.argmax(wrong))
            event = first + int(np.searchsorted(offsets(counts), at, side="right")) - 1
            raise FormatError(
                f"{path}: row {starts[first] + at}: expected event_id {spans.columns['event_id'][event]} as "
                f"in row {spans.rows[event]} of {spans.path}, found {owners[at]}; give the metadata that was "
                "made with this file"
            )
        yield Events(known, counts, items)


def _decoder(path: Path, sensors: int) -> columns.Decoder:
    """Turn a batch of pulses into items [M, 4] and the event_id of each; raise FormatError."""

    def decode(batch: pa.RecordBatch, row: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        sensor, time, charge, auxiliary, owners = (columns.values(path, batch, name, row) for name in KINDS)
        _refuse(
            path,
            row,
            sensor,
            (sensor < 0) | (sensor >= sensors),
            f"a sensor_id from 0, below {sensors} (see source.tables: geometry)",
        )
        wrong = (time > EXACT_NS) | (time < -EXACT_NS)
        _refuse(path, row, time, wrong, f"a time within ±{EXACT_NS} ns, which float32 holds exactly")
        items = np.empty((len(sensor), 4), np.float32)
        with np.errstate(over="ignore"):  # an infinite charge is not legal, and is reported with its event
            for position, each in enumerate((sensor, time, charge, auxiliary)):
                items[:, position] = each
        return items, owners

    return decode


def _refuse(path: Path, row: int, found: NDArray[Any], wrong: NDArray[np.bool_], expected: str) -> None:
    if wrong.any():
        at = int(np.argmax(wrong))
        raise FormatError(
            f"{path}: row {row + at}: expected {expected}, found {found[at]}; have the file made again"
        )
