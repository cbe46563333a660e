"""Directions from a folder as Kaggle gives it, through the real Snakemake: killed, and submitted.

The files are simulated, in the schemas of the public sample.
"""

import os
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from crpipe.core.files import read_json
from crpipe.workloads.direction.layout import opening_angle, unit_vectors
from crpipe.workloads.direction.simulator.files import kaggle_folder
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from kills import check_killed_in_training, check_kills_change_nothing
from outside.lab import Lab, changed

pytestmark = pytest.mark.timeout(900)

EVENTS = 150
LINKS = ("0000001-0000004", "0000001-0000004.2", "outliers")
# How many jobs of each verb are disturbed: none of them more often than it runs at least.
KILLS = {"list": 1, "stage": 2, "split": 2, "train": 3, "consolidate": 1, "evaluate": 1}
SETTINGS = {
    "run": "first",
    "source": {
        "uri": "kaggle/train/batch_{number}.parquet",
        "reader": "crpipe.workloads.direction.reading.kaggle:KaggleFiles",
        "tables": {"meta": "kaggle/train_meta.parquet", "geometry": "kaggle/sensor_geometry.csv"},
    },
    "ranges": {"first": 1, "last": 4, "size": 2},
    "split": {"outlier_above": 500, "validation_fraction": 0, "validation_files": ["batch_4.parquet"]},
    "load": {"batch_size": 32, "max_items": 2000},
    "train": {
        "workload": "crpipe.workloads.direction:FlatTransformer",
        "ranges_per_link": 0,
        "passes": 2,
        "schedule": {"shape": "one_cycle"},
        "validate_every": 5,
        "monitor": "angle_deg",
        "snapshot_steps": 3,
        "log_steps": 1,
        "threads": 1,
        "device": "cpu",
    },
    "model": {
        "width": 16,
        "layers": 1,
        "heads": 2,
        "feedforward": 16,
        "head": 8,
        "max_doms": 32,
        "rotate": True,
    },
    "evaluate": {"events": 200, "batch_events": 50, "formats": []},
    "resources": {job: {"cpus": 1, "mem_mb": 1000} for job in ("stage", "split", "train", "evaluate")},
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A campaign over four files of pulses, not run yet; a fifth file is kept for predictions."""
    lab = Lab.begin(tmp_path_factory.mktemp("direction") / "campaign", SETTINGS)
    options = NeutrinoTelescopeOptions(events_per_file=EVENTS)
    kaggle_folder(options, 1, range(1, 5), lab.folder / "kaggle")
    kaggle_folder(options, 1, [5], lab.folder / "new")
    truth = pq.read_table(lab.folder / "new" / "train_meta.parquet")
    pq.write_table(truth.drop_columns(["azimuth", "zenith"]), lab.folder / "new" / "test_meta.parquet")
    return lab


@pytest.fixture(scope="module")
def finished(begun, tmp_path_factory):
    campaign = begun.copy(tmp_path_factory.mktemp("finished") / "campaign")
    campaign.snakemake("all")
    return campaign


def ledgers(campaign):
    return [read_json(path) for path in sorted((campaign.results / "ledgers").glob("*.json"))]


def test_every_event_of_the_folder_is_in_one_part(finished):
    found = ledgers(finished)
    assert all(ledger["balanced"] for ledger in found)
    assert [ledger["events"]["listed"] for ledger in found] == [2 * EVENTS] * 2
    tables = [pq.read_table(path) for path in finished.results.glob("shards/*/validation-*.events.parquet")]
    events = {number for table in tables for number in table["event_id"].to_pylist()}
    assert {number // 1_000_000 for number in events} == {4}
    outliers = list(finished.results.glob("outliers/consolidated/*.events.parquet"))
    large = {number for path in outliers for number in pq.read_table(path)["event_id"].to_pylist()}
    assert large
    assert len(events) == EVENTS - len([number for number in large if number // 1_000_000 == 4])
    kept = [pq.read_table(path) for path in finished.results.glob("shards/*/train-*.events.parquet")]
    assert not events & {number for table in kept for number in table["event_id"].to_pylist()}


@pytest.mark.compiler
def test_killed_in_training_it_ends_in_the_same_bytes(finished, tmp_path):
    check_killed_in_training(finished, tmp_path)


@pytest.mark.skipif(not os.environ.get("CRPIPE_KILLS"), reason="CRPIPE_KILLS=N: nightly")
def test_killed_ten_times_it_ends_in_the_same_bytes(begun, finished, tmp_path):
    assert sum(KILLS.values()) == 10
    assert len(finished.checkpoints()) == len(LINKS)
    check_kills_change_nothing(begun, finished, tmp_path / "campaign", KILLS, 2)


def test_people_read_of_pulses_and_degrees(finished):
    for words in (("summary",), ("status",), ("plan",)):
        text = finished.say(*words)
        assert not re.search("muon|bundle|shower", text)
    text = " ".join(finished.say("summary").replace("│", " ").split())
    assert "pulses" in text
    assert re.search(r"mean opening angle to the true direction \(°\)", text)
    metrics = read_json(finished.run / "evaluation" / "outliers" / "metrics.json")
    assert {"angle_mean_deg", "angle_median_deg", "z_bias"} <= {*metrics["values"]} & {*metrics["baseline"]}
    assert "kappa_coverage_68" in metrics["values"]
    figures = {path.stem for path in (finished.run / "evaluation" / "outliers").glob("*.svg")}
    assert figures == {"angle", "bias", "dependence", "kappa"}
    best = read_json(finished.run / "ranges" / f"{LINKS[1]}.best.json")
    assert best["metric"] == "angle_deg"


def test_scores_are_those_of_the_predictions(finished):
    folder = finished.run / "evaluation" / "outliers"
    table = pq.read_table(folder / "predictions.parquet")
    meta = pq.read_table(finished.folder / "kaggle" / "train_meta.parquet")
    rows = {number: row for row, number in enumerate(meta["event_id"].to_pylist())}
    row = [rows[number] for number in table["event_id"].to_pylist()]
    truth = unit_vectors(meta["azimuth"].take(row), meta["zenith"].take(row))
    metrics = read_json(folder / "metrics.json")
    for prefix, kind in (("", "values"), ("baseline_", "baseline")):
        found = unit_vectors(table[f"{prefix}azimuth"], table[f"{prefix}zenith"])
        angle = np.degrees(opening_angle(found, truth))
        assert metrics[kind]["angle_mean_deg"] == pytest.approx(angle.mean(), rel=1e-6)


def test_an_unlabelled_file_becomes_a_submission(finished, tmp_path):
    batch, meta = "new/train/batch_5.parquet", "new/test_meta.parquet"
    predict = ("predict", "--checkpoint", "best", "--in", batch, "--table", f"meta={meta}")
    columns = ("--columns", "event_id,azimuth,zenith")
    finished.say(*predict, *columns, "--out", str(tmp_path / "submission.csv"))
    finished.say(*predict, *columns, "--out", str(tmp_path / "submission.parquet"))
    table = pyarrow.csv.read_csv(tmp_path / "submission.csv")
    assert table.column_names == ["event_id", "azimuth", "zenith"]
    listed = pq.read_table(finished.folder / meta)["event_id"].to_pylist()
    assert table["event_id"].to_pylist() == listed == sorted(listed)
    azimuth, zenith = (table[name].to_numpy() for name in ("azimuth", "zenith"))
    assert ((azimuth >= 0) & (azimuth < 2 * np.pi)).all()
    assert ((zenith >= 0) & (zenith <= np.pi)).all()
    whole = pq.read_table(tmp_path / "submission.parquet")
    assert whole.schema.types == [pa.int64(), pa.float64(), pa.float64()]
    assert np.allclose(whole["azimuth"].to_numpy(), azimuth, rtol=1e-12)
    # The campaign's own metadata have no row of this file.
    done = finished.crpipe("predict", "--checkpoint", "best", "--in", batch, "--out", str(tmp_path / "x.csv"))
    assert done.returncode != 0
    assert "no row has batch_id 5" in done.stderr
    assert "--table meta=FILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_turns_may_be_chosen_after_training(finished, tmp_path):
    batch = "kaggle/train/batch_4.parquet"
    found = {}
    for turns in (1, 4):
        out = tmp_path / f"{turns}.parquet"
        finished.say(
            "--set",
            f"model.rotations={turns}",
            "predict",
            "--checkpoint",
            "latest",
            "--in",
            batch,
            "--out",
            str(out),
        )
        table = pq.read_table(out)
        found[turns] = unit_vectors(table["azimuth"], table["zenith"])
    angle = opening_angle(found[1], found[4])
    assert angle.max() > 1e-3
    assert "Nothing to be done" in finished.snakemake("all").stdout


def test_one_event_in_two_parts_is_refused_by_its_number(begun, tmp_path):
    campaign = begun.copy(tmp_path / "campaign")
    meta = pq.read_table(campaign.folder / "kaggle/train_meta.parquet").to_pandas()
    twice = int(meta["event_id"].iloc[0])
    last = meta.index[meta["batch_id"] == 4][3]
    old = int(meta.loc[last, "event_id"])
    meta.loc[last, "event_id"] = twice
    pq.write_table(
        pa.Table.from_pandas(meta, preserve_index=False), campaign.folder / "kaggle/train_meta.parquet"
    )
    path = campaign.folder / "kaggle/train/batch_4.parquet"
    pulses = pq.read_table(path)
    numbers = pulses["event_id"].to_numpy().copy()
    numbers[numbers == old] = twice
    pulses = pulses.set_column(pulses.column_names.index("event_id"), "event_id", pa.array(numbers))
    pq.write_table(pulses, path)
    done = campaign.snakemake("all", check=False)
    assert done.returncode != 0
    assert str(twice) in done.stdout
    assert not (campaign.run / "ranges").exists()


def test_other_sensors_than_the_geometry_has_are_refused_before_training(begun, tmp_path):
    campaign = begun.copy(tmp_path / "campaign")
    geometry = campaign.folder / "kaggle" / "sensor_geometry.csv"
    lines = geometry.read_text().splitlines()
    geometry.write_text("\n".join(lines[:3000]) + "\n")
    done = campaign.snakemake("all", check=False)
    assert done.returncode != 0
    assert re.search(
        r"batch_\d.parquet: row \d+: expected a sensor_id from 0, below 2999 \(see source.tables", done.stdout
    )
    campaign.configure(changed(SETTINGS, source__tables={"meta": "kaggle/train_meta.parquet"}))
    refused = replace(campaign).crpipe("config", "check")
    assert "source.tables: the table geometry is missing" in refused.stderr
