"""Files of simulated gammas, ROOT trees with the branches of the detector's own files."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from crpipe.core.errors import require
from crpipe.workloads.common import elementary
from crpipe.workloads.common.simulators import NumberedSimulator
from crpipe.workloads.xec.layout import SENSORS, sensor_layout
from crpipe.workloads.xec.sensors import MPPCS, uvw, write_sensor_map
from crpipe.workloads.xec.simulator.physics import (
    LIGHT_CM_NS,
    PHOTONS_PER_GEV,
    dead_sensors,
    mean_photons,
    photosensors,
    sample_deposits,
    sample_gammas,
    shares,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
    from crpipe.workloads.xec.simulator.physics import Deposits

# What the sensors report: photons with noise, and the time of the first light where it is enough.

INVALID = 1e10
THRESHOLD = 100.0  # photons that a time takes
EXCESS = np.where(np.arange(SENSORS) < MPPCS, 1.3, 1.4).astype(np.float32)  # variance in units of Poisson's
NOISE = 1.5  # photons, of the electronics
GROUP_INDEX = 1.65
DECAYS = ((4.0, 0.1), (22.0, 0.3), (45.0, 0.6))  # ns, share of the light
JITTER_NS, JITTER_ONE_NS = 0.1, 3.0  # of any time, and of one of a single photon
_STEP = 1 / 16  # photons, of the digitised values


def record(
    rng: np.random.Generator, deposits: Deposits, dead: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return photons and times (s) of all sensors, [N, 4760] each; INVALID where there is none."""
    detected = rng.poisson(mean_photons(deposits)).astype(np.float32)
    photons = elementary.normal(rng, detected.shape)
    photons *= np.sqrt((EXCESS - 1) * detected + np.float32(NOISE**2))
    photons += detected
    photons *= photosensors().gain
    photons = np.round(photons * np.float32(1 / _STEP)) * np.float32(_STEP)
    photons[:, dead] = 0
    event, sensor = np.nonzero(photons >= THRESHOLD)
    time = np.full(photons.shape, INVALID, np.float32)
    time[event, sensor] = 1e-9 * _times(rng, deposits, event, sensor, photons[event, sensor])
    photons[:, dead] = INVALID
    return photons, time


def _times(
    rng: np.random.Generator,
    deposits: Deposits,
    event: NDArray[np.int64],
    sensor: NDArray[np.int64],
    photons: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return the times of M sensors in ns, [M]: of the first photon of any deposit, with jitter."""
    places = deposits.place[event].astype(np.float32)
    share = shares(places, sensor[:, None])
    mean = PHOTONS_PER_GEV * deposits.energy_gev[event] * share
    all_ = photosensors()
    centre = np.stack([all_.x, all_.y, all_.z], axis=1)[sensor]
    distance = np.linalg.norm(places - centre[:, None], axis=2)
    arrival = deposits.time_ns[event] + distance * (GROUP_INDEX / LIGHT_CM_NS) + first_decay(rng, mean)
    jitter = np.hypot(JITTER_NS, JITTER_ONE_NS / np.sqrt(photons))
    first: NDArray[np.float64] = arrival.min(axis=1)
    return first + jitter * rng.standard_normal(len(jitter))


def first_decay(rng: np.random.Generator, photons: NDArray[np.floating]) -> NDArray[np.float64]:
    """Sample the first of so many scintillation decays, in ns; for less than one photon it comes late.

    All n are later than t with probability S(t)^n, so -log S(t) of the first is exponential, with mean 1/n.
    """
    t = np.concatenate([[0], np.geomspace(1e-3, 1e3, 600)])
    law = -np.log(sum(share * np.exp(-t / tau) for tau, share in DECAYS))
    target = rng.standard_exponential(photons.shape) / np.maximum(photons, 1e-9)
    return np.interp(target, law, t)


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


class XenonDetector(NumberedSimulator["XenonDetectorOptions"]):
    """Simulator of gammas in liquid xenon; docs/xec.md says what is modelled."""

    layout = sensor_layout()
    offers = ("sensors",)
    pattern = "gammas_{:06d}.root"

    def simulate(self, seed: int, number: int, path: Path) -> None:
        """Simulate the file of one number; raise MissingExtra without uproot."""
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
            blocks = [
                sample_events(rng, options, min(AT_ONCE, count - done)) for done in range(0, count, AT_ONCE)
            ]
            columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
            columns["run"] = np.full(count, number, np.int32)
            columns["event"] = np.arange(first, first + count, dtype=np.int32)
            tree.extend(columns)


def sample_events(
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
    """Write one date into all records of a file: uproot offers no way to choose it."""
    util = uproot._util  # noqa: SLF001
    kept = util.datetime_to_code
    util.datetime_to_code = lambda _: _DATE
    try:
        yield
    finally:
        util.datetime_to_code = kept
