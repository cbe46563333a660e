"""A predicted direction depends on the pulses of its own event alone; a killed training ends bit for bit."""

import json
import os
import signal
import tempfile
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.core.errors import Interrupted
from crpipe.core.files import sha256
from crpipe.core.text import NullProgress
from crpipe.events.batch import concatenate
from crpipe.source.listing import list_range
from crpipe.source.side_tables import stage_tables
from crpipe.source.stage import stage_range
from crpipe.split.split import split_range
from crpipe.train.metrics_log import read_metrics
from crpipe.workloads.direction.layout import unit_vectors
from crpipe.workloads.direction.models.workload import DirectionWorkload
from directions import WORKLOADS, build, make_events, predict
from models import train_range
from opened import opened
from pulse_files import make_pulses, write_folder

MODELS = {
    (name, choice): build(name, loss=choice, pulses_per_dom=2, max_doms=12, rotations=2)
    for name in WORKLOADS
    for choice in ("von_mises_fisher", "angle")
}
multiplicities = st.lists(st.sampled_from([0, 1, 2, 5, 11, 30, 90]), min_size=1, max_size=12)
models = st.sampled_from(sorted(MODELS))


def found_by(key, events):
    """Predict unit vectors times kappa, and the numbers of sensors."""
    found = predict(*MODELS[key], events)
    lengths = found.get("kappa", np.ones(len(events)))
    return lengths[:, None] * unit_vectors(found["azimuth"], found["zenith"]), found["doms"]


def assert_same(found, wanted):
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[1], wanted[1])


@settings(deadline=None, max_examples=60)
@given(models, multiplicities, st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_order_of_events_changes_no_prediction(key, multiplicity, seed, random):
    events = make_events(multiplicity, seed)
    order = list(range(len(events)))
    random.shuffle(order)
    straight = found_by(key, events)
    assert_same(found_by(key, events.take(np.array(order))), [side[order] for side in straight])


@settings(deadline=None, max_examples=60)
@given(models, multiplicities, st.integers(0, 9), st.data())
def test_other_blocks_change_no_prediction(key, multiplicity, seed, data):
    events = make_events(multiplicity, seed)
    ends = sorted({0, len(events), *data.draw(st.lists(st.integers(0, len(events)), max_size=4))})
    parts = [found_by(key, events.part(start, end)) for start, end in pairwise(ends)]
    assert_same([np.concatenate(side) for side in zip(*parts, strict=True)], found_by(key, events))


@settings(deadline=None, max_examples=40)
@given(models, multiplicities, st.sampled_from([0, 1, 60, 4000]), st.booleans())
def test_one_more_event_of_any_size_changes_no_other_prediction(key, multiplicity, size, first):
    events, more = make_events(multiplicity), make_events([size], seed=20)
    both = found_by(key, concatenate([more, events] if first else [events, more]))
    own = slice(1, None) if first else slice(len(events))
    assert_same([side[own] for side in both], found_by(key, events))


@settings(deadline=None, max_examples=40)
@given(models, multiplicities, st.randoms(use_true_random=False))
def test_pulses_may_come_in_any_order(key, multiplicity, random):
    events = make_events(multiplicity)
    events.items[:, 1] = 5000 + np.arange(len(events.items))  # no two at one time
    mixed = events.items.copy()
    for start, end in pairwise(events.offsets()):
        order = list(range(start, end))
        random.shuffle(order)
        mixed[start:end] = events.items[order]
    assert_same(
        found_by(key, type(events)(events.columns, events.multiplicity, mixed)), found_by(key, events)
    )


def test_models_tell_directions_apart():
    """Or else the properties above would be those of a constant."""
    for key in MODELS:
        vectors, _ = found_by(key, make_events([5, 30, 90, 11]))
        apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)[np.triu_indices(4, 1)]
        assert apart.min() > 1e-3


class Crash(BaseException):
    """Stands for a process that dies without a word."""


def configure(raw, runs, name, **site):
    """Train on 60 small events in 15 steps of several micro-batches, with turns drawn for each."""
    kind, _, small = WORKLOADS[name]
    tree = {
        "run": "directions",
        "results": str(raw / "results"),
        "runs": str(runs),
        "source": {
            "uri": str(raw / "train/batch_{number}.parquet"),
            "reader": "crpipe.workloads.direction.reading.kaggle:KaggleFiles",
            "tables": {key: str(raw / file) for key, file in TABLES.items()},
        },
        "ranges": {"first": 1, "last": 1, "step": 1},
        "split": {"threshold": 1000, "validation_fraction": 0.2, "workers": 1},
        "load": {"batch_events": 10, "budget_items": 40},
        "train": {
            "workload": f"crpipe.workloads.direction:{kind.__name__}",
            "device": "cpu",
            "threads": 1,
            "epochs": 3,
            "log_steps": 4,
            "warmup_steps": 3,
            "schedule": "one_cycle",
            "validate_steps": 4,
            "validate_events": 20,
            "keep_best": "angle_deg",
            "lease_wait_s": 0.0,
            **site,
        },
        "model": {**small, "rotate": True, "max_doms": 20, "pulses_per_dom": 2},
    }
    return validate(tree)


TABLES = {"meta": "train_meta.parquet", "geometry": "sensor_geometry.csv"}
RANGE = "0000001-0000001"


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Shards of 60 events."""
    folder = tmp_path_factory.mktemp("raw")
    multiplicity = np.random.default_rng(0).integers(1, 60, 60)
    columns, items = make_pulses(multiplicity)
    write_folder(folder, {1: (columns, multiplicity, items)})
    config = configure(folder, folder / "runs", "DeepSet")
    stage_tables(opened(config), NullProgress())
    list_range(opened(config), RANGE, NullProgress())
    stage_range(opened(config), RANGE, NullProgress())
    split_range(Campaign.open(config), RANGE, NullProgress())
    return folder


def run(config, strikes=()):
    """Train; strike at the given counts of collated batches, and go on until the end."""
    pending, seen = sorted(strikes), 0
    collate = DirectionWorkload.collate

    def struck(self, events, index, seed):
        nonlocal seen
        seen += 1
        if pending and seen >= pending[0][0]:
            _, gentle = pending.pop(0)
            if not gentle:
                raise Crash
            os.kill(os.getpid(), signal.SIGTERM)
        return collate(self, events, index, seed)

    with mock.patch.object(DirectionWorkload, "collate", struck):
        while not config.paths().receipt(RANGE).exists():
            try:
                train_range(config, RANGE, NullProgress())
            except (Crash, Interrupted):
                continue
    paths = config.paths()
    files = sorted(paths.store(RANGE).glob("*.pt"))
    rows = [
        [row.get(key) for key in ("step", "fit/loss", "fit/angle_deg", "validation/angle_deg")]
        for row in read_metrics(paths.store(RANGE) / "metrics.jsonl")
    ]
    return [(path.name, sha256(path)) for path in files], rows, json.loads(paths.receipt(RANGE).read_text())


@pytest.fixture(scope="module")
def undisturbed(raw, tmp_path_factory):
    return {name: run(configure(raw, tmp_path_factory.mktemp("runs"), name)) for name in WORKLOADS}


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(
    name=st.sampled_from(sorted(WORKLOADS)),
    strikes=st.lists(st.tuples(st.integers(1, 150), st.booleans()), min_size=1, max_size=4),
    snapshot_steps=st.integers(1, 6),
)
def test_a_killed_training_ends_bit_identical(raw, undisturbed, name, strikes, snapshot_steps):
    with tempfile.TemporaryDirectory() as folder:
        config = configure(raw, Path(folder), name, snapshot_steps=snapshot_steps)
        assert run(config, strikes) == undisturbed[name]


def test_the_undisturbed_training_did_what_the_strikes_are_to_disturb(raw, undisturbed, tmp_path):
    for files, rows, receipt in undisturbed.values():
        assert {name.split("-")[0] for name, _ in files} == {"best", "checkpoint"}
        assert receipt["step"] >= 12
        assert receipt["skipped"] == 0
        assert sum(row[3] is not None for row in rows) >= 3
    other = run(configure(raw, tmp_path, "DeepSet", epochs=2))
    assert other[0] != undisturbed["DeepSet"][0]
