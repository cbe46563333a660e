"""Gammas in the xenon detector, from ROOT files through the real Snakemake: killed ten times, and scanned.

The files are simulated, in the branches of the real ones.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pyarrow.parquet as pq
import pytest
import uproot

from crpipe.workloads.xec.sensors import write_sensor_map
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions
from outside.lab import Lab, changed
from runs import BIN, check_kills_change_nothing, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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
    "ranges": {"first": 1, "last": 4, "step": 2},
    "split": {
        "validation_fraction": 0,
        "validation_files": [4],
        "on_bad_event": "reject",
        "max_rejected": 1,
        "histograms": {"energy_gev": [0.015, 0.06, 5]},
    },
    "load": {"batch_events": 32, "budget_items": 80_000},
    "train": {
        "workload": "crpipe.workloads.xec:Regressor",
        "ranges_per_link": 0,
        "rounds": 2,
        "schedule": "one_cycle",
        "validate_steps": 4,
        "keep_best": "energy_loss",
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
    "evaluate": {"events": 200, "batch_events": 50},
    "resources": {job: {"cpus": 1, "mem_mb": 1000} for job in ("stage", "split", "train", "evaluate")},
}
MASKED = {name: SETTINGS["model"][name] for name in ("patch", "channels", "blocks", "hex_blocks", "width")}
MASKED |= {"layers": 1, "heads": 2, "feedforward": 16, "decoder": 4}


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


@pytest.fixture(scope="module")
def masked(finished, tmp_path_factory):
    """The same data with a masked autoencoder, then an inpainter that starts from it."""
    campaign = finished.untrained(tmp_path_factory.mktemp("masked") / "campaign")
    training = SETTINGS["train"] | {"keep_best": "photons_error"}
    autoencoder = training | {"workload": "crpipe.workloads.xec:MaskedAutoencoder"}
    campaign.configure(changed(SETTINGS, run="hidden", train=autoencoder, model=MASKED))
    campaign.snakemake("all")
    inpainter = training | {
        "workload": "crpipe.workloads.xec:Inpainter",
        "init_from": f"runs/hidden/ranges/{LINKS[1]}.json",
    }
    campaign.configure(changed(SETTINGS, train=inpainter, model=MASKED))
    campaign.snakemake("all")
    return campaign


def read_json(path):
    return json.loads(path.read_text())


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
    assert {f"{name}_resolution_error" for name in RESOLUTIONS} <= {*metrics["values"]}
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


def test_the_exported_graph_gives_the_same_values_from_the_branches(finished, tmp_path):
    finished.say("export", "--checkpoint", "latest", "--out", str(tmp_path / "model"))
    out = tmp_path / "p.parquet"
    finished.say("predict", "--checkpoint", "latest", "--in", "real.root", "--out", str(out))
    wanted = pq.read_table(out)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "regressor.onnx")
    with uproot.open(finished.folder / "real.root") as file:
        inputs = file["tree"].arrays(["npho", "relative_time"], library="np")
    for each in inputs.values():
        each[:, [17, 4100]] = np.nan  # in the list of dead sensors, which the file does not know
    for events in (1, 3, 5):
        energy, sigma, place, *_ = session.run(None, {name: each[:events] for name, each in inputs.items()})
        assert np.abs(energy[:, 0] - wanted["energy_gev"][:events]).max() < 1e-5
        assert np.abs(sigma[:, 0] - wanted["energy_gev_sigma"][:events]).max() < 1e-5
        there = np.stack([wanted[name][:events] for name in ("u_cm", "v_cm", "w_cm")], axis=1)
        assert (np.abs(place - there) / (1 + np.abs(there))).max() < 1e-5


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


def test_an_inpainter_begins_where_the_autoencoder_ended_and_finds_sensors(masked, tmp_path):
    begun_from = read_json(masked.run / "init_from.json")
    assert any(name.startswith("encoder.") for name in begun_from["loaded"])
    assert begun_from["unexpected"] == []
    values = read_json(masked.run / "evaluation" / LINKS[1] / "metrics.json")["values"]
    assert {"photons_mae", "neighbours_mae", "solid_angle_mae", "photons_mae_top"} <= {*values}
    found = {}
    for suffix in (".parquet", ".root"):
        out = tmp_path / f"found{suffix}"
        masked.say("predict", "--checkpoint", "best", "--in", "real.root", "--out", str(out))
        if suffix == ".root":
            with uproot.open(out) as file:
                found[suffix] = file["predictions"].arrays(library="np")
        else:
            found[suffix] = pq.read_table(out).to_pydict()
    rows = found[".parquet"]
    assert {name: each.tolist() for name, each in found[".root"].items()}.keys() == rows.keys()
    for name in ("run_number", "sensor_id", "mask_type"):
        assert found[".root"][name].tolist() == rows[name]
    dead = {
        (event, sensor)
        for event, sensor, kind in zip(
            rows["event_number"], rows["sensor_id"], rows["mask_type"], strict=True
        )
        if kind == 1
    }
    assert {(0, 17), (0, 4100)} <= dead
    keys = list(zip(rows["event_number"], rows["sensor_id"], strict=True))
    assert len(keys) == len(set(keys))
    hidden = sum(kind == 0 for kind in rows["mask_type"])
    assert hidden == pytest.approx(0.05 * 4760 * EVENTS, rel=0.05)
    masked.say("export", "--checkpoint", "latest", "--out", str(tmp_path / "model"))
    assert (tmp_path / "model" / "inpainter.onnx").exists()


def test_a_prediction_that_is_killed_ends_in_the_same_file(masked, tmp_path):
    words = ["predict", "--checkpoint", "best", "--in", "real.root", "--out"]
    block = ("--set", "evaluate.batch_events=2")
    masked.say(*block, *words, str(tmp_path / "whole.parquet"))
    command = [BIN / "crpipe", *block, *words, str(tmp_path / "killed.parquet")]
    parts = tmp_path / "killed.parquet.parts"
    for _ in range(2):
        before = len(list(parts.rglob("*.parquet")))
        process = subprocess.Popen(
            command, cwd=masked.folder, env=environment(masked.variables), stderr=subprocess.DEVNULL
        )
        while process.poll() is None and len(list(parts.rglob("*.parquet"))) == before:
            pass
        psutil.Process(process.pid).kill()
        assert process.wait() != 0
    assert len(list(parts.rglob("*.parquet"))) > 1
    masked.say(*map(str, command[1:]))
    assert (tmp_path / "killed.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_many_rows_take_no_more_memory_than_few(masked, tmp_path):
    peak, rows = {}, {}
    for number, events in ((6, 300), (7, 1200)):  # both more than a block of the reader
        raw = tmp_path / f"gammas_{number:06}.root"
        write_gammas(XenonDetectorOptions(events_per_file=events), 1, number, raw)
        for suffix in ("parquet", "root"):
            out = tmp_path / f"found_{number}.{suffix}"
            own = ("--set", "model.averages=false", "--set", "evaluate.batch_events=20")
            words = ("predict", "--checkpoint", "best", "--in", str(raw), "--out", str(out))
            process = subprocess.Popen(
                [BIN / "crpipe", *own, *words],
                cwd=masked.folder,
                env=environment(masked.variables),
                stderr=subprocess.DEVNULL,
            )
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            peak[events, suffix] = used.ru_maxrss / 1024
        rows[events] = pq.read_metadata(tmp_path / f"found_{number}.parquet").num_rows
    assert rows[1200] - rows[300] > 200_000
    for suffix in ("parquet", "root"):
        assert peak[1200, suffix] - peak[300, suffix] < 50


def test_ten_settings_train_at_the_same_time_on_one_results_directory(finished, tmp_path):
    campaign = finished.untrained(tmp_path / "campaign")
    single = changed(SETTINGS, train=SETTINGS["train"] | {"rounds": 1})
    campaign.configure(single)
    before = campaign.contents()
    names = [f"scan-{number}" for number in range(10)]
    running = []
    for number, name in enumerate(names):
        own = ("--set", f"run={name}", "--set", f"model.learning_rate={1e-3 * (number + 1)}")
        verbs = [" ".join(map(str, (BIN / "crpipe", *own, verb, LINKS[0]))) for verb in ("train", "evaluate")]
        running.append(
            subprocess.Popen(
                ["bash", "-ec", "; ".join(verbs)],
                cwd=campaign.folder,
                env=environment(campaign.variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * 10, "\n".join(outputs)
    text = campaign.say("compare", *names)
    assert all(name in text for name in names)
    assert "energy" in text
    after = campaign.contents()
    assert {name: after[name] for name in before} == before  # the shards are as they were
    assert len({Path(path).read_bytes() for path in campaign.folder.glob("runs/scan-*/store/*/*.pt")}) > 10
