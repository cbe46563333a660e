"""The tables of the docs on the three simulators: their numbers, beside public ones, and their speed.

    OMP_NUM_THREADS=1 python docs/simulators.py muons|neutrinos|gammas [FILES]

Speeds are of CPU seconds on one thread, writing included; FILES (7) are written of each setting. What muon
bundles look like is compared with published formulas by docs/figures/simulator.py.
"""

# ruff: noqa: PLR2004 - bounds of public numbers
from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import uproot

from crpipe.core.ranges import Range
from crpipe.workloads.direction.simulator.files import write_batch
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from crpipe.workloads.muons.simulator.files import AirShowers
from crpipe.workloads.muons.simulator.options import AirShowersOptions
from crpipe.workloads.xec.sensors import INNER, sensor_map
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from crpipe.workloads.xec.simulator.physics import uvw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

STEEP = {"spectral_index": 2.6, "energy_min_gev": 600, "energy_max_gev": 1e11}
SHOWERS = {
    "steep": AirShowersOptions(**STEEP, showers_per_file=5000),
    "steep, 10 depths": AirShowersOptions(**STEEP, showers_per_file=50_000, depths=10),
    "steep, 1 depth": AirShowersOptions(**STEEP, showers_per_file=200_000, depths=1),
    "H4a": AirShowersOptions(
        spectrum="gaisser_h4a", energy_min_gev=600, energy_max_gev=1e11, showers_per_file=5000
    ),
    "H4a above 100 TeV": AirShowersOptions(
        spectrum="gaisser_h4a", energy_min_gev=1e5, energy_max_gev=1e11, showers_per_file=2000
    ),
    "flat": AirShowersOptions(
        spectral_index=1.0, energy_min_gev=1e3, energy_max_gev=1e8, showers_per_file=1000
    ),
    "default": AirShowersOptions(showers_per_file=320),
}


ENERGIES = {"15 to 60 MeV": (0.015, 0.060), "52.8 MeV": (0.0528, 0.0528)}
# Of the 132 million public events, from notes on their training files; - where none is known.
PUBLIC = {
    "pulses per event, mean": "158",
    "pulses per event, standard deviation": "1480",
    "pulses per event, smallest": "5",
    "pulses per event, median": "-",
    "pulses per event, 99.9 %": "-",
    "pulses per event, largest": "178000",
    "auxiliary share of the pulses": "0.28",
    "sensors with one pulse, of those hit": "0.78",
    "pulses per sensor hit, 50 %": "1",
    "pulses per sensor hit, 90 %": "3",
    "pulses per sensor hit, 95 %": "5",
    "sensors per event, 99 %": "< 2000",
    "sensors per event, largest": "5160",
    "time, smallest (ns)": "5714",
    "time, mean (ns)": "13130",
    "time, largest (ns)": "77785",
    "charge, smallest (pe)": "0.025",
    "charge, mean (pe)": "3.9",
    "charge, largest (pe)": "2762",
}


def pulse_numbers(path: Path) -> list[float]:
    """Compute the numbers of one file, in the order of PUBLIC."""
    table = pq.read_table(path)
    event, sensor, moment, charge, auxiliary = (
        table[name].to_numpy() for name in ("event_id", "sensor_id", "time", "charge", "auxiliary")
    )
    _, pulses = np.unique(event, return_counts=True)
    pairs, each = np.unique(event * 5160 + sensor, return_counts=True)
    _, sensors = np.unique(pairs // 5160, return_counts=True)
    return [
        *(pulses.mean(), pulses.std(), pulses.min(), np.median(pulses), np.percentile(pulses, 99.9)),
        *(pulses.max(), auxiliary.mean(), np.mean(each == 1), *np.percentile(each, [50, 90, 95])),
        *(np.percentile(sensors, 99), sensors.max(), moment.min(), moment.mean(), moment.max()),
        *(charge.min(), charge.mean(), charge.max()),
    ]


GAMMAS = (
    "photons per MeV, median",
    "share of the inner face",
    "photons of one sensor, median",
    "photons of one sensor, 99.9 %",
    "photons of one sensor, largest",
    "sensors below 0 (%)",
    "sensors with a time (%)",
    "sensors with a time, MPPC (%)",
    "sensors with a time, PMT (%)",
    "depth w, mean (cm)",
    "events in the fiducial cut (%)",
    "photon sum, 68 % (%)",
    "photon sum in the cut, 68 % (%)",
    "photon sum in the cut, w > 2 cm, 68 % (%)",
    "charge-weighted u, 68 % (cm)",
    "charge-weighted v, 68 % (cm)",
)


def half_width(values: NDArray[Any]) -> float:
    """Return the half width of the middle 68 % about the median."""
    return float(np.quantile(np.abs(values - np.median(values)), 0.68))


def gamma_numbers(path: Path) -> list[float]:
    """Compute the numbers of one file, in the order of GAMMAS."""
    with uproot.open(path) as file:
        events = file["tree"].arrays(library="np")
    npho, timed = events["npho"], events["relative_time"] < 9e9
    photons = np.where(npho < 9e9, npho, 0)
    inner, total = photons[:, INNER.ids.ravel()], photons.sum(axis=1)
    per_mev = total / events["energyTruth"] / 1000
    off = 100 * (per_mev / np.median(per_mev) - 1)
    u, v, w = events["uvwTruth"].T
    cut = (np.abs(u) < 23.9) & (np.abs(v) < 67.9)
    places = uvw(sensor_map()[INNER.ids.ravel(), :3])[:, :2]
    weight = np.square(np.maximum(inner, 0))
    found = weight @ places / weight.sum(axis=1, keepdims=True)
    apart = np.quantile(np.abs(found - events["uvwTruth"][:, :2])[cut], 0.68, axis=0)
    return [
        *(np.median(per_mev), inner.sum() / total.sum(), np.median(photons)),
        *(np.quantile(photons, 0.999), photons.max(), 100 * np.mean(npho < 0), 100 * timed.mean()),
        *(100 * timed[:, : inner.shape[1]].mean(), 100 * timed[:, inner.shape[1] :].mean()),
        *(w.mean(), 100 * cut.mean(), half_width(off), half_width(off[cut]), half_width(off[cut & (w > 2)])),
        *apart,
    ]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def memory() -> str:
    """Show the largest memory of this process so far."""
    return f"memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"


def muons(folder: Path, files: int) -> None:
    """Print a line for each setting."""
    path, name = folder / "bundles.parquet", Range(0, 999)
    for setting, options in SHOWERS.items():
        simulator = AirShowers(options)
        write = partial(simulator.write, name, simulator.files(name)[0], 1, path)
        seconds = [cpu_seconds(write) for _ in range(files + 1)]
        median, table = statistics.median(seconds[1:]), pq.read_table(path, columns=["muons"])
        rows, count = len(table), len(table["muons"].combine_chunks().flatten())
        speed = f"{rows / median:12,.0f} rows/s {count / median:11,.0f} muons/s"
        print(f"{setting:18} {rows:9,} rows {count:11,} muons: {speed}; {memory()}", flush=True)


def measured(
    write: Callable[[int], object],
    numbers: Callable[[], Sequence[float]],
    labels: Sequence[str],
    files: int,
    events: int,
) -> None:
    """Print the median over files with its range, and the speed; ``labels`` end with a public number."""
    found, speeds = [], []
    for number in range(files):
        speeds.append(events / cpu_seconds(lambda: write(number)))  # noqa: B023
        found.append(numbers())
    print(f"{'':44} {'median':>9} {'of files from .. to':>21}")
    for label, column in zip(
        (*labels, "events per CPU second"), (*zip(*found, strict=True), speeds), strict=True
    ):
        print(f"{label:44} {statistics.median(column):9.5g} {min(column):10.5g} {max(column):10.5g}")
    print(memory())


def neutrinos(folder: Path, files: int) -> None:
    """Print the table of neutrinos."""
    path, options = folder / "batch.parquet", NeutrinoTelescopeOptions(events_per_file=20_000)
    labels = [f"{label} ({public})" for label, public in PUBLIC.items()]
    measured(lambda n: write_batch(options, 1, n, path), lambda: pulse_numbers(path), labels, files, 20_000)


def gammas(folder: Path, files: int) -> None:
    """Print the tables of gammas, for two ranges of energies."""
    path = folder / "gammas.root"
    for name, (least, most) in ENERGIES.items():
        print(name)
        options = XenonDetectorOptions(events_per_file=1000, energy_min_gev=least, energy_max_gev=most)
        measured(
            lambda n: write_gammas(options, 1, n, path),  # noqa: B023
            lambda: gamma_numbers(path),
            GAMMAS,
            files,
            1000,
        )
        print(f"{path.stat().st_size / 1000:.0f} bytes an event")


if __name__ == "__main__":
    functions = {"muons": muons, "neutrinos": neutrinos, "gammas": gammas}
    with tempfile.TemporaryDirectory() as place:
        functions[sys.argv[1]](Path(place), int(sys.argv[2]) if len(sys.argv) > 2 else 7)
