"""ROOT files of the xenon detector: one entry per event in, bounded blocks of checked events out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.events.batch import Events
from crpipe.workloads.xec.layout import LARGEST, SENSORS, TRUTH, sensor_layout
from crpipe.workloads.xec.reading.dead import DeadSensors, read_dead
from crpipe.workloads.xec.reading.trees import EventTree, open_tree
from crpipe.workloads.xec.sensors import read_sensor_map

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.events.layout import Layout
    from crpipe.events.tables import Tables
    from crpipe.workloads.xec.layout import Truth
    from crpipe.workloads.xec.reading.options import RootFilesOptions

_EVENTS = (16 << 20) // (16 * SENSORS)  # of a block: 16 MiB of items
_AT_ONCE = 16  # events whose flags are found together, so that they stay in the processor's cache
_NS = 1e9
_SHAPES: dict[Truth, tuple[int, ...]] = {"energy": (), "position": (3,), "time": (), "angle": (2,)}
_UNITS: dict[Truth, float] = {"energy": 1, "position": 1, "time": _NS, "angle": np.pi / 180}


class RootFiles:
    """Reader of TTrees; ``reader.branches`` names the branches of photons, times, run, event and truth.

    What is no value in a file (NaN, 1e10, the time of little light) becomes a flag here and nowhere else:
    see ``flag_sensors``. A branch of the truth that a file lacks gives NaN, which a split refuses and a
    prediction does not need. (run, event) must be unique in a file.
    """

    def __init__(self, options: RootFilesOptions) -> None:
        self._options = options
        self.layout: Layout = sensor_layout(options.truth, options.group, fiducial=options.fiducial)
        self.formats = ("ROOT",)
        self.needs: tuple[str, ...] = tuple(name for name in ("sensors", "dead") if getattr(options, name))

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of the file, in blocks of 16 MiB of items."""
        self._check_places(tables)
        dead = read_dead(tables["dead"]) if self._options.dead else DeadSensors({})
        with open_tree(path, self._options.tree) as tree:
            shapes = self._check(tree)
            branches = self._options.branches
            run, event = tree.whole(branches.run, branches.event)
            _refuse_twins(path, run, event)
            row = 0
            for block in tree.blocks(shapes, _EVENTS):
                npho, time = block[branches.npho], block[branches.relative_time]
                own = slice(row, row + len(npho))
                columns = {"run": run[own].astype(np.int64), "event": event[own].astype(np.int64)}
                items = flag_sensors(npho, time, dead.of(run[own]), self._options.npho_threshold)
                multiplicity = np.full(len(npho), SENSORS, np.uint32)
                yield Events(columns | self._truth(block, len(npho)), multiplicity, items)
                row += len(npho)

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events by the entries of the tree; refuse a wrong map of the sensors and a wrong tree."""
        self._check_places(tables)
        with open_tree(path, self._options.tree) as tree:
            self._check(tree)
            return tree.events, tree.events * SENSORS

    def _check_places(self, tables: Tables) -> None:
        if self._options.sensors:
            read_sensor_map(tables["sensors"])

    def _check(self, tree: EventTree) -> dict[str, tuple[int, ...]]:
        """Give the shape of each branch to read in blocks; raise FormatError for one that does not fit."""
        branches = self._options.branches
        for option in ("npho", "relative_time", "run", "event"):
            tree.need(option, getattr(branches, option))
        for name in (branches.run, branches.event):
            tree.check(name, "iu", ())
        shapes: dict[str, tuple[int, ...]] = {branches.npho: (SENSORS,), branches.relative_time: (SENSORS,)}
        truth = {getattr(branches, name): _SHAPES[name] for name in self._options.truth}
        shapes |= {name: shape for name, shape in truth.items() if name in tree.branches}
        for name, shape in shapes.items():
            tree.check(name, "f", shape)
        return shapes

    def _truth(self, block: dict[str, NDArray[Any]], events: int) -> dict[str, NDArray[np.float32]]:
        """Turn the truth's branches into columns in crpipe's units: {name: [N] float32}."""
        columns: dict[str, NDArray[np.float32]] = {}
        for truth in self._options.truth:
            fields = TRUTH[truth]
            found = block.get(getattr(self._options.branches, truth), np.full((events, len(fields)), np.nan))
            with np.errstate(over="ignore"):  # infinities are not legal, and are reported with their row
                values = (found.reshape(events, -1).astype(np.float64) * _UNITS[truth]).astype(np.float32)
            columns |= {field.name: values[:, at].copy() for at, field in enumerate(fields)}
        return columns


def flag_sensors(
    npho: NDArray[Any], relative_time: NDArray[Any], dead: NDArray[np.bool_], threshold: float
) -> NDArray[np.float32]:
    """Turn photons and times [s] with sentinels, [N, 4760] each, into items [N·4760, 4] with flags.

    photons_valid: npho is finite and within ±9e9, and the sensor is not in ``dead`` [N, 4760]. time_valid:
    photons_valid, npho is at least ``threshold``, and the time is finite and within ±9e9. Where a flag is 0,
    so is the value.
    """
    items = np.empty((len(npho), SENSORS, 4), np.float32)
    for first in range(0, len(npho), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        photons, time = npho[some], relative_time[some]
        seen = (np.abs(photons) <= LARGEST) & ~dead[some]  # NaN is not <= anything
        timed = seen & (photons >= threshold) & (np.abs(time) <= LARGEST)
        items[some, :, 0] = np.where(seen, photons, 0)
        items[some, :, 1] = np.where(timed, time, 0) * _NS
        items[some, :, 2] = seen
        items[some, :, 3] = timed
    return items.reshape(-1, 4)


def _refuse_twins(path: Path, run: NDArray[Any], event: NDArray[Any]) -> None:
    """Raise FormatError when two rows of a file have the same run and event."""
    order = np.lexsort((event, run))
    same = (np.diff(run[order]) == 0) & (np.diff(event[order]) == 0)
    if same.any():
        at = int(np.argmax(same))
        one, other = sorted(order[at : at + 2].tolist())
        raise FormatError(
            f"{path}: rows {one} and {other}: both are event {event[one]} of run {run[one]}; expected each "
            "event once; have the file made again"
        )
