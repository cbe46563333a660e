"""Files of simulated events in Kaggle's format, as a source of raw files and as a whole folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import ConfigError
from crpipe.events.batch import cuts
from crpipe.workloads.common.simulators import NumberedSimulator, joined, taken
from crpipe.workloads.direction.layout import PULSES_WITH_ENERGY
from crpipe.workloads.direction.reading.kaggle import KEY, embed
from crpipe.workloads.direction.simulator.physics import (
    flashes,
    muon_light,
    muon_pairs,
    point_light,
    point_pairs,
    sample_particles,
    write_geometry,
)
from crpipe.workloads.direction.simulator.readout import Recorded, record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
    from crpipe.workloads.direction.simulator.physics import Particles

    Block = tuple[list[NDArray[np.float64]], Recorded]  # azimuths, zenith angles, energies; their events

IDS_PER_FILE = 1_000_000
PARTICLES_AT_ONCE, PAIRS_AT_ONCE, ROWS_AT_ONCE = 512, 1 << 13, 1 << 20
GIVE_UP = 50  # rounds of particles without an event
_PULSES = {
    "sensor_id": "int16",
    "time": "int64",
    "charge": "float64",
    "auxiliary": "bool",
    "event_id": "int64",
}
_PANDAS = {
    "index_columns": ["event_id"],
    "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": kind, "metadata": None}
        for name, kind in _PULSES.items()
    ],
    "creator": {"library": "pyarrow", "version": "6.0.1"},
    "pandas_version": "1.3.5",
}
SCHEMA = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in _PULSES.items()])
META = pa.schema(
    [(name, pa.int64()) for name in ("batch_id", "event_id", "first_pulse_index", "last_pulse_index")]
    + [(name, pa.float64()) for name in ("azimuth", "zenith", "energy_gev")]
)


class NeutrinoTelescope(NumberedSimulator["NeutrinoTelescopeOptions"]):
    """Simulator of tracks and cascades in IceCube; docs/direction.md says what is modelled."""

    layout = PULSES_WITH_ENERGY
    offers = ("geometry",)
    pattern = "batch_{}.parquet"

    def simulate(self, seed: int, number: int, path: Path) -> None:
        """Simulate the file of one number."""
        write_batch(self._options, seed, number, path)

    def tables(self, folder: Path) -> Mapping[str, Path]:
        """Write the side tables: where the sensors are."""
        write_geometry(folder / "sensor_geometry.csv")
        return {"geometry": folder / "sensor_geometry.csv"}


def kaggle_folder(options: NeutrinoTelescopeOptions, seed: int, batches: Iterable[int], folder: Path) -> None:
    """Write train/batch_N.parquet for each N, train_meta.parquet and sensor_geometry.csv, as in Kaggle's."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    write_geometry(folder / "sensor_geometry.csv")
    schema = pa.schema(list(META)[:-1])
    with pq.ParquetWriter(folder / "train_meta.parquet", schema, compression="zstd") as writer:
        for number in batches:
            metadata = write_batch(options, seed, number, folder / "train" / f"batch_{number}.parquet")
            writer.write_table(metadata.select(schema.names))


def write_batch(options: NeutrinoTelescopeOptions, seed: int, number: int, path: Path) -> pa.Table:
    """Simulate the file of one number; return its rows of the metadata, which are in its footer too."""
    rng = np.random.default_rng([seed, number])
    rows, ids, metadata = 0, number * IDS_PER_FILE, []
    # With a stored schema, readers would look for the keys of the footer in it, and not find them.
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", store_schema=False) as writer:
        for truth, events in _groups(_simulate(rng, options)):
            ends = rows + np.cumsum(events.count)
            event = ids + np.arange(len(events.count))
            first = ends - events.count
            metadata.append(
                pa.table([np.full(len(event), number), event, first, ends - 1, *truth], schema=META)
            )
            columns = events.sensor, events.time_ns, events.charge_pe, events.auxiliary
            writer.write_table(pa.table([*columns, np.repeat(event, events.count)], schema=SCHEMA))
            rows, ids = int(ends[-1]), ids + len(event)
        table = pa.concat_tables(metadata).combine_chunks()
        writer.add_key_value_metadata({KEY: embed(table), "pandas": json.dumps(_PANDAS)})
    return table


def _simulate(rng: np.random.Generator, options: NeutrinoTelescopeOptions) -> Iterator[Block]:
    """Yield as many events as a file has, in blocks, each with azimuths, zenith angles and energies."""
    missing, in_vain = options.events_per_file, 0
    while missing:
        particles = sample_particles(rng, options, PARTICLES_AT_ONCE)
        in_vain += 1
        for recorded in _detect(rng, particles, options.noise_hz):
            if not missing:
                return
            events = recorded.first(missing)
            if len(events.count):
                seen = taken(particles, events.particle)
                missing, in_vain = missing - len(seen), 0
                yield [*seen.angles(), seen.energy_gev], events
        if in_vain == GIVE_UP:
            raise ConfigError(
                f"simulator.energy_max_gev: of {GIVE_UP * PARTICLES_AT_ONCE} particles of up to "
                f"{options.energy_max_gev:g} GeV none triggers; raise it, for example to 1e4"
            )


def _detect(rng: np.random.Generator, particles: Particles, noise_hz: float) -> Iterator[Recorded]:
    """Yield the events of particles, a bounded number of sensors and photons at a time."""
    points = flashes(rng, particles)
    muon, muon_string = muon_pairs(particles)
    point, point_string = point_pairs(points)
    sizes = np.bincount(np.concatenate([muon, points.particle[point]]), minlength=len(particles))
    for first, last in cuts(sizes, len(sizes), PAIRS_AT_ONCE):
        mine = (muon >= first) & (muon < last)
        flash = (points.particle[point] >= first) & (points.particle[point] < last)
        light = joined(
            [
                muon_light(particles, muon[mine], muon_string[mine]),
                point_light(particles, points, point[flash], point_string[flash]),
            ]
        )
        yield from record(rng, light, noise_hz)


def _groups(stream: Iterator[Block]) -> Iterator[Block]:
    """Join blocks until they have enough pulses for a row group; the last one may be smaller."""
    held: list[Block] = []
    for block in stream:
        held.append(block)
        if sum(len(events.sensor) for _, events in held) >= ROWS_AT_ONCE:
            yield _join(held)
            held = []
    if held:
        yield _join(held)


def _join(held: list[Block]) -> Block:
    truths, parts = zip(*held, strict=True)
    return [np.concatenate(column) for column in zip(*truths, strict=True)], joined(parts)
