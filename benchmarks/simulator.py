"""How fast the simulator writes files, on one core: rows and muons per CPU second; and its largest memory.

OMP_NUM_THREADS=1 python benchmarks/simulator.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from peak import peak_mib

from crpipe.core.ranges import Range
from crpipe.workloads.muons.simulator.files import file_names, write_file
from crpipe.workloads.muons.simulator.options import AirShowersOptions

STEEP = {"spectral_index": 2.6, "energy_min_gev": 600, "energy_max_gev": 1e11}
SETTINGS = {
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


def measure(synthetic: AirShowersOptions, path: Path, runs: int) -> tuple[int, int, list[float], float]:
    """Time ``runs`` writes of one file; return its rows, its muons, CPU seconds of each run, peak in MiB."""
    name = Range(0, 999)
    file = file_names(synthetic, name)[0]
    write_file(synthetic, 1, name, file, path)
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        write_file(synthetic, 1, name, file, path)
        seconds.append(time.process_time() - start)
    peak = peak_mib()
    table = pq.ParquetFile(path)
    lengths = (
        batch["muons"].value_lengths().to_numpy().sum()
        for batch in table.iter_batches(4096, columns=["muons"])
    )
    return table.metadata.num_rows, int(sum(lengths)), seconds, peak


def print_line(label: str, runs: int) -> None:
    """Measure one setting in this process."""
    with tempfile.TemporaryDirectory() as folder:
        before = peak_mib()
        rows, muons, seconds, peak = measure(SETTINGS[label], Path(folder) / "bundles.parquet", runs)
    median = statistics.median(seconds)
    print(
        f"{label:18} {rows:7} rows {muons:9} muons  median of {runs}: {median:.3f} s "
        f"(best {min(seconds):.3f})  {rows / median:9.0f} rows/s {muons / median:9.0f} muons/s  "
        f"peak {peak:.0f} MiB ({before:.0f} before)",
        flush=True,
    )


def main() -> None:
    """Print one line per setting, each measured in a process of its own."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    if len(sys.argv) > 2:
        print_line(sys.argv[2], runs)
        return
    for label in SETTINGS:
        subprocess.run([sys.executable, __file__, str(runs), label], check=True)


if __name__ == "__main__":
    main()
