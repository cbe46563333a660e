"""A range is trained once, on every event, from the right weights, or refused with a reason."""

import json
import shutil
import subprocess
import weakref

import pytest
import torch

from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergenceError,
    LeaseError,
    ShardError,
)
from crpipe.core.files import sha256, write_json
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.loading.loader import Loader
from crpipe.train.checkpoints import CheckpointStore, load
from crpipe.train.metrics_log import read_metrics
from models import interrupted, train_range, trained
from told import Told
from toy import RANGES, make_events, toy_config, write_shards

FIRST, SECOND, _ = RANGES


def test_every_event_is_trained_on_in_every_epoch(tmp_path):
    receipt, _, _ = trained(toy_config(tmp_path, train={"passes_per_link": 2}))
    assert receipt["events"] == 2 * 300
    assert receipt["step"] == -(-2 * 19 // 3)


@pytest.mark.parametrize("outliers", [False, True])
def test_a_chain_without_any_event_ends_in_an_error_and_no_receipt(tmp_path, outliers):
    """A range may be empty; but weights that never were trained must not be taken for a result."""
    config = toy_config(tmp_path)
    paths, data = config.paths(), Campaign.open(config).data
    for folder in [*map(paths.shards, RANGES), *([] if outliers else [paths.outliers(CONSOLIDATED)])]:
        shutil.rmtree(folder)
        write_shards(folder, [("validation-00000", "validation", make_events(60, 5))], data)
    for name in RANGES:
        receipt, _, told = trained(config, name)
        assert receipt["step"] == 0
        assert f"warning: {name}: no training event in {name}: nothing is trained" in told
    if outliers:
        assert trained(config, OUTLIERS)[0]["step"] > 0
        return
    for _ in range(2):  # the second time the finished checkpoint is adopted
        with pytest.raises(
            DataError, match="nothing to train on: the chain ends, and no range had a training"
        ):
            train_range(config, OUTLIERS, Told())
    assert not paths.receipt(OUTLIERS).exists()


def test_the_chain_carries_weights_optimizers_and_totals_on(tmp_path):
    config = toy_config(tmp_path)
    first, before, _ = trained(config)
    second, after, told = trained(config, SECOND)
    assert f"starts from the checkpoint of {FIRST}" in told
    assert second["parent"] == first["sha256"]
    assert second["events"] == 600
    steps = [checkpoint["optimizers"]["critic"]["state"][0]["step"] for checkpoint in (before, after)]
    assert steps[1] == 2 * steps[0]
    # TensorBoard shows them in the order of their names.
    curves = sorted(path.name for path in config.paths().tensorboard().iterdir())
    assert curves == [f"events.out.tfevents.{n:06d}.{name}" for n, name in enumerate((FIRST, SECOND))]


def test_a_finished_range_is_adopted_and_its_receipt_stays_the_same(tmp_path):
    config = toy_config(tmp_path)
    trained(config)
    receipt = config.paths().receipt(FIRST)
    text, stamp = receipt.read_text(), receipt.stat().st_mtime_ns
    _, _, told = trained(config)
    assert "adopted" in told
    assert (receipt.read_text(), receipt.stat().st_mtime_ns) == (text, stamp)
    receipt.unlink()
    trained(config)
    assert receipt.read_text() == text


def test_a_range_needs_its_parent(tmp_path):
    with pytest.raises(CheckpointError, match=f"{FIRST}.json: missing; train that range first"):
        trained(toy_config(tmp_path), SECOND)


def test_a_changed_configuration_is_refused_with_its_keys(tmp_path):
    trained(toy_config(tmp_path))
    with pytest.raises(ConfigError, match=r"model.hidden: .* 8, config 16"):
        trained(toy_config(tmp_path, model={"hidden": 16}))


def test_a_damaged_parent_is_refused_and_not_overwritten(tmp_path):
    config = toy_config(tmp_path)
    receipt, _, _ = trained(config)
    path = config.paths().store(FIRST) / receipt["checkpoint"]
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half)
    with pytest.raises(CheckpointError, match="damaged") as caught:
        trained(config, SECOND)
    assert path.read_bytes() == half
    typed = str(caught.value).partition("train the link again: ")[2].partition(", and run")[0]
    assert typed == f"rm {config.paths().receipt(FIRST)}"
    subprocess.run(typed.split(), check=True)
    again, _, _ = trained(config)
    assert again == receipt
    trained(config, SECOND)


def test_a_missing_parent_has_the_same_remedy(tmp_path):
    config = toy_config(tmp_path)
    receipt, _, _ = trained(config)
    path = config.paths().store(FIRST) / receipt["checkpoint"]
    path.unlink()
    with pytest.raises(CheckpointError, match="missing; restore it, or train the link again: rm "):
        trained(config, SECOND)
    config.paths().receipt(FIRST).unlink()
    assert trained(config)[0] == receipt


@pytest.mark.parametrize("name", ["metrics.jsonl", "events", ""])
def test_metrics_that_were_cut_before_the_snapshot_and_no_others_are_reported(tmp_path, name):
    config = toy_config(tmp_path, train={"log_steps": 1, "snapshot_steps": 2})
    interrupted(config)
    interrupted(config)
    store = config.paths().store(FIRST)
    path = store / name if name == "metrics.jsonl" else next(config.paths().tensorboard().iterdir())
    if name:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    _, _, told = trained(config)
    assert "resumes at step 2" in told
    assert (f"warning: {path}: cut; what it had after step" in told) == bool(name)
    assert ("cut" in told) == bool(name)


@pytest.mark.parametrize("lost", ["tensorboard", "metrics.jsonl"])
def test_training_goes_on_when_its_curves_are_deleted(tmp_path, lost):
    config = toy_config(tmp_path, train={"log_steps": 1, "snapshot_steps": 2})
    paths = config.paths()
    whole = trained(toy_config(tmp_path / "whole", train={"log_steps": 1, "snapshot_steps": 2}))[0]

    class Deletes(Told):
        def update(self, label, done, total, note=""):
            if done == 3 and lost == "tensorboard":
                shutil.rmtree(paths.tensorboard())
            elif done == 3:
                (paths.store(FIRST) / lost).unlink()

    told = Deletes()
    train_range(config, FIRST, told)
    assert json.loads(paths.receipt(FIRST).read_text())["sha256"] == whole["sha256"]
    assert ("deleted while this job ran" in str(told)) == (lost == "tensorboard")
    assert [path.stat().st_size > 0 for path in paths.tensorboard().iterdir()] == [True]


def test_a_job_that_lost_its_lease_publishes_nothing(tmp_path):
    config = toy_config(tmp_path)
    store = config.paths().store(FIRST)

    def lose(_):
        (store / "lease").write_text(json.dumps({"host": "other", "pid": 1, "id": "another"}))

    told = Told()
    told.message = lose
    with pytest.raises(LeaseError, match="taken over by process 1 on other"):
        train_range(config, FIRST, told)
    assert not list(store.glob("*.pt"))
    assert not config.paths().receipt(FIRST).exists()


def test_shards_of_another_configuration_are_refused(tmp_path):
    config = toy_config(tmp_path)
    shutil.rmtree(config.paths().shards(FIRST))
    write_shards(config.paths().shards(FIRST), [], "0123456789abcdef")
    with pytest.raises(ShardError, match="made under other data keys"):
        trained(config)


def test_shards_that_changed_since_the_training_began_are_refused(tmp_path):
    config = toy_config(tmp_path)
    interrupted(config)
    shards = [("train-00000", "train", make_events(300, 7))]
    write_shards(config.paths().shards(FIRST), shards, Campaign.open(config).data)
    for _ in range(2):
        with pytest.raises(ShardError, match=f"holds other shards than {FIRST} was trained on"):
            trained(config)


def test_a_damaged_manifest_is_not_taken_for_other_shards(tmp_path):
    config = toy_config(tmp_path)
    interrupted(config)
    folder = config.paths().shards(FIRST)
    write_json(folder / ".finished" / "hashes.json", {"shards.json": sha256(folder / "manifest.json")})
    content = json.loads((folder / "manifest.json").read_text())
    write_json(folder / "manifest.json", content | {"threshold": content["threshold"] + 1})
    with pytest.raises(ShardError, match="damaged: its hash is not the recorded one; .* crpipe check"):
        trained(config)


def test_a_range_without_training_events_hands_its_parent_on(tmp_path):
    config = toy_config(tmp_path)
    _, before, _ = trained(config)
    manifest = config.paths().shard_manifest(SECOND)
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "shards": []}))
    _, after, _ = trained(config, SECOND)
    assert all(torch.equal(before["model"][name], after["model"][name]) for name in before["model"])


def test_two_jobs_never_train_one_range(tmp_path):
    config = toy_config(tmp_path)
    with (
        lease(config.paths().store(FIRST), wait_s=0, say=print),
        pytest.raises(LeaseError, match="already being worked on by process"),
    ):
        trained(config)


def test_a_poisoned_step_is_skipped_counted_and_named(tmp_path):
    config = toy_config(tmp_path, model={"poison_row": 7}, train={"fresh_batches": False})
    receipt, checkpoint, told = trained(config)
    assert receipt["skipped"] == 2  # row 7 of either shard
    assert all(torch.isfinite(value).all() for value in checkpoint["model"].values())
    rows = [row for row in Journal(config.paths().train_journal()).rows() if row["what"] == "skipped"]
    assert len(rows) == 2
    assert all(any(name.endswith("row 7") for name in row["events"]) for row in rows)
    assert "not finite, skipped" in told


def test_batches_are_not_kept_until_the_flags_of_their_steps_are_read(tmp_path, monkeypatch):
    stream, muons, most = Loader._stream, [], 0

    def watched(self, start):
        nonlocal most
        for events, cursor in stream(self, start):
            muons.append(weakref.ref(events.items))
            most = max(most, sum(each() is not None for each in muons))
            yield events, cursor

    monkeypatch.setattr(Loader, "_stream", watched)
    load = {"batch_size": 16, "prefetch": 0}
    trained(toy_config(tmp_path, model={"repeat": 1}, train={"log_steps": 100}, load=load))
    assert len(muons) == 19
    assert most <= 3


def test_too_many_bad_steps_stop_and_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("crpipe.train.loop.MOST_SKIPPED", 1)
    config = toy_config(tmp_path, model={"poison_row": 7}, load={"batch_size": 1000})
    with pytest.raises(DivergenceError, match="1 steps in a row were not finite"):
        trained(config)
    with pytest.raises(DivergenceError, match="delete it to try all the same"):
        trained(config)


@pytest.mark.parametrize(("watched", "warns"), [("loss", True), ("small", False)])
def test_a_watched_metric_beyond_its_limit_is_warned_of(tmp_path, monkeypatch, watched, warns):
    monkeypatch.setattr("crpipe.train.loop.WARN_SHARE", 1e-8)
    _, _, told = trained(toy_config(tmp_path, model={"watched": watched}))
    assert "critic/loss = " in told
    assert ("generator/" in told) == warns
    assert "of train.stop_loss)" in told


def test_a_watched_metric_beyond_its_limit_stops_after_its_row_is_written(tmp_path):
    config = toy_config(tmp_path, model={"watched": "large"}, train={"snapshot_steps": 100})
    with pytest.raises(DivergenceError, match="generator/large = .* is beyond .*train.stop_loss"):
        trained(config)
    assert read_metrics(config.paths().store(FIRST) / "metrics.jsonl")[-1]["step"] == 4


def test_a_loss_beyond_its_band_is_seen_before_a_good_snapshot_is_replaced(tmp_path):
    config = toy_config(tmp_path, train={"stop_loss": 1e-6, "snapshot_steps": 1, "log_steps": 100})
    with pytest.raises(DivergenceError, match="train.stop_loss"):
        trained(config)
    assert not list(config.paths().store(FIRST).glob("snapshot-*"))


def test_a_snapshot_of_another_number_of_ranks_is_refused(tmp_path):
    config = toy_config(tmp_path)
    interrupted(config)
    (path,) = config.paths().store(FIRST).glob("snapshot-*")
    key = path.stem.split("-")[1]
    state = load(path)
    path.unlink()
    CheckpointStore(path.parent, key).save_snapshot({**state, "ranks": 2}, 1)
    with pytest.raises(CheckpointError, match="made by 2 ranks, this job has 1"):
        trained(config)


def test_the_snapshots_of_a_finished_range_go_even_if_a_crash_came_first(tmp_path):
    config = toy_config(tmp_path)
    interrupted(config)
    (path,) = config.paths().store(FIRST).glob("snapshot-*")
    content = path.read_bytes()
    trained(config)
    path.write_bytes(content)
    trained(config)
    assert not path.exists()


def test_metrics_hold_losses_rates_and_the_moving_average(tmp_path):
    config = toy_config(tmp_path)
    trained(config)
    row = read_metrics(config.paths().store(FIRST) / "metrics.jsonl")[-1]
    expected = {"critic/loss", "critic/gap", "critic/gap_average", "generator/loss", "critic/grad_norm_p95"}
    assert expected | {"speed/events_per_s", "speed/wait_fraction", "learning_rate", "events"} <= row.keys()


def test_a_phase_that_is_too_strong_is_throttled_down_to_its_least_share(tmp_path):
    keys = {"passes_per_link": 10}
    _, checkpoint, told = trained(toy_config(tmp_path, model={"throttle_above": -1e9}, train=keys))
    assert "critic: too strong, its learning rate falls to 0.5" in told
    assert checkpoint["shares"] == {"critic": 0.2, "generator": 1.0}
    _, after, _ = trained(toy_config(tmp_path, model={"throttle_above": -1e9}, train=keys), SECOND)
    assert after["shares"] == checkpoint["shares"]


def test_micro_batches_add_up_to_the_whole_step_with_a_gradient_penalty(tmp_path):
    model = {"quiet": True, "optimizer": "sgd", "rate": 0.05}
    _, whole, _ = trained(toy_config(tmp_path / "whole", model=model))
    # A budget below the largest event: that event stands alone, the others share micro-batches.
    _, cut, _ = trained(toy_config(tmp_path / "cut", model=model, load={"batch_size": 16, "max_items": 5}))
    for name, value in whole["model"].items():
        torch.testing.assert_close(cut["model"][name], value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(whole["model"]["critic.0.weight"], cut["model"]["critic.0.weight"])


def test_events_of_the_test_part_are_never_read(tmp_path):
    """The same weights come out where the files of the test part are damaged, or gone."""
    found = []
    for kind in ("whole", "gone"):
        config = toy_config(tmp_path / kind)
        data = Campaign.open(config).data
        parts = [
            ("train-00000", "train", 1),
            ("validation-00000", "validation", 2),
            ("test-00000", "test", 3),
        ]
        folder = config.paths().shards(FIRST)
        shutil.rmtree(folder)
        write_shards(folder, [(name, role, make_events(60, seed)) for name, role, seed in parts], data)
        if kind == "gone":
            for path in folder.glob("test-*"):
                path.unlink()
        receipt, _, _ = trained(config)
        assert receipt["events"] == 60 * config.train.passes_per_link
        found.append(receipt["sha256"])
    assert found[0] == found[1]
