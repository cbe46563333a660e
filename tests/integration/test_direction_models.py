"""The networks that iceaggr's users know: killed while they train, they end in the same bytes."""

import json
from pathlib import Path

import pytest
import yaml

from crpipe.workloads.direction.simulator.files import kaggle_folder
from crpipe.workloads.direction.simulator.options import NeutrinoTelescopeOptions
from kills import check_killed_in_training
from outside.lab import Lab

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

PRESET = Path(__file__).parents[2] / "config" / "presets" / "iceaggr-best.yaml"
MODELS = {
    "FlatTransformer": yaml.safe_load(PRESET.read_text())["model"],
    "HierarchicalTransformer": {"width": 32, "layers": 1, "pulse_layers": 1, "heads": 2, "dropout": 0.1},
}
SETTINGS = {
    "run": "first",
    "source": {
        "uri": "kaggle/train/batch_{number}.parquet",
        "reader": "crpipe.workloads.direction.reading.kaggle:KaggleFiles",
        "tables": {"meta": "kaggle/train_meta.parquet", "geometry": "kaggle/sensor_geometry.csv"},
    },
    "ranges": {"first": 1, "last": 2, "size": 1},
    "split": {"outlier_above": 1_000_000, "validation_fraction": 0, "validation_files": ["batch_2.parquet"]},
    "load": {"batch_size": 16, "max_items": 2000},
    "train": {
        "ranges_per_link": 0,
        "passes": 2,
        "passes_per_link": 2,
        "schedule": {"shape": "one_cycle"},
        "snapshot_steps": 2,
        "log_steps": 1,
        "threads": 1,
        "device": "cpu",
    },
    "resources": {job: {"cpus": 1, "mem_mb": 2000} for job in ("stage", "split", "train", "evaluate")},
}


@pytest.fixture(scope="module", params=MODELS)
def finished(request, tmp_path_factory):
    """A campaign of two links of some steps, over two files of pulses."""
    train = SETTINGS["train"] | {"workload": f"crpipe.workloads.direction:{request.param}"}
    changes = {"train": train, "model": MODELS[request.param]}
    lab = Lab.begin(tmp_path_factory.mktemp("models") / "campaign", SETTINGS | changes)
    kaggle_folder(NeutrinoTelescopeOptions(events_per_file=60), 1, range(1, 3), lab.folder / "kaggle")
    lab.snakemake("train_all")
    return lab


def test_killed_in_training_it_ends_in_the_same_bytes(finished, tmp_path):
    check_killed_in_training(finished, tmp_path)
    receipt = json.loads(next(finished.run.glob("ranges/*-0000002.json")).read_text())
    assert (receipt["skipped"], receipt["step"]) == (0, 8)
