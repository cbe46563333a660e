"""Files of pulses through crpipe's own jobs: tables, list, stage and split."""

import json
import subprocess
import sys

from crpipe.workloads.direction.reading.prometheus import geometry_of
from prometheus_files import write_nested

READING = "crpipe.workloads.direction.reading"
NESTED = [54_550, 1, 193, 1157, 151_579, 472, 6783, 21, 2163, 295]
STAGED = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from raw_files import campaign, split, write_staged
root = Path(sys.argv[1])
overrides = (root / "overrides").read_text().splitlines()
config = campaign(root, *overrides)
write_staged(config)
split(config)
# Not getrusage: its peak is inherited from the parent, which made the file.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_two_giants_of_prometheus_become_outliers_in_bounded_memory(tmp_path):
    raw = tmp_path / "results/staged/0000000-0000999"
    raw.mkdir(parents=True)
    path = write_nested(raw / "853_photons.parquet", NESTED)
    geometry = tmp_path / "results/tables/geometry"
    geometry.parent.mkdir()
    geometry_of([path], geometry)
    row = {"uri": "u", "path": "tables/geometry", "size": geometry.stat().st_size, "sha256": "0" * 64}
    (tmp_path / "results/tables.json").write_text(json.dumps({"geometry": row}))
    reader = f"{READING}.prometheus:PrometheusPhotons"
    overrides = [f"source.reader={reader}", "split.threshold=20000"]
    overrides += ["train.workload=crpipe.workloads.direction:DeepSet"]
    (tmp_path / "overrides").write_text("\n".join(overrides))
    command = [sys.executable, "-c", STAGED, str(tmp_path), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1_000_000  # kB
    ledger = json.loads((tmp_path / "results/ledgers/0000000-0000999.json").read_text())
    assert ledger["balanced"] is True
    assert (ledger["events"]["listed"], ledger["items"]["listed"]) == (10, 217_214)
    giants = [name for name in ledger["events"] if name.endswith("outliers")]  # of training and validation
    sums = [sum(ledger[what][name] for name in giants) for what in ("events", "items")]
    assert sums == [2, 54_550 + 151_579]
    assert ledger["events"]["rejected"] == 0
