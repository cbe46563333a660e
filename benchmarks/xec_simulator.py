"""The simulated gammas in numbers, for the default energies and for 52.8 MeV; speed, size and memory.

OMP_NUM_THREADS=1 python benchmarks/xec_simulator.py [FILES [EVENTS]]
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import uproot

from crpipe.workloads.xec.sensors import INNER, sensor_map
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from crpipe.workloads.xec.simulator.physics import uvw

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABELS = (
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
    """Give the half width of the middle 68 % about the median."""
    return float(np.quantile(np.abs(values - np.median(values)), 0.68))


def numbers(path: Path) -> list[float]:
    """Compute the numbers of one file, in the order of LABELS."""
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


def measure(name: str, options: XenonDetectorOptions, files: int) -> None:
    """Print the median over files with its range, and the speed."""
    found, speeds = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gammas.root"
        for number in range(files):
            start = time.process_time()
            write_gammas(options, 1, number, path)
            speeds.append(options.events_per_file / (time.process_time() - start))
            found.append(numbers(path))
        size = path.stat().st_size / options.events_per_file
    print(f"{name:44} {'median':>9} {'of files from .. to':>21}")
    for label, column in zip(LABELS, zip(*found, strict=True), strict=True):
        print(f"{label:44} {statistics.median(column):9.4g} {min(column):10.4g} {max(column):10.4g}")
    print(
        f"events per CPU second: {statistics.median(speeds):.0f} (least of {files}: {min(speeds):.0f}); "
        f"{size:.0f} bytes an event\n"
    )


def main() -> None:
    """Print the table of both energies, after the memory that writing one file takes."""
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    events = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    with tempfile.TemporaryDirectory() as folder:
        write_gammas(XenonDetectorOptions(events_per_file=events), 1, 0, Path(folder) / "gammas.root")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory of the process after writing a file of {events} events: {memory:.0f} MB\n")
    for name, least, most in (("15 to 60 MeV", 0.015, 0.060), ("52.8 MeV", 0.0528, 0.0528)):
        options = XenonDetectorOptions(events_per_file=events, energy_min_gev=least, energy_max_gev=most)
        measure(name, options, files)


if __name__ == "__main__":
    main()
