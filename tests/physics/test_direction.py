"""Simulated tracks through the whole pipeline: a small transformer is better than the baseline.

Takes four minutes of CPU; `make test-physics`. The numbers are printed: pytest -s.
"""

import csv
import json
import shutil
import subprocess

import pytest
import yaml

from runs import BIN, REPOSITORY, environment

NAMES = ("angle_mean_deg", "angle_median_deg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
TRACKS = {
    "run": "tracks",
    "source": {
        "uri": "synthetic://",
        "reader": "crpipe.workloads.direction.reading.kaggle:SimulatedFiles",
        "simulator": "crpipe.workloads.direction.simulator.files:NeutrinoTelescope",
    },
    "simulator": {"events_per_file": 4000, "cascade_fraction": 0.0},
    "ranges": {"first": 1, "last": 7, "size": 1},
    "split": {"outlier_above": 20_000, "validation_fraction": 0.0, "validation_files": [7]},
    "load": {"batch_size": 64, "max_items": 40_000},
    "train": {
        "workload": "crpipe.workloads.direction:FlatTransformer",
        "ranges_per_link": 0,
        "passes_per_link": 8,
        "schedule": {"shape": "one_cycle"},
        "gradient_clip_norm": 1.0,
        "validate_every": 500,
        "snapshot_steps": 500,
        "threads": 1,
        "device": "cpu",
    },
    "model": {
        "width": 64,
        "layers": 2,
        "heads": 2,
        "feedforward": 128,
        "pulses_per_dom": 3,
        "max_doms": 64,
        "learning_rate": 2e-3,
        "rotate": True,
    },
    "evaluate": {"events": 4000},
    "resources": {name: {"cpus": 1, "mem_mb": 2000} for name in ("stage", "split", "train", "evaluate")},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a campaign that ran to its end."""
    folder = tmp_path_factory.mktemp("tracks")
    for name in ("Snakefile", "workflow", "profiles"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "config").mkdir()
    shutil.copy(REPOSITORY / "config" / "config.yaml", folder / "config")
    (folder / "config" / "tracks.yaml").write_text(yaml.safe_dump(TRACKS))
    words = [BIN / "snakemake", "all", "--cores", "1", "--configfile", "config/tracks.yaml"]
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder / "runs" / "tracks"


def test_a_trained_model_is_a_tenth_better_than_the_regression_on_the_same_events(trained):
    (path,) = (trained / "evaluation").glob("*/metrics.json")
    found = json.loads(path.read_text())
    model, regression = found["values"], found["baseline"]
    lines = [
        f"{name}: {model[name]:.2f} ± {model[f'{name}_error']:.2f}, regression {regression[name]:.2f}"
        for name in NAMES
    ]
    for table in sorted((trained / "benchmarks" / "train").glob("*.tsv")):
        (row,) = csv.DictReader(table.read_text().splitlines(), delimiter="\t")
        lines.append(f"training {table.stem}: {row['cpu_time']} s of CPU, {row['max_rss']} MB")
    print("", *lines, sep="\n")  # noqa: T201 - they are worth knowing where the test passes, too
    for name in NAMES:
        assert model[name] <= 0.9 * regression[name]
