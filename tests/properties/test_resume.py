"""Kill training at any moment, run it again: the end is bit for bit that of a run nobody touched."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crpipe.core.errors import Interrupted
from crpipe.core.files import sha256
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import NullProgress
from crpipe.train.checkpoints import load
from crpipe.train.metrics_log import read_metrics
from models import train_range
from toy import RANGES, Toy, toy_config

CHAIN = (*RANGES, OUTLIERS)
LOSSES = ("critic/loss", "critic/gap", "critic/gap_average", "critic/grad_norm_p50", "generator/loss")


class Crash(BaseException):
    """Stands for a process that dies without a word."""


def configure(root, model=None, **site):
    """Micro-batches of a few muons, a batch that is not finite; ``site`` must not change the outcome."""
    load = {"batch_size": 16, "max_items": 20}
    return toy_config(root, load=load, model={"poison_row": 7, **(model or {})}, train=site)


def run_chain(config, strikes=(), profile_steps=0):
    """Train the whole chain, strike at the given counts of collated batches, and go on until the end."""
    pending = sorted(strikes)
    seen = 0

    def strike():
        nonlocal seen
        seen += 1
        if pending and seen >= pending[0][0]:
            _, gentle = pending.pop(0)
            if not gentle:
                raise Crash
            os.kill(os.getpid(), signal.SIGTERM)

    Toy.on_collate = staticmethod(strike)
    try:
        for name in CHAIN:
            while not config.paths().receipt(name).exists():
                try:
                    train_range(config, name, NullProgress(), profile_steps=profile_steps)
                except (Crash, Interrupted):
                    continue
    finally:
        Toy.on_collate = staticmethod(lambda: None)


def outcome(config):
    paths = config.paths()
    files = sorted(path for name in CHAIN for path in paths.store(name).glob("checkpoint-*.pt"))
    metrics = [
        [row["step"], *(row.get(name) for name in LOSSES)]
        for name in CHAIN
        for row in read_metrics(paths.store(name) / "metrics.jsonl")
    ]
    return [sha256(path) for path in files], metrics, [paths.receipt(name).read_text() for name in CHAIN]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    config = configure(tmp_path_factory.mktemp("undisturbed"))
    run_chain(config)
    assert json.loads(config.paths().receipt(OUTLIERS).read_text())["skipped"] > 0
    return outcome(config)


def test_a_chain_killed_in_its_first_and_second_link_ends_bit_identical(undisturbed, tmp_path):
    """One case of what follows, for every run of the tests: a crash between snapshots, and a gentle stop."""
    config = configure(tmp_path, snapshot_steps=3)
    run_chain(config, [(25, False), (110, True)])
    assert outcome(config) == undisturbed


JUDGED = {
    "validate_every": 3,
    "validate_events": 50,
    "monitor": "score",
    "early_stopping_patience": 2,
    "passes_per_link": 2,
}


# Some layers are frozen until the second link; the others decay.
FROZEN = {"frozen_steps": 12, "decay": 0.1, "repeat": 2}


def judged(root, **site):
    """Configure validation, a best checkpoint, links that end early, and layers that are frozen at first."""
    return configure(root, FROZEN, **{**JUDGED, **site})


def judged_outcome(config):
    paths = config.paths()
    found = [
        [row["step"], row["validation/score"], row["validation/generator/loss"]]
        for name in CHAIN
        for row in read_metrics(paths.store(name) / "metrics.jsonl")
        if "validation/score" in row
    ]
    receipts = [paths.best_receipt(name).read_text() for name in CHAIN]
    kept = [[path.name for path in paths.store(name).glob("best-*.pt")] for name in CHAIN]
    assert kept == [[json.loads(text)["checkpoint"]] for text in receipts]
    files = [sha256(path) for name in CHAIN for path in paths.store(name).glob("best-*.pt")]
    return outcome(config), found, receipts, files


@pytest.fixture(scope="module")
def undisturbed_judged(tmp_path_factory):
    config = judged(tmp_path_factory.mktemp("judged"))
    run_chain(config)
    receipts = [json.loads(config.paths().receipt(name).read_text()) for name in CHAIN]
    assert any("stopped" in receipt for receipt in receipts)
    assert not all("stopped" in receipt for receipt in receipts)
    return judged_outcome(config)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    strikes=st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=5),
    snapshot_steps=st.integers(1, 7),
    snapshot_seconds=st.sampled_from([1e-9, 600.0]),
)
def test_a_killed_chain_with_validation_best_and_early_stop_ends_bit_identical(
    undisturbed_judged, strikes, snapshot_steps, snapshot_seconds
):
    with tempfile.TemporaryDirectory() as folder:
        config = judged(Path(folder), snapshot_steps=snapshot_steps, snapshot_seconds=snapshot_seconds)
        run_chain(config, strikes)
        assert judged_outcome(config) == undisturbed_judged
        events = EventAccumulator(str(config.paths().tensorboard()))
        events.Reload()
        steps = [item.step for item in events.Scalars("critic/loss")]
        assert steps == sorted(set(steps))


def test_validation_changes_no_weight_and_no_random_number(tmp_path, undisturbed):
    config = configure(tmp_path, validate_every=2, validate_events=50, monitor="generator/loss")
    run_chain(config)
    assert outcome(config)[0] == undisturbed[0]
    assert outcome(config)[2] == undisturbed[2]  # the receipts: the checkpoints are the same files


def fitted(root, **site):
    """Configure a workload that fits and calibrates; the best checkpoint is calibrated, too."""
    site = {"workload": "toy:FittedToy", "validate_every": 4, "monitor": "score", **site}
    return configure(root, **site)


def test_what_is_fitted_and_calibrated_is_the_same_after_kills(tmp_path):
    """The bytes of all checkpoints, with other validations, too; the first link's fit stays."""
    whole, killed, unlooked = (tmp_path / name for name in ("whole", "killed", "unlooked"))
    run_chain(fitted(whole))
    run_chain(fitted(killed, snapshot_steps=3), [(3, False), (9, False), (60, True), (110, False)])
    run_chain(fitted(unlooked, validate_every=0, monitor="", validate_events=7))
    assert judged_outcome(fitted(killed)) == judged_outcome(fitted(whole))
    assert outcome(fitted(unlooked))[0] == outcome(fitted(whole))[0]
    kept = []
    for name in CHAIN:
        for path in sorted(fitted(whole).paths().store(name).glob("*-*.pt")):
            if not path.name.startswith("snapshot"):
                weights = load(path)["model"]
                kept.append(
                    [
                        weights[f"fitted.{each}"].tolist()
                        for each in ("centre", "events", "calibrated", "factor")
                    ]
                )
    assert len(kept) == 2 * len(CHAIN)  # a best and a last one of each link
    assert {str(each[:3]) for each in kept} == {str([kept[0][0], 70.0, 45.0])}
    assert len({each[3] for each in kept}) > len(CHAIN)


def test_runs_are_reproducible_and_seeds_matter(tmp_path, undisturbed):
    again, other = configure(tmp_path / "again"), toy_config(tmp_path / "other", seed=2)
    run_chain(again)
    run_chain(other)
    assert outcome(again) == undisturbed
    assert outcome(other)[0] != undisturbed[0]


def test_looking_changes_nothing(tmp_path, monkeypatch, undisturbed):
    monkeypatch.setattr("crpipe.train.loop.HISTOGRAM_LOGS", 1)
    config = configure(tmp_path)
    run_chain(config, profile_steps=1)
    assert outcome(config) == undisturbed
    events = EventAccumulator(str(config.paths().tensorboard()), size_guidance={"histograms": 0})
    events.Reload()
    steps = [item.step for item in events.Histograms("noise")]
    assert steps == list(range(4, steps[-1] + 1, 4))
    assert (config.paths().run_dir() / "profile.json").exists()
