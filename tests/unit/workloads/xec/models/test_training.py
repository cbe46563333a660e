"""The models through crpipe's own jobs: gammas are learned, and what goes wrong is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.core.journal import Journal
from crpipe.core.text import NullProgress
from crpipe.inference.export import export_model
from crpipe.inference.probe import ProbeBatch, probe_batch
from crpipe.setup.compatibility import check_fit
from crpipe.source.listing import list_range
from crpipe.source.side_tables import stage_tables
from crpipe.source.stage import stage_range
from crpipe.split.split import split_range
from crpipe.train.checkpoints import load, refuse_other_keys
from crpipe.train.metrics_log import read_metrics
from crpipe.workloads.xec.sensors import write_sensor_map
from models import evaluate_range, train_range
from opened import opened
from side_tables import with_tables
from unrendered import unrendered
from xenon_models import SMALL
from xenon_toy import make_gammas

SUPPORT = Path(__file__).parents[4] / "support"
RANGES = ("0000001-0000001", "0000002-0000002")
FIRST, SECOND = RANGES
REGRESSOR = {**SMALL, "head": 8, "photons_at_50_mev": 4e5}


def configure(data, root, workload="crpipe.workloads.xec:Regressor", **sections):
    """Configure two ranges of 48 gammas each, that lie in ``data``, and a run of its own in ``root``."""
    training = {
        "workload": workload,
        "device": "cpu",
        "threads": 1,
        "epochs": 1,
        "log_steps": 1,
        "warmup_steps": 1,
        "snapshot_steps": 2,
        "lease_wait_s": 0.0,
    }
    tree = {
        "run": "gammas",
        "results": str(data / "results"),
        "runs": str(root / "runs"),
        "source": {
            "uri": "synthetic://",
            "reader": "crpipe.workloads.xec.reading.root:RootFiles",
            "simulator": "crpipe.workloads.xec.simulator.files:XenonDetector",
        },
        "simulator": {"events_per_file": 48},
        "ranges": {"first": 1, "last": 2, "step": 1},
        "split": {"validation_fraction": 0.25, "workers": 1, "histograms": {"energy_gev": [0.015, 0.06, 3]}},
        "load": {"batch_events": 4, "budget_items": 20_000},
        "train": training | sections.pop("train", {}),
        "model": sections.pop("model", REGRESSOR),
        "evaluate": {"events": 100, "batch_events": 8},
        **sections,
    }
    return validate(tree)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Shards of both ranges."""
    folder = tmp_path_factory.mktemp("data")
    config = configure(folder, folder)
    stage_tables(opened(config), NullProgress())
    for each in RANGES:
        list_range(opened(config), each, NullProgress())
        stage_range(opened(config), each, NullProgress())
        split_range(Campaign.open(config), each, NullProgress())
    return folder


def receipt_of(config, name=FIRST):
    return json.loads(config.paths().receipt(name).read_text())


def checkpoint_of(config, name=FIRST):
    return config.paths().store(name) / receipt_of(config, name)["checkpoint"]


@pytest.mark.parametrize("name", ["Regressor", "MaskedAutoencoder", "Inpainter"])
def test_reader_simulator_and_workloads_fit_together(tmp_path, name):
    config = configure(tmp_path, tmp_path, f"crpipe.workloads.xec:{name}", model={})
    assert check_fit(config).endswith(
        f"workload crpipe.workloads.xec:{name}: they fit together; items are sensors"
    )


def test_a_histogram_that_is_not_counted_is_asked_for(tmp_path):
    config = configure(tmp_path, tmp_path, model={"reweight": ["w_cm"]})
    with pytest.raises(ConfigError, match="wants a histogram of w_cm, which split.histograms lacks"):
        check_fit(config)


@pytest.mark.slow
def test_a_trained_regressor_is_evaluated_and_exported(data, tmp_path):
    model = REGRESSOR | {
        "reweight": ["energy_gev"],
        "tasks": {"position": {}, "energy": {"loss": "gaussian_nll"}},
    }
    site = {"validate_steps": 3, "keep_best": "energy_loss"}
    config = configure(data, tmp_path, model=model, train=site)
    train_range(config, FIRST, NullProgress())
    receipt = receipt_of(config)
    assert receipt["skipped"] == 0
    assert receipt["items"] == 4760 * receipt["events"]
    names = {name for row in read_metrics(config.paths().store(FIRST) / "metrics.jsonl") for name in row}
    assert {"fit/energy_loss", "fit/position_loss", "validation/energy_loss", "validation/fit/loss"} <= names
    evaluate_range(config, FIRST, NullProgress())
    folder = config.paths().evaluation(FIRST)
    found = json.loads((folder / "metrics.json").read_text())
    assert {"energy_resolution", "distance_resolution"} <= set(found["values"])
    assert "distance_resolution" in found["baseline"]
    assert any(name.startswith("saliency_energy_") for name in found["values"])
    table = pq.read_table(folder / "predictions.parquet").to_pydict()
    assert np.isfinite(table["energy_gev_sigma"]).all()
    assert {path.name for path in folder.glob("*.svg")} >= {"worst_events.svg", "saliency.svg"}
    export_model(Campaign.open(config), config.paths().receipt(FIRST), tmp_path / "out", NullProgress())
    session = onnxruntime.InferenceSession(
        tmp_path / "out" / "regressor.onnx", providers=["CPUExecutionProvider"]
    )
    assert [output.name for output in session.get_outputs()] == ["energy", "energy_sigma", "position"]
    assert "pip install onnxruntime uproot" in (tmp_path / "out" / "MODEL_CARD.md").read_text()


@pytest.mark.slow
def test_a_masked_autoencoder_starts_a_regressor(data, tmp_path):
    before = configure(data, tmp_path / "before", "crpipe.workloads.xec:MaskedAutoencoder", model=SMALL)
    train_range(before, FIRST, NullProgress())
    with unrendered():
        evaluate_range(before, FIRST, NullProgress())
    start = {
        "init_from": str(before.paths().receipt(FIRST)),
        "init_map": {"encoder.": "encoder."},
    }
    config = configure(data, tmp_path, train=start, model=REGRESSOR | {"learning_rate": 1e-9})
    train_range(config, FIRST, NullProgress())
    there, own = (load(checkpoint_of(each))["model"] for each in (before, config))
    encoder = [name for name in own if name.startswith("encoder.")]
    assert len(encoder) > 40
    for name in encoder:
        torch.testing.assert_close(own[name], there[name], rtol=1e-5, atol=1e-6)
    record = json.loads((config.paths().run_dir() / "init_from.json").read_text())
    assert sorted(record["loaded"]) == sorted(encoder)
    assert not any(name.startswith("encoder.") for name in (*record["missing"], *record["unexpected"]))


@pytest.mark.slow
def test_an_inpainter_is_trained_evaluated_and_exported(data, tmp_path):
    config = configure(data, tmp_path, "crpipe.workloads.xec:Inpainter", model=SMALL)
    train_range(config, FIRST, NullProgress())
    evaluate_range(config, FIRST, NullProgress())
    folder = config.paths().evaluation(FIRST)
    found = json.loads((folder / "metrics.json").read_text())
    assert {"photons_mae", "neighbours_mae", "solid_angle_mae"} <= set(found["values"])
    table = pq.read_table(folder / "predictions.parquet").to_pydict()
    assert [len(each) for each in table["photons"]] == (np.array(table["hidden"]) + table["dead"]).tolist()
    export_model(Campaign.open(config), config.paths().receipt(FIRST), tmp_path / "out", NullProgress())
    assert (tmp_path / "out" / "inpainter.onnx").exists()


def fit(folder, name, steps, gammas, **options):
    write_sensor_map(folder / "sensors.csv")
    config = configure(
        folder,
        folder,
        f"crpipe.workloads.xec:{name}",
        train={"clip_norm": 5.0},
        load={"batch_events": 64, "budget_items": 64 * 4760},
        model={**SMALL, "learning_rate": 5e-3, **options},
    )
    campaign = with_tables(Campaign.open(config), {"sensors": folder / "sensors.csv"})
    (loss,) = probe_batch(
        campaign, ProbeBatch(make_gammas(gammas), "gammas.root"), steps, NullProgress()
    ).losses
    return loss.before, loss.after


@pytest.mark.slow
def test_64_gammas_are_learned_by_heart(tmp_path):
    tasks = {"energy": {}, "position": {}, "time": {}}
    before, after = fit(tmp_path, "Regressor", 120, 64, tasks=tasks, head=32, photons_at_50_mev=1e5)
    assert after < before / 10


@pytest.mark.slow
@pytest.mark.parametrize(("name", "factor"), [("Inpainter", 2.0), ("MaskedAutoencoder", 1.3)])
def test_a_masked_model_becomes_better_than_the_neighbours(tmp_path, name, factor):
    """Training begins there; hidden sensors are found from the others, whichever are hidden."""
    before, after = fit(tmp_path, name, 60, 16)
    assert after < before / factor


TWO_RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "crpipe"]
ALONE = ["-m", "crpipe"]
# The same command where triton cannot be imported. On a CPU torch does without it unless it is asked to.
WITHOUT_TRITON = """
import sys, runpy
sys.modules["triton"] = None
import torch
torch._inductor.config.cpu_backend = "triton"
runpy.run_module("crpipe", run_name="__main__", alter_sys=True)
"""


def train(config, root, name=FIRST, words=ALONE):
    """Run ``crpipe train`` in a process of its own, or two; return the finished process."""
    tree = root / "config.yaml"
    tree.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    paths = os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *words, "--config", str(tree), "train", name],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.slow
def test_a_nan_event_on_one_of_two_ranks_is_skipped_by_both_and_named(data, tmp_path):
    shards = sorted((data / "results" / "shards" / FIRST).glob("train-*.events.parquet"))
    known = pq.read_table(shards[0]).to_pydict()
    bad = known["event"][5]
    sums = tmp_path / "sums"
    sums.mkdir()
    model = REGRESSOR | {"run": 1, "event": bad, "sums": str(sums)}
    config = configure(data, tmp_path, "xenon_models:NanRegressor", model=model)
    done = train(config, tmp_path, FIRST, TWO_RANKS)
    assert done.returncode == 0, done.stderr
    receipt = receipt_of(config)
    assert (receipt["skipped"], receipt["events"]) == (1, len(known["event"]))
    (skipped,) = (row for row in Journal(config.paths().train_journal()).rows() if row["what"] == "skipped")
    assert f"file 0 row {bad} (run 1, event {bad})" in skipped["events"]  # gammas_000001.root, the only one
    assert all(torch.isfinite(value).all() for value in load(checkpoint_of(config))["model"].values())
    ranks = [(sums / rank).read_text().splitlines() for rank in ("0", "1")]
    assert ranks[0] == ranks[1]
    weights = load(checkpoint_of(config))["model"]
    final = sum(weights[name].double().abs().sum() for name in weights if not name.endswith("constants"))
    steps = np.diff([*map(float, ranks[0]), float(final)])
    assert (steps == 0).sum() == 1  # the skipped one alone changed nothing
    assert len(steps) == 5


@pytest.mark.slow
def test_a_changed_width_is_refused_with_the_keys_that_differ_and_nothing_is_touched(data, tmp_path):
    config = configure(data, tmp_path)
    train_range(config, FIRST, NullProgress())
    path = checkpoint_of(config)
    before = path.read_bytes(), path.stat().st_mtime_ns
    other = configure(data, tmp_path, model=REGRESSOR | {"width": 32})
    done = train(other, tmp_path, SECOND)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "model." in line]
    assert len(lines) == 1
    assert "model.width" in lines[0]
    assert "16" in lines[0]
    assert "32" in lines[0]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert not config.paths().receipt(SECOND).exists()


def test_a_checkpoint_names_the_keys_that_differ_from_its_own(data, tmp_path):
    config = configure(data, tmp_path)
    train_range(config, FIRST, NullProgress())
    keys = load(checkpoint_of(config))["keys"]
    assert keys["model.width"] == 16
    with pytest.raises(CheckpointError) as refused:
        refuse_other_keys({"keys": keys}, keys | {"model.width": 32}, checkpoint_of(config))
    assert [line for line in str(refused.value).splitlines() if line.startswith("  ")] == [
        "  model.width: checkpoint 16, run 32"
    ]


def losses_of(config):
    rows = read_metrics(config.paths().store(FIRST) / "metrics.jsonl")
    return [row["fit/loss"] for row in rows if "fit/loss" in row]


@pytest.mark.slow
def test_without_triton_a_compiled_training_warns_once_and_runs_as_an_eager_one(data, tmp_path):
    eager, compiled = (
        configure(data, tmp_path / name, train={"compile": name == "compiled"})
        for name in ("eager", "compiled")
    )
    (tmp_path / "compiled").mkdir()
    train_range(eager, FIRST, NullProgress())
    done = train(compiled, tmp_path / "compiled", FIRST, ["-c", WITHOUT_TRITON])
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stderr + done.stdout).splitlines() if "train.compile" in line]
    assert len(said) == 1
    assert "does not work here, training runs eager" in said[0]
    assert "triton" in said[0]
    assert losses_of(compiled)[0] == losses_of(eager)[0]
    assert losses_of(compiled) == pytest.approx(losses_of(eager), rel=1e-6)
