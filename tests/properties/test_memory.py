"""The memory that data steps take follows from the configuration, not from what an event holds."""

import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from raw_files import campaign, make_events, nested, raw_folder

HEAD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from raw_files import campaign, export, split, write_staged
config = campaign(Path(sys.argv[1]), "split.validation_fraction=0")
"""
SPLIT = """
write_staged(config)
split(config)
"""
EXPORT = """
export(config, Path(sys.argv[1]) / "out")
"""
PEAK = """
# Not getrusage: its peak is inherited from the parent, which made the file.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_mib(root, *steps):
    script = "".join([HEAD, *steps, PEAK])
    command = [sys.executable, "-c", script, str(root), *sys.path]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


@pytest.mark.slow
def test_an_event_of_ten_million_muons_fits_into_a_gigabyte(tmp_path):
    multiplicity = np.array([3, 0, 10_000_000, 2])
    muons = np.random.default_rng(1).random((multiplicity.sum(), 3), np.float32)
    path = raw_folder(campaign(tmp_path)) / "giant.parquet"
    table = nested(make_events(multiplicity * 0)[0], multiplicity, muons)
    pq.write_table(table, path, use_dictionary=False, compression="none")
    del table
    assert peak_mib(tmp_path, SPLIT) < 950
    assert peak_mib(tmp_path, EXPORT) < 950
    exported = pq.ParquetFile(tmp_path / "out" / "outliers.parquet")
    assert exported.metadata.num_rows == 1
    column = next(exported.iter_batches(columns=["muons"])).column(0)
    assert np.array_equal(column.flatten().flatten().to_numpy().reshape(-1, 3), muons[3:-2])
