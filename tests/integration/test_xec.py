"""Gammas in the xenon detector, from ROOT files through the real Snakemake, and killed.

The files are simulated, in the branches of the real ones.
"""

import os
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot

from crpipe.core.files import read_json
from crpipe.workloads.xec.sensors import write_sensor_map
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from kills import check_killed_in_training, check_kills_change_nothing
from outside.lab import Lab

pytestmark = pytest.mark.timeout(900)

EVENTS = 120
LINKS = ("0000001-0000004", "0000001-0000004.2")
# How many jobs of each verb are disturbed: none of them more often than it runs at least.
KILLS = {"list": 1, "stage": 2, "split": 2, "train": 4, "evaluate": 1}
RESOLUTIONS = ("energy", "u", "v", "w", "distance", "time", "theta", "phi")
SETTINGS = {
    "run": "first",
    "source": {
        "uri": "gammas/gammas_{number:06}.root",
        "reader": "crpipe.workloads.xec.reading.root:RootFiles",
        "tables": {"sensors": "sensors.csv", "dead": "dead.txt"},
    },
    "reader": {"fiducial": True, "group": "run", "sensors": True, "dead": True},
    "ranges": {"first": 1, "last": 4, "size": 2},
    "split": {
        "validation_fraction": 0,
        "validation_files": [4],
        "on_bad_event": "reject",
        "max_rejected": 1,
        "histograms": {"energy_gev": [0.015, 0.06, 5]},
    },
    "load": {"batch_size": 32, "max_items": 80_000},
    "train": {
        "workload": "crpipe.workloads.xec:Regressor",
        "ranges_per_link": 0,
        "passes": 2,
        "schedule": {"shape": "one_cycle"},
        "validate_every": 4,
        "monitor": "energy_loss",
        "snapshot_steps": 2,
        "log_steps": 1,
        "threads": 1,
        "device": "cpu",
    },
    "model": {
        "patch": 8,
        "channels": 8,
        "blocks": [1, 1],
        "hex_blocks": 1,
        "width": 16,
        "layers": 1,
        "heads": 2,
        "feedforward": 16,
        "head": 8,
        "channel_dropout": 0.05,
        "tasks": {"energy": {"loss": "gaussian_nll"}, "position": {}, "time": {}, "angle": {}},
        "reweight": ["energy_gev"],
    },
    "evaluate": {"events": 200, "batch_events": 50, "formats": []},
    "resources": {job: {"cpus": 1, "mem_mb": 1000} for job in ("stage", "split", "train", "evaluate")},
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A campaign over four ROOT files, not run yet; a fifth one has no truth and is kept for predictions."""
    lab = Lab.begin(tmp_path_factory.mktemp("xec") / "campaign", SETTINGS)
    folder = lab.folder / "gammas"
    folder.mkdir()
    for number in range(1, 6):
        options = XenonDetectorOptions(events_per_file=EVENTS)
        write_gammas(options, 1, number, folder / f"gammas_{number:06}.root")
    with (
        uproot.open(folder / "gammas_000005.root") as file,
        uproot.recreate(lab.folder / "real.root") as real,
    ):
        names = ["run", "event", "npho", "relative_time"]
        arrays = file["tree"].arrays(names, library="np")
        real.mktree("tree", {name: (each.dtype, each.shape[1:]) for name, each in arrays.items()})
        real["tree"].extend(arrays)
    write_sensor_map(lab.folder / "sensors.csv")
    (lab.folder / "dead.txt").write_text("# known to be dead\n17\n4100\n")
    return lab


@pytest.fixture(scope="module")
def finished(begun, tmp_path_factory):
    campaign = begun.copy(tmp_path_factory.mktemp("finished") / "campaign")
    campaign.snakemake("all")
    return campaign


def truth_of(campaign, numbers):
    """Read the truth of some files: (run, event) -> energy in GeV, u, v, w in cm."""
    found = {}
    for number in numbers:
        with uproot.open(campaign.folder / f"gammas/gammas_{number:06}.root") as file:
            names = ["run", "event", "energyTruth", "uvwTruth"]
            arrays = file["tree"].arrays(names, library="np")
        for run, event, energy, place in zip(*arrays.values(), strict=True):
            found[run, event] = (energy, *place)
    return found


def test_the_ledger_counts_what_the_fiducial_cut_leaves_out(finished):
    truth = truth_of(finished, range(1, 5))
    inside = {key for key, (_, u, v, w) in truth.items() if abs(u) <= 23.9 and abs(v) <= 67.9 and w >= 0}
    ledgers = [read_json(path) for path in sorted((finished.results / "ledgers").glob("*.json"))]
    assert all(ledger["balanced"] for ledger in ledgers)
    counts = [ledger["events"] for ledger in ledgers]
    assert [each["listed"] for each in counts] == [2 * EVENTS] * 2
    assert sum(each["rejected"] for each in counts) == len(truth) - len(inside) > 0
    kept = {}
    for part in ("train", "validation"):
        tables = [pq.read_table(path) for path in finished.results.glob(f"shards/*/{part}-*.events.parquet")]
        rows = [
            row
            for table in tables
            for row in zip(*table.select(["run", "event"]).to_pydict().values(), strict=True)
        ]
        kept[part] = rows
        assert len(rows) == len(set(rows))
    assert {run for run, _ in kept["train"]} == {1, 2, 3}
    assert {run for run, _ in kept["validation"]} == {4}
    assert {*kept["train"], *kept["validation"]} == inside
    assert not list(finished.results.glob("outliers/**/*.parquet"))


def test_the_shards_are_no_larger_than_the_files(finished):
    raw = sum(path.stat().st_size for path in (finished.folder / "gammas").glob("gammas_00000[1-4].root"))
    shards = sum(path.stat().st_size for path in finished.results.glob("shards/*/*.parquet"))
    assert 0 < shards <= 1.3 * raw


@pytest.mark.compiler
def test_killed_in_training_it_ends_in_the_same_bytes(finished, tmp_path):
    check_killed_in_training(finished, tmp_path)


@pytest.mark.skipif(not os.environ.get("CRPIPE_KILLS"), reason="CRPIPE_KILLS=N: nightly")
def test_killed_ten_times_it_ends_in_the_same_bytes(begun, finished, tmp_path):
    assert sum(KILLS.values()) == 10
    assert len(finished.checkpoints()) == len(LINKS)
    check_kills_change_nothing(begun, finished, tmp_path / "campaign", KILLS, 3)


def test_people_read_of_sensors_and_resolutions(finished):
    for words in (("summary",), ("status",), ("plan",)):
        assert not re.search("muon|bundle|shower|pulse", finished.say(*words))
    text = finished.say("summary")
    assert "sensors" in text
    folder = finished.run / "evaluation" / LINKS[1]
    metrics = read_json(folder / "metrics.json")
    assert {f"{name}_resolution" for name in RESOLUTIONS} <= {*metrics["values"]}
    assert metrics["groups"] == 1  # one run, which has no spread
    assert not any(name.endswith("_resolution_error") for name in metrics["values"])
    assert {"energy_resolution", "u_resolution", "distance_resolution"} <= {*metrics["baseline"]}
    assert "energy_pull" in metrics["values"]
    assert {"saliency_energy_inner", "saliency_angle_bottom"} <= {*metrics["values"]}
    figures = {path.stem for path in folder.glob("*.svg")}
    assert {"worst_events", "saliency"} < figures
    assert len(figures) >= 6


def test_scores_are_those_of_the_predictions(finished):
    folder = finished.run / "evaluation" / LINKS[1]
    table = pq.read_table(folder / "predictions.parquet").to_pydict()
    known = truth_of(finished, [4])
    truth = np.array([known[key] for key in zip(table["run"], table["event"], strict=True)])
    ratio = np.array(table["energy_gev"]) / truth[:, 0] - 1
    half_width = np.quantile(np.abs(ratio - np.median(ratio)), 0.68)
    values = read_json(folder / "metrics.json")["values"]
    assert values["energy_resolution"] == pytest.approx(100 * half_width, rel=0.05)
    away = np.stack([table[name] for name in ("u_cm", "v_cm", "w_cm")], axis=1) - truth[:, 1:]
    wanted = np.quantile(np.linalg.norm(away, axis=1), 0.68)
    assert values["distance_resolution"] == pytest.approx(wanted, rel=0.02)


def test_real_events_are_predicted_once_each_or_not_at_all(finished, tmp_path):
    predict = ("predict", "--checkpoint", "best", "--in", "real.root")
    finished.say(*predict, "--out", str(tmp_path / "real.parquet"))
    table = pq.read_table(tmp_path / "real.parquet")
    keys = list(zip(table["run"].to_pylist(), table["event"].to_pylist(), strict=True))
    assert keys == sorted(truth_of(finished, [5]))
    assert np.isfinite(table["energy_gev"].to_numpy()).all()
    (tmp_path / "again.root").symlink_to(finished.folder / "real.root")
    twice = finished.crpipe(*predict, str(tmp_path / "again.root"), "--out", str(tmp_path / "x.parquet"))
    assert twice.returncode != 0
    assert re.search(r"run.*5.*event.*0", twice.stderr)
    assert "Traceback" not in twice.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_a_wrong_map_of_the_sensors_is_refused_before_anything_is_read(begun, tmp_path):
    campaign = begun.copy(tmp_path / "campaign")
    path = campaign.folder / "sensors.csv"
    head, *lines = path.read_text().splitlines()
    first, last = 4092, 4308  # the outer face, with its rows as columns
    outer = [line.split(",", 1)[1] for line in lines[first:last]]
    turned = [outer[9 * (place % 24) + place // 24] for place in range(216)]
    lines[first:last] = [f"{first + place},{rest}" for place, rest in enumerate(turned)]
    path.write_text("\n".join([head, *lines]) + "\n")
    done = campaign.snakemake("all", check=False)
    assert done.returncode != 0
    assert re.search(r"face outer as 24 by 9: the sensors \d+ and \d+ would be neighbours", done.stdout)
    assert not (campaign.results / "shards").exists() or not list(campaign.results.glob("shards/*/*.parquet"))
