"""The synthetic source: files of simulated muon bundles in the schema of the simulation's converter.

In: the options of the simulator, the seed and a range. Out: Parquet files, one row per primary and
depth, or a fresh realisation of given primaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.core.errors import SourceError
from crpipe.core.ranges import DIGITS
from crpipe.events.batch import Events, concatenate, cuts
from crpipe.workloads.common import elementary
from crpipe.workloads.common.simulators import NumberedSimulator, taken
from crpipe.workloads.muons.layout import BUNDLES, MUON, PRIMARY, SCHEMA, WRITER, nested_table
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.muons.simulator.physics import (
    IONISATION_GEV_PER_M,
    Muons,
    Primaries,
    advance,
    sample_muons,
    sample_primaries,
    sample_showers,
    track,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Bounds on memory: a block holds many small showers or one large one, whose rows leave it depth by depth.
BLOCK_ROWS = 1 << 18
BLOCK_MUONS = 1 << 22  # muons at the surface times depths: a block's result, were no muon to stop
GROUP_ROWS, GROUP_MUONS = 1 << 17, 1 << 20  # a row group is written once it holds either


class AirShowers(NumberedSimulator[AirShowersOptions]):
    """Simulator of muon bundles from air showers; see docs/physics.md#the-simulator for what is modelled."""

    layout = BUNDLES
    pattern = f"bundles-{{:0{DIGITS}d}}.parquet"

    def simulate(self, seed: int, number: int, path: Path) -> None:
        """Simulate the file of one number."""
        major = (seed % 2**32) << 32 | number
        rng = np.random.default_rng([seed, number])
        with pq.ParquetWriter(path, SCHEMA, write_statistics=False, **WRITER) as writer:
            for table in _tables(self._simulate(major, rng)):
                writer.write_table(table, row_group_size=len(table))
                pa.default_memory_pool().release_unused()  # otherwise kept beside what numpy allocates next

    def again(self, columns: Mapping[str, NDArray[Any]], seed: int) -> Events:
        """Simulate given primaries a second time, each row on its own: the best that any model can reach.

        columns: energy_gev, zenith_rad, mass_number, depth_m, [N] each; the others stay as they are. Raise
        SourceError for a depth at which the simulator never records.
        """
        energy, zenith, mass, depth = (np.asarray(columns[field.name], np.float64) for field in PRIMARY)
        options = self._options
        outside = (depth < options.depth_min_m - 1) | (depth > options.depth_max_m + 1)
        if outside.any():
            raise SourceError(
                f"depth_m: {depth[outside][0]:g} lies outside the synthetic source's depths "
                f"{options.depth_min_m:g}..{options.depth_max_m:g} m; re-simulate its own events only"
            )
        rng = np.random.default_rng([seed, len(depth)])
        reach = track(np.cos(zenith), depth)
        primaries = Primaries(energy, mass, np.cos(zenith))
        multiplicity, muons_of = self.in_air(rng, primaries, IONISATION_GEV_PER_M * reach[1])
        counts, muons = [np.zeros(0, np.int64)], [np.zeros((0, len(MUON)), np.float32)]
        for first, last in _blocks(multiplicity):
            alive = advance(rng, muons_of(first, last), reach[:, first:last])
            counts.append(np.bincount(alive.shower, minlength=last - first))
            muons.append(alive.table())
        return Events(dict(columns), np.concatenate(counts).astype(np.uint32), np.concatenate(muons))

    def fresh(self, groups: int, seed: int) -> Events:
        """Simulate one event of each of so many new primaries, at one of the depths that files have."""
        rng, options = np.random.default_rng(seed), self._options
        primaries = sample_primaries(rng, options, groups)
        depth = rng.choice(np.linspace(options.depth_min_m, options.depth_max_m, options.depths), groups)
        columns = _columns(0, np.arange(groups, dtype=np.uint64), primaries, depth)
        return self.again(columns, seed)

    def in_air(
        self, rng: np.random.Generator, primaries: Primaries, threshold_gev: Floats
    ) -> tuple[NDArray[np.int64], Callable[[int, int], Muons]]:
        """Simulate the showers of N primaries above thresholds [N].

        Return the numbers of muons at the surface [N], and what draws those of showers [first, last), with
        ``shower`` from 0 on. It is called once for each shower, in order.
        """
        showers = sample_showers(rng, primaries, threshold_gev)
        return showers.multiplicity, lambda first, last: sample_muons(rng, taken(showers, slice(first, last)))

    def _simulate(self, major: int, rng: np.random.Generator) -> Iterator[Events]:
        """Yield the rows of one file in order, all depths of a primary together, block after block."""
        options = self._options
        depths = np.linspace(options.depth_min_m, options.depth_max_m, options.depths)
        batch = max(1, BLOCK_ROWS // len(depths))
        for first in range(0, options.showers_per_file, batch):
            count = min(batch, options.showers_per_file - first)
            primaries = sample_primaries(rng, options, count)
            threshold = IONISATION_GEV_PER_M * track(primaries.cos_zenith, depths[0])[1]
            multiplicity, muons_of = self.in_air(rng, primaries, threshold)
            for begin, end in _blocks(multiplicity * len(depths)):
                block = taken(primaries, slice(begin, end))
                minor = np.arange(first + begin, first + end, dtype=np.uint64)
                yield from _simulate_block(rng, (major, minor), block, muons_of(begin, end), depths)


def _blocks(muons: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut showers into runs of at most BLOCK_MUONS muons; or one larger shower."""
    return cuts(muons, len(muons), BLOCK_MUONS)


def _simulate_block(
    rng: np.random.Generator,
    ids: tuple[int, NDArray[np.uint64]],
    primaries: Primaries,
    muons: Muons,
    depths: NDArray[np.float64],
) -> Iterator[Events]:
    """Yield a block's rows: all at once, or depth by depth when it is one large shower."""
    major, minor = ids
    large = len(muons) * len(depths) > BLOCK_MUONS
    levels = _descend(rng, primaries, muons, depths)
    del muons
    if large:
        for depth, (count, table) in zip(depths, levels, strict=True):
            columns = _columns(major, minor, primaries, np.full(len(minor), depth))
            yield Events(columns, count.astype(np.uint32), table)
        return
    counts, tables = [], []
    for count, table in levels:
        counts.append(count)
        tables.append(table)
    multiplicity, rows = _by_shower(np.stack(counts), tables)
    shower = np.repeat(np.arange(len(minor)), len(depths))
    columns = _columns(major, minor[shower], taken(primaries, shower), np.tile(depths, len(minor)))
    yield Events(columns, multiplicity.astype(np.uint32), rows)


def _descend(
    rng: np.random.Generator, primaries: Primaries, muons: Muons, depths: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield, depth after depth, each shower's multiplicity and the muons of all."""
    behind = np.zeros((2, len(primaries)))
    for depth in depths:
        reach = track(primaries.cos_zenith, depth)
        muons = advance(rng, muons, reach - behind)
        behind = reach
        yield np.bincount(muons.shower, minlength=len(primaries)), muons.table()


def _by_shower(
    counts: NDArray[np.int64], tables: list[NDArray[np.float32]]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Turn depth-major results (counts: [depths, showers]) into shower-major ones; ``tables`` is emptied.

    Each depth is copied and dropped on its own: all at once would need twice the memory.
    """
    multiplicity = counts.T.ravel()
    starts = (np.cumsum(multiplicity) - multiplicity).reshape(counts.T.shape)
    muons = np.empty((multiplicity.sum(), len(MUON)), np.float32)
    for depth in reversed(range(len(counts))):
        count, table = counts[depth], tables.pop()
        row = np.repeat(starts[:, depth] - (np.cumsum(count) - count), count)
        row += np.arange(len(row))
        muons[row] = table
    return multiplicity, muons


def _columns(
    major: int, minor: NDArray[np.uint64], primaries: Primaries, depth_m: Floats
) -> dict[str, NDArray[Any]]:
    """Return the columns of rows, one for each primary at its depth: [R] each."""
    values = (
        np.full(len(minor), major, np.uint64),
        minor,
        primaries.energy_gev,
        elementary.arccos(primaries.cos_zenith),
        primaries.mass_number,
        depth_m,
    )
    return {field.name: each.astype(field.dtype) for field, each in zip(BUNDLES.events, values, strict=True)}


def _tables(stream: Iterator[Events]) -> Iterator[pa.Table]:
    """Join rows until they fill a row group; the last one may be smaller."""
    held: list[Events] = []
    room_rows, room_muons = GROUP_ROWS, GROUP_MUONS
    for rows in stream:
        held.append(rows)
        room_rows -= len(rows)
        room_muons -= len(rows.items)
        del rows  # while a row group is written, nothing else holds its muons
        if room_rows <= 0 or room_muons <= 0:
            yield _table(held)
            room_rows, room_muons = GROUP_ROWS, GROUP_MUONS
    if held:
        yield _table(held)


def _table(held: list[Events]) -> pa.Table:
    """Join rows and empty the list of them."""
    parts, held[:] = held[:], []
    rows = concatenate(parts)
    del parts
    return nested_table(rows.columns, rows.multiplicity, rows.items)
