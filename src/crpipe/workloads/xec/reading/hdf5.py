"""HDF5 files of LiquidO, an opaque scintillator: tables of hits and events in, blocks of events out."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events, cuts, offsets
from crpipe.events.expectations import Expectations
from crpipe.events.layout import Field, Layout
from crpipe.workloads.common.hdf5 import describe, find_dataset, note_unread, open_hdf5

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import h5py
    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.workloads.xec.reading.options import LiquidOFilesOptions

# Two frames of one detector: which axis of the vertices lies along each axis of the hits.

_ENOUGH = 20  # events from which a frame can be found
_CLEAR = 0.9  # correlation of a vertex with the mean of its hits


@dataclass(frozen=True, slots=True)
class Frame:
    """The axis of the vertices, such as -x, along x, y and z of the hits, and their correlations."""

    axes: tuple[str, ...]
    correlations: tuple[float, ...]

    def is_clear(self) -> bool:
        """Return whether there are enough events, and each axis is along one other."""
        return all(abs(each) > _CLEAR for each in self.correlations)

    def __str__(self) -> str:
        pairs = zip("xyz", self.axes, self.correlations, strict=True)
        return ", ".join(f"hits' {own} = vertex {axis} (r = {r:.3f})" for own, axis, r in pairs)


def find_frame(
    vertices: NDArray[np.float32], counts: NDArray[np.uint32], places: NDArray[np.float32]
) -> Frame:
    """Compare vertices [N, 3] with the means of their hits; counts: [N] hits of each, places: [M, 3].

    Correlations are NaN for fewer than 20 events with hits, and for vertices that are all the same.
    """
    seen = counts > 0
    if seen.sum() < _ENOUGH:
        return Frame(("x", "y", "z"), (np.nan,) * 3)
    means = np.add.reduceat(places.astype(np.float64), offsets(counts)[:-1][seen]) / counts[seen, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        linked = np.corrcoef(means.T, vertices[seen].T)[:3, 3:]
    best = max(permutations(range(3)), key=lambda order: np.nansum(np.abs(linked[range(3), order])))
    values = linked[range(3), best].tolist()
    axes = tuple("-" * (r < 0) + "xyz"[axis] for axis, r in zip(best, values, strict=True))
    return Frame(axes, tuple(values))


def turned(vectors: NDArray[Any], axes: Sequence[str]) -> Iterator[NDArray[Any]]:
    """Return x, y and z in the frame of the hits, [N] each, of vectors [N, 3] in that of the vertices.

    Example: with the axes z, y, -x the vector (1, 2, 3) becomes (3, 2, -1).
    """
    for axis in axes:
        column = vectors[:, "xyz".index(axis[-1])]
        yield -column if axis[0] == "-" else column


HITS = ("event_no", "sipmID", "sipm_x", "sipm_y", "sipm_z", "t", "var")
_VERTEX = ("vertex_x", "vertex_y", "vertex_z")
EVENTS = ("event_no", *_VERTEX, "zenith", "azimuth", "interaction_time", "energy", "pid")
_FAR, _LATE = 1e5, 1e7  # mm, ns
_IDS, _PDG = 2**24, 2**31  # float32 holds the numbers of events exactly


def _three(name: str, unit: str, limit: float, meaning: str) -> tuple[Field, ...]:
    names = (name.format(axis) for axis in "xyz")
    return tuple(Field(each, "float32", unit, -limit, limit, meaning) for each in names)


LIQUIDO = Layout(
    "hits",
    (
        Field("event_no", "int64", "", 0, _IDS, "number of the event"),
        *_three("vertex_{}_mm", "mm", _FAR, "place of the interaction, in the frame of the hits"),
        *_three("direction_{}", "", 1, "unit vector of zenith and azimuth, in the frame of the hits"),
        Field("interaction_time_ns", "float32", "ns", -_LATE, _LATE, "time of the interaction"),
        Field("energy_mev", "float32", "MeV", 0, 1e6, "energy of the particle"),
        Field("pdg", "int64", "", -_PDG, _PDG, "the particle, as the Particle Data Group numbers them"),
    ),
    (
        Field("sensor_id", "float32", "", 0, _IDS, "sipmID of the file"),
        *_three("{}_mm", "mm", _FAR, "place of the sensor"),
        Field("time_ns", "float32", "ns", -_LATE, _LATE, "time of the hit"),
        Field("var", "float32", "", -_FAR, _FAR, "last column of the file; 1 in the public one"),
    ),
    group=("event_no",),
    key=("event_no",),
)
_EVENTS, _ITEMS = 1 << 16, 1 << 20  # most of a block

_Block = tuple["NDArray[np.float32]", "NDArray[np.uint32]", "NDArray[np.float32]"]


class LiquidOFiles:
    """Reader of two float32 tables: HitData [M, 7] with the columns HITS, TruthData [N, 9] with EVENTS.

    The hits of an event are together, the events in the order of TruthData. Vertices and directions are in
    another frame than the hits: ``reader.vertex_axes`` turns them into the frame of the hits, and a file
    whose own events say otherwise is a FormatError. All other values are as in the file.
    """

    layout: Layout = LIQUIDO
    needs: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("HDF5",)
    expectations = Expectations(axes={f"vertex_{axis}_mm": f"{axis}_mm" for axis in "xyz"})

    def __init__(self, options: LiquidOFilesOptions) -> None:
        self._axes: tuple[str, ...] = options.vertex_axes

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:  # noqa: ARG002
        """Yield all events in the order of TruthData, in blocks of about a million hits."""
        for number, block in enumerate(_blocks(path)):
            truth, counts, hits = block
            if number == 0:
                self._check_frame(path, block)
            yield Events(self._columns(truth), counts, np.ascontiguousarray(hits[:, 1:]))

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:  # noqa: ARG002
        """Count events and hits by the lengths of the tables."""
        with _tables(path) as (truth, hits):
            note_unread(truth.file, "TruthData", "HitData")
            return len(truth), len(hits)

    def _check_frame(self, path: Path, block: _Block) -> None:
        frame = _frame_of(block)
        if frame.is_clear() and frame.axes != self._axes:
            raise FormatError(
                f"{path}: vertices and hits do not fit with reader.vertex_axes: [{', '.join(self._axes)}]; "
                f"in this file {frame}; set reader.vertex_axes: [{', '.join(frame.axes)}]"
            )

    def _columns(self, truth: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Turn rows of TruthData [N, 9] into the event columns, [N] each."""
        zenith, azimuth = truth[:, 4:6].astype(np.float64).T
        with np.errstate(invalid="ignore"):  # an infinite angle is not legal, and is reported with its row
            sine = np.sin(zenith)
            direction = np.stack([sine * np.cos(azimuth), sine * np.sin(azimuth), np.cos(zenith)], axis=1)
        vectors = [*turned(truth[:, 1:4], self._axes), *turned(direction, self._axes)]
        columns = [truth[:, 0], *vectors, *truth[:, 6:].T]
        return {
            field.name: column.astype(field.dtype)
            for field, column in zip(LIQUIDO.events, columns, strict=True)
        }


def frame_check(path: Path) -> str:
    """Report which axis of a file's vertices lies along each axis of its hits, with their correlations."""
    return next((str(_frame_of(block)) for block in _blocks(path)), "no events")


def _frame_of(block: _Block) -> Frame:
    truth, counts, hits = block
    return find_frame(truth[:, 1:4], counts, hits[:, 2:5])


def _blocks(path: Path) -> Iterator[_Block]:
    """Yield rows of TruthData [n, 9], the number of hits of each [n], and their rows of HitData [m, 7]."""
    with _tables(path) as (events, hits):
        truth = events[:]
        _check_events(path, truth)
        counts = _counts(path, truth[:, 0], hits)
        starts = offsets(counts)
        for first, last in cuts(counts, _EVENTS, _ITEMS):
            yield truth[first:last], counts[first:last], hits[starts[first] : starts[last]]


def _check_events(path: Path, truth: NDArray[np.float32]) -> None:
    """Raise FormatError for ids that are no whole numbers, and for an event that occurs twice."""
    for name, column, low, high in (("event_no", truth[:, 0], 0, _IDS), ("pid", truth[:, 8], -_PDG, _PDG)):
        wrong = ~((np.floor(column) == column) & (column >= low) & (column <= high))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise FormatError(
                f"{path}: TruthData: row {row}: {name}: expected a whole number from {low} to "
                f"{high}, found {column[row]:g}; have the file made again"
            )
    ids = truth[:, 0]
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(np.diff(ids[order]) == 0)
    if len(twice):
        one, other = order[twice[0] : twice[0] + 2].tolist()
        raise FormatError(
            f"{path}: TruthData: rows {one} and {other}: both are event {ids[one]:.0f}; expected each event "
            "once; have the file made again"
        )


def _counts(path: Path, ids: NDArray[np.float32], hits: h5py.Dataset) -> NDArray[np.uint32]:
    """Count the hits of each event, [N]; raise FormatError unless they come in the order of the events."""
    order = np.append(np.argsort(ids), len(ids))
    ascending = np.append(np.sort(ids), np.float32(np.nan))  # NaN: beyond all, and unequal to any
    counts, latest = np.zeros(len(ids) + 1, np.int64), 0
    for first in range(0, len(hits), _ITEMS):
        owners = hits[first : first + _ITEMS][:, 0]
        at = np.minimum(np.searchsorted(ascending, owners), len(ids))
        rows = order[at]
        wrong = (ascending[at] != owners) | (np.diff(rows, prepend=latest) < 0)
        if wrong.any():
            bad = int(np.argmax(wrong))
            raise FormatError(
                f"{path}: HitData: row {first + bad}: event_no: expected an event of TruthData, in its "
                f"order, found {owners[bad]:g}; have the file made again"
            )
        counts += np.bincount(rows, minlength=len(counts))
        latest = int(rows[-1])
    return counts[:-1].astype(np.uint32)


@contextlib.contextmanager
def _tables(path: Path) -> Iterator[tuple[h5py.Dataset, h5py.Dataset]]:
    """Open TruthData and HitData; raise FormatError when one is missing or has another shape."""
    with open_hdf5(path) as file:
        yield _table(path, file, "TruthData", EVENTS), _table(path, file, "HitData", HITS)


def _table(path: Path, file: h5py.File, name: str, columns: Sequence[str]) -> h5py.Dataset:
    dataset = find_dataset(path, file, name)
    if dataset is None or dataset.shape != (*dataset.shape[:1], len(columns)) or dataset.dtype != np.float32:
        raise FormatError(
            f"{path}: {name}: expected float32 [rows, {len(columns)}] with {', '.join(columns)}, found "
            f"{describe(file, name)}; choose the reader of this file with source.reader"
        )
    return dataset
