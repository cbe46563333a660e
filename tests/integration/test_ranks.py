"""Several ranks under torchrun: the same events, the same weights, one decision, and a resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from crpipe.core.journal import Journal
from crpipe.train.checkpoints import load
from crpipe.train.metrics_log import read_metrics
from toy import RANGES, Toy, ToyOptions, make_events, toy_config, write_shards

FIRST, SECOND, _ = RANGES
TESTS = Path(__file__).parents[1] / "support"


def command(config, root, name, ranks):
    tree = root / "config.yaml"
    tree.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*torchrun, "-m", "crpipe", "--config", str(tree), "train", name]


def environment():
    paths = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def train(config, root, name=FIRST, ranks=2):
    done = subprocess.run(
        command(config, root, name, ranks),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    receipt = json.loads(config.paths().receipt(name).read_text())
    return receipt, load(config.paths().store(name) / receipt["checkpoint"])


def test_two_ranks_train_every_event_once_and_the_number_may_change(tmp_path):
    config = toy_config(tmp_path)
    receipt, _ = train(config, tmp_path)
    assert receipt["events"] == 300
    receipt, checkpoint = train(config, tmp_path, SECOND, ranks=1)
    assert receipt["events"] == 600
    assert all(torch.isfinite(value).all() for value in checkpoint["model"].values())


def test_a_training_started_by_hand_has_the_processes_of_its_configuration(tmp_path):
    found = []
    for by_hand in (False, True):
        root = tmp_path / str(by_hand)
        config = toy_config(root, train={"processes": 2, "gpus": 0, "device": "cpu"})
        words = command(config, root, FIRST, 2)
        if by_hand:
            words = [sys.executable, *words[words.index("-m", 3) :]]
        done = subprocess.run(
            words, env=environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(config.paths().receipt(FIRST).read_text()))
        stepped = load(config.paths().store(FIRST) / found[-1]["checkpoint"])
        found[-1]["model"] = {name: value.tolist() for name, value in stepped["model"].items()}
    assert found[0]["step"] == found[1]["step"]
    assert found[0]["model"] == found[1]["model"]


def test_any_number_of_ranks_fits_calibrates_and_judges_alike(tmp_path):
    """One rank fits; each measures its blocks of the sample, and of the held-out events."""
    found, fitted = [], []
    for ranks in (1, 2, 3):
        root = tmp_path / str(ranks)
        site = {"validate_every": 5, "validate_events": 50, "monitor": "score", "workload": "toy:FittedToy"}
        load = {"batch_size": 7}  # many blocks, not the same number on every rank
        config = toy_config(root, model={"rate": 0.0}, train=site, load=load)
        weights = train(config, root, ranks=ranks)[1]["model"]
        fitted.append({name: each.tolist() for name, each in weights.items() if name.startswith("fitted.")})
        rows = read_metrics(config.paths().store(FIRST) / "metrics.jsonl")
        found.append([row for row in rows if "validation/score" in row][-1])
        best = json.loads(config.paths().best_receipt(FIRST).read_text())
        assert best["metric"] == "score"
    assert fitted[0] == fitted[1] == fitted[2]
    assert (fitted[0]["fitted.events"], fitted[0]["fitted.calibrated"]) == (70, 45)
    names = [name for name in found[0] if name.startswith("validation/")]
    assert {"validation/critic/loss", "validation/generator/loss", "validation/drawn"} <= {*names}
    for other in found[1:]:
        assert {name: other[name] for name in names} == pytest.approx(
            {name: found[0][name] for name in names}, rel=1e-6
        )


def test_ranks_stop_early_together(tmp_path):
    site = {"validate_every": 1, "monitor": "score", "early_stopping_patience": 2, "passes_per_link": 3}
    config = toy_config(tmp_path, model={"rate": 0.0}, train=site)
    receipt, _ = train(config, tmp_path)
    assert receipt["step"] == 3
    assert receipt["stopped"].startswith("no better validation/score for 2 validations; best ")


def test_what_is_frozen_stays_as_it_was_on_several_ranks(tmp_path):
    """Ranks without a gradient contribute zeros, which would let the weights decay."""
    config = toy_config(tmp_path, model={"frozen_steps": 1000, "decay": 0.1, "momentum": 0.5})
    _, checkpoint = train(config, tmp_path)
    torch.manual_seed(config.seed)
    initial = Toy(ToyOptions()).model().state_dict()
    same = {name for name, value in checkpoint["model"].items() if torch.equal(value, initial[name])}
    frozen = {name for name in initial if name.startswith(("critic.0.", "generator.0.0."))}
    assert frozen <= same <= frozen | {"critic.2.bias"}  # which cancels in the critic's loss


def test_a_bad_batch_on_one_rank_is_skipped_by_both(tmp_path):
    config = toy_config(tmp_path, model={"poison_row": 7, "repeat": 1})
    receipt, checkpoint = train(config, tmp_path)
    assert receipt["skipped"] == 2
    assert all(torch.isfinite(value).all() for value in checkpoint["model"].values())
    skipped = [row for row in Journal(config.paths().train_journal()).rows() if row["what"] == "skipped"]
    assert all(any(name.endswith("row 7") for name in row["events"]) for row in skipped)


def test_a_rank_without_any_event_goes_along(tmp_path):
    config = toy_config(tmp_path)
    folder = config.paths().shards(FIRST)
    data = json.loads((folder / "manifest.json").read_text())["data"]
    write_shards(folder, [("train-00000", "train", make_events(1, 5))], data)
    receipt, _ = train(config, tmp_path)
    assert receipt["events"] == 1
    assert "critic/loss" in receipt["metrics"]


def test_snapshots_keep_their_distance_though_ranks_look_up_at_log_intervals_only(tmp_path):
    config = toy_config(tmp_path, train={"passes_per_link": 4, "log_steps": 2, "snapshot_steps": 3})
    train(config, tmp_path)
    noted = [row for row in Journal(config.paths().train_journal()).rows() if row["what"] == "snapshot"]
    assert [row["step"] for row in noted] == [4, 6, 10, 12]


def test_a_throttle_decides_by_what_all_ranks_measured_before_and_after_a_resume(tmp_path):
    config = toy_config(tmp_path, model={"repeat": 1}, train={"passes_per_link": 4})
    store = config.paths().store(FIRST)
    for _ in range(2):
        stopping = [*command(config, tmp_path, FIRST, 2), "--max-minutes", "1e-9"]
        done = subprocess.run(
            stopping, env=environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert "a snapshot is saved" in done.stderr
    rows = read_metrics(store / "metrics.jsonl")
    assert [row["step"] for row in rows] == [4, 8]
    meter = load(max(store.glob("snapshot-*.pt")))["extra"]["throttle_meter"]
    total, events = sum(sums["critic/gap"] for sums in (meter["sums"], *meter["others"]))
    before, after = rows[0]["events"], rows[1]["events"] - rows[0]["events"]
    assert events == before + after
    assert float(total) == pytest.approx(before * rows[0]["critic/gap"] + after * rows[1]["critic/gap"])
