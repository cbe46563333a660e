"""The simulated neutrino events against the public numbers of the Kaggle data, and events per CPU second.

OMP_NUM_THREADS=1 python benchmarks/direction_simulator.py [RUNS [EVENTS]]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from crpipe.workloads.direction.simulator.files import write_batch
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions

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


def numbers(path: Path) -> list[float]:
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


def main() -> None:
    """Print the table, the median over files with its range, and the speed."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    options = NeutrinoTelescopeOptions(events_per_file=int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)
    found, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            start = time.process_time()
            write_batch(options, 1, number, Path(folder) / "batch.parquet")
            seconds.append(time.process_time() - start)
            found.append(numbers(Path(folder) / "batch.parquet"))
    print(f"{'':38} {'median':>9} {'of files from .. to':>21} {'public':>9}")
    for (label, public), column in zip(PUBLIC.items(), zip(*found, strict=True), strict=True):
        print(
            f"{label:38} {statistics.median(column):9.5g} {min(column):10.5g} {max(column):10.5g} {public:>9}"
        )
    speeds = [options.events_per_file / each for each in seconds]
    print(
        f"events per CPU second, median of {runs}: {statistics.median(speeds):.0f} (least {min(speeds):.0f})"
    )


if __name__ == "__main__":
    main()
