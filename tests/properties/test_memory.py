"""A split's memory follows from its configuration, not from what an event holds."""

import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from raw_files import campaign, make_events, nested, raw_folder

GIANT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from raw_files import NAME, campaign, write_staged
from crpipe.data.split import split_range
from crpipe.progress import Silent
from crpipe.ranges import Range
config = campaign(Path(sys.argv[1]))
write_staged(config)
split_range(config, Range.parse(NAME), Silent())
# Not getrusage: its peak is inherited from the parent, which made the file.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_an_event_of_ten_million_muons_fits_into_a_gigabyte(tmp_path):
    multiplicity = np.array([3, 0, 10_000_000, 2])
    table = nested(
        make_events(multiplicity * 0)[0], multiplicity, np.ones((multiplicity.sum(), 3), np.float32)
    )
    path = raw_folder(campaign(tmp_path)) / "giant.parquet"
    pq.write_table(table, path, use_dictionary=False, compression="none")
    run = subprocess.run(
        [sys.executable, "-c", GIANT, str(tmp_path), *sys.path], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 1_000_000  # KiB
