"""Raw HDF5 files of the simulation's converter: three flat datasets in, bounded blocks of events out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events, cuts, offsets
from crpipe.events.notes import note
from crpipe.workloads.common.hdf5 import describe, find_dataset, note_unread, open_hdf5
from crpipe.workloads.muons.layout import (
    CONVERTED_MUON,
    CONVERTED_PRIMARY,
)
from crpipe.workloads.muons.reading.checks import Location
from crpipe.workloads.muons.reading.parquet import BundlesConverted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import h5py
    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables

_DATASETS = ("primaries", "muons", "counts")
_EVENTS = 1 << 16
_ITEMS = 1 << 20
_MOST = 2**32 - 1
_AGAIN = "have the file made again, or choose the reader of its layout with source.reader"


@dataclass(frozen=True, slots=True)
class BundlesHdf5(BundlesConverted):
    """Reader of three datasets, one row per event or muon:

    primaries: [N, 7] float32 (primary_major_id, primary_minor_id, energy_gev, zenith_rad, mass_number, time,
        depth_m); time is skipped, ids are as exact as float32 is.
    muons: [M, 6] float32 (primary_major_id, primary_minor_id, energy_gev, x_m, y_m, time), event after event;
        ids must be those of the event's primary.
    counts: [N] integers, rows of ``muons`` of each event; they sum to M.

    The converter writes one muon of zeros for an event without muons, because its rows must not be empty:
    a single muon with energy, x, y and time all 0 is read as none.
    """  # noqa: D400 - a table of columns says it

    formats: ClassVar[tuple[str, ...]] = ("HDF5",)

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:  # noqa: ARG002
        """Yield all events in order, in blocks of about a million muons, or one larger event."""
        with open_hdf5(path) as file:
            primaries, muons, counts = _datasets(path, file)
            starts = offsets(counts)
            for first, last in cuts(counts, _EVENTS, _ITEMS):
                tracks = muons[starts[first] : starts[last]]
                primary, where = primaries[first:last], Location(path, first)
                columns = {field.name: self._column(primary, field, where) for field in self.layout.events}
                yield self._assembled(columns, counts[first:last], tracks, where)

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:  # noqa: ARG002
        """Count events and muons; only the rows of muons of zeros must be looked for."""
        with open_hdf5(path) as file:
            primaries, muons, counts = _datasets(path, file)
            for dataset in (primaries, muons):
                if dataset.dtype != np.float32:
                    note(f"dataset {dataset.name[1:]}: values of type {dataset.dtype} are read as float32")
            note_unread(file, *_DATASETS)
            starts = offsets(counts)
            zeros = 0
            for first, last in cuts(counts, _EVENTS, _ITEMS):
                tracks = muons[starts[first] : starts[last]]
                zeros += int(self._none(counts[first:last], tracks).sum())
            return len(counts), int(starts[-1]) - zeros


def _datasets(path: Path, file: h5py.File) -> tuple[h5py.Dataset, h5py.Dataset, NDArray[np.uint32]]:
    primaries = _dataset(path, file, "primaries", CONVERTED_PRIMARY)
    muons = _dataset(path, file, "muons", CONVERTED_MUON)
    counts = find_dataset(path, file, "counts")
    if counts is None or counts.ndim != 1 or counts.dtype.kind not in "iu":
        kind = describe(file, "counts")
        raise FormatError(f"{path}: counts: expected a dataset of integers [N], found {kind}; {_AGAIN}")
    if len(counts) != len(primaries):
        raise FormatError(f"{path}: counts holds {len(counts)} rows, primaries {len(primaries)}; {_AGAIN}")
    values = counts[:]
    wrong = (values < 0) | (values > min(len(muons), _MOST))  # before the sum, which could overflow
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FormatError(
            f"{path}: row {row}: counts: expected 0 to {min(len(muons), _MOST)} (muons holds {len(muons)} "
            f"rows), found {values[row]}; {_AGAIN}"
        )
    total = int(values.sum(dtype=np.int64))
    if total != len(muons):
        raise FormatError(f"{path}: counts sum to {total}, muons holds {len(muons)} rows; {_AGAIN}")
    return primaries, muons, values.astype(np.uint32)


def _dataset(path: Path, file: h5py.File, name: str, columns: tuple[str, ...]) -> h5py.Dataset:
    dataset = find_dataset(path, file, name)
    if (
        dataset is None
        or dataset.shape != (*dataset.shape[:1], len(columns))
        or dataset.dtype.kind != "f"
        or dataset.dtype.itemsize < np.dtype(np.float32).itemsize  # float64 is rounded, its ids are not
    ):
        raise FormatError(
            f"{path}: {name}: expected a dataset of float32 [rows, {len(columns)}] ({', '.join(columns)}), "
            f"found {describe(file, name)}; {_AGAIN}"
        )
    return dataset
