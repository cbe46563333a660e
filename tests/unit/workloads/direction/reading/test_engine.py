"""Files of pulses through crpipe's own jobs: tables, list, stage and split."""

import json
import subprocess
import sys

import numpy as np

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.text import NullProgress
from crpipe.events.shard_manifest import groups_of
from crpipe.events.shard_reader import Shards
from crpipe.source.listing import list_range
from crpipe.source.side_tables import stage_tables
from crpipe.source.stage import stage_range
from crpipe.split.split import split_range
from crpipe.workloads.direction.layout import PULSES
from crpipe.workloads.direction.reading.prometheus import geometry_of
from opened import opened
from prometheus_files import write_nested
from pulse_files import make_pulses, write_folder

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


def run(config):
    """Do the data jobs of a campaign."""
    stage_tables(opened(config), NullProgress())
    for each in map(str, config.all_ranges()):
        list_range(opened(config), each, NullProgress())
        stage_range(opened(config), each, NullProgress())
        split_range(Campaign.open(config), each, NullProgress())


def test_a_folder_of_kaggle_is_split_into_all_its_events(tmp_path):
    rng = np.random.default_rng(0)
    batches = {}
    for number in (1, 2, 3):
        multiplicity = rng.integers(5, 60, 40)
        columns, items = make_pulses(multiplicity, seed=number)
        batches[number] = (columns, multiplicity, items)
    write_folder(tmp_path / "kaggle", batches, row_group_size=50)
    overrides = {
        "source.uri": tmp_path / "kaggle/train/batch_{number}.parquet",
        "source.reader": f"{READING}.kaggle:KaggleFiles",
        "source.tables.meta": tmp_path / "kaggle/train_meta.parquet",
        "source.tables.geometry": tmp_path / "kaggle/sensor_geometry.csv",
        "train.workload": "crpipe.workloads.direction:DeepSet",
        "ranges.first": 1,
        "ranges.last": 3,
        "ranges.step": 2,
        "split.threshold": 50,
        "split.workers": 1,
        "results": tmp_path / "results",
        "runs": tmp_path / "runs",
    }
    config = load_config((), tuple(f"{key}={value}" for key, value in overrides.items()))
    run(config)
    seen = set()
    for each in map(str, config.all_ranges()):
        for role in ("train", "validation", "outliers"):
            folder = config.paths().outliers(each) if role == "outliers" else config.paths().shards(each)
            for events in groups_of(Shards(folder, role, PULSES), PULSES):
                starts = events.offsets()
                for index, event in enumerate(events.columns["event_id"].tolist()):
                    columns, multiplicity, items = batches[event // 10_000]
                    row = columns["event_id"].tolist().index(event)
                    begin = int(multiplicity[:row].sum())
                    own = items[begin : begin + multiplicity[row]].astype(np.float32)
                    assert np.array_equal(events.items[starts[index] : starts[index + 1]], own)
                    assert events.columns["azimuth"][index] == columns["azimuth"][row]
                    assert (role == "outliers") == (multiplicity[row] > 50)
                    seen.add(event)
    assert len(seen) == 120


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
