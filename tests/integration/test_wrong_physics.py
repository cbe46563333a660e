"""Data that are wrong in physics are seen in real files before the run; what plan says to type repairs it."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot

from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.sensors import write_sensor_map
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from outside.lab import Lab
from root_files import write_root

pytestmark = pytest.mark.timeout(600)

RANGE, DEAD, BRIGHT = "0000001-0000001", [17, 900, 4100], 2000
SETTINGS = {
    "run": "first",
    "source": {
        "uri": "gammas/gammas_{number:06}.root",
        "reader": "crpipe.workloads.xec.reading.root:RootFiles",
        "tables": {"sensors": "sensors.csv"},
    },
    "ranges": {"first": 1, "last": 1, "size": 1},
    "split": {"outlier_above": SENSORS, "validation_fraction": 0.2},
    "load": {"batch_size": 2},
    "train": {"workload": "crpipe.workloads.xec:Regressor", "device": "cpu"},
}


def wrong_gammas(folder):
    """Write sixty gammas with -999 in dead sensors and inf in saturated ones; return what is saturated."""
    good = folder / "good.root"
    write_gammas(XenonDetectorOptions(events_per_file=60), 1, 1, good)
    tree = uproot.open(good)["tree"]
    branches = {name: tree[name].array(library="np") for name in ("npho", "relative_time", "run", "event")}
    branches |= {
        name: tree[name].array(library="np") for name in ("energyTruth", "uvwTruth", "timeTruth", "emiAng")
    }
    npho, time = branches.pop("npho").copy(), branches.pop("relative_time")
    npho[:, DEAD] = -999
    saturated = (npho >= BRIGHT) & (npho < 9e9)
    npho[saturated] = np.inf
    write_root(folder / "gammas" / "gammas_000001.root", npho, time, **branches)
    return saturated


def doubts(plan):
    """Return the warnings of a plan about values, each in one line."""
    lines = re.sub(r"\n {12}", " ", plan.stdout).splitlines()
    of_steps = re.compile("a link has|train.schedule.warmup_steps")
    return [line for line in lines if line.startswith("WARNING") and not of_steps.search(line)]


def test_a_sentinel_and_saturation_are_named_and_their_keys_make_them_what_they_are(tmp_path):
    lab = Lab.begin(tmp_path / "lab", SETTINGS)
    (lab.folder / "gammas").mkdir()
    saturated = wrong_gammas(lab.folder)
    write_sensor_map(lab.folder / "sensors.csv")
    plan = lab.crpipe("plan")
    assert plan.returncode == 66
    assert "photons is inf, not within -9e+09 to 9e+09; saturated?" in plan.stderr
    (doubt,) = doubts(plan)
    assert "sensors.photons is -999 in 3 sensors of every event" in doubt
    typed = re.findall(r"(reader\.\w+): (-\d+|VALUE)", f"{doubt} {plan.stderr}")
    assert typed == [("reader.sentinel", "-999"), ("reader.saturated", "VALUE")]
    keys = [f"--set={key}={value.replace('VALUE', str(BRIGHT))}" for key, value in typed]
    plan = lab.crpipe("plan", *keys)
    assert (plan.returncode, doubts(plan)) == (0, [])
    for verb in ("list", "stage", "split"):
        done = lab.crpipe(verb, RANGE, *keys)
        assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr
    shards = sorted((lab.folder / "results").rglob("*.sensors.parquet"))
    table = pa.concat_tables(map(pq.read_table, shards))
    sensors = {name: table[name].to_numpy().reshape(-1, SENSORS) for name in table.column_names}
    assert len(sensors["photons"]) == 60
    assert not sensors["photons_valid"][:, DEAD].any()
    full = sensors["saturated"] == 1
    assert full.sum() == saturated.sum() > 0
    assert (sensors["photons"][full] == BRIGHT).all()
    assert sensors["photons_valid"][full].all()
    assert -100 < sensors["photons"].min() < sensors["photons"].max() == BRIGHT
