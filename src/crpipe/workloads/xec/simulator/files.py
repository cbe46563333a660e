"""Files of simulated gammas, ROOT trees with the branches of the detector's own files."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from crpipe.core.extras import require
from crpipe.source.simulated import number_of, numbered_files
from crpipe.workloads.xec.layout import SENSORS, sensor_layout
from crpipe.workloads.xec.sensors import write_sensor_map
from crpipe.workloads.xec.simulator.detector import dead_sensors
from crpipe.workloads.xec.simulator.gammas import sample_deposits, sample_gammas, uvw
from crpipe.workloads.xec.simulator.readout import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from crpipe.core.ranges import Range
    from crpipe.workloads.xec.simulator.options import XenonDetectorOptions

AT_ONCE = 20  # events whose light is computed together
BASKET = 200  # events in one basket of a branch: 3.8 MB before compression
BRANCHES = {
    "run": np.dtype("i4"),
    "event": np.dtype("i4"),
    "npho": np.dtype(("f4", (SENSORS,))),
    "relative_time": np.dtype(("f4", (SENSORS,))),
    "energyTruth": np.dtype("f4"),
    "timeTruth": np.dtype("f4"),
    "uvwTruth": np.dtype(("f4", (3,))),
    "xyzTruth": np.dtype(("f4", (3,))),
    "emiAng": np.dtype(("f4", (2,))),
    "emiVec": np.dtype(("f4", (3,))),
    "xyzVTX": np.dtype(("f4", (3,))),
}
_DATE = 31 << 26 | 1 << 22 | 1 << 17  # 2026-01-01, as ROOT packs it: years since 1995, month, day
# Staging writes from many threads: side by side, files gain no time and take many times the memory.
_ONE_FILE = threading.Lock()


class XenonDetector:
    """Simulator of gammas in liquid xenon; see docs/xec-simulator.md for what is modelled."""

    layout = sensor_layout()
    offers = ("sensors",)

    def __init__(self, options: XenonDetectorOptions) -> None:
        self._options = options

    def files(self, name: Range) -> list[str]:
        """Name the files of a range; raise ConfigError when the range has too few numbers for them."""
        return numbered_files(name, self._options.files_per_range, "gammas_{:06d}.root".format)

    def write(self, name: Range, file: str, seed: int, path: Path) -> None:
        """Simulate one file; equal arguments give equal bytes.

        Raise SourceError for a file of another range, MissingExtra without uproot.
        """
        number = number_of(file, name, self.files(name))
        with _ONE_FILE:
            write_gammas(self._options, seed, number, path)

    def tables(self, folder: Path) -> Mapping[str, Path]:
        """Write the side tables: where the sensors are."""
        write_sensor_map(folder / "sensor_positions.csv")
        return {"sensors": folder / "sensor_positions.csv"}


def write_gammas(options: XenonDetectorOptions, seed: int, number: int, path: Path) -> None:
    """Simulate the file of one number, which becomes its run."""
    uproot = require("uproot", extra="root", why="to write ROOT files")
    rng = np.random.default_rng([seed, number])
    identity = uuid.UUID(bytes=rng.bytes(16), version=4)
    baskets = -(-options.events_per_file // BASKET)
    with (
        _fixed_dates(uproot),
        path.open("w+b") as raw,  # not its path, whose name would be written into it
        uproot.recreate(raw, compression=uproot.ZLIB(1), uuid_function=lambda: identity) as file,
    ):
        tree = file.mktree("tree", BRANCHES, initial_basket_capacity=baskets)
        for first in range(0, options.events_per_file, BASKET):
            count = min(BASKET, options.events_per_file - first)
            blocks = [simulate(rng, options, min(AT_ONCE, count - done)) for done in range(0, count, AT_ONCE)]
            columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
            columns["run"] = np.full(count, number, np.int32)
            columns["event"] = np.arange(first, first + count, dtype=np.int32)
            tree.extend(columns)


def simulate(
    rng: np.random.Generator, options: XenonDetectorOptions, count: int
) -> dict[str, NDArray[np.float32]]:
    """Simulate events: the branches but run and event, [count, ...] each."""
    gammas = sample_gammas(rng, options, count)
    photons, time = record(rng, sample_deposits(rng, gammas), dead_sensors(options.dead_fraction))
    columns = {
        "npho": photons,
        "relative_time": time,
        "energyTruth": gammas.energy_gev,
        "timeTruth": 1e-9 * gammas.time_ns,
        "uvwTruth": uvw(gammas.conversion),
        "xyzTruth": gammas.conversion,
        "emiAng": gammas.angles(),
        "emiVec": gammas.direction,
        "xyzVTX": gammas.vertex,
    }
    return {name: np.asarray(column, np.float32) for name, column in columns.items()}


@contextmanager
def _fixed_dates(uproot: ModuleType) -> Iterator[None]:
    """Let uproot write one date into all records of a file: it offers no way to choose it."""
    util = uproot._util  # noqa: SLF001
    kept = util.datetime_to_code
    util.datetime_to_code = lambda _: _DATE
    try:
        yield
    finally:
        util.datetime_to_code = kept
