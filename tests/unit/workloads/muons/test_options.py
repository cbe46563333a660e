"""Options that do not apply are refused, and the presets of the earlier system are what it did."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError
from crpipe.core.text import NullProgress
from crpipe.train.checkpoints import load
from crpipe.train.link_start import checkpoint_file
from crpipe.workloads.muons import MuonGanOptions
from models import train_range
from named import READERS
from raw_files import NAME, campaign, raw_folder, split, write_parquet, write_staged

CONFIG = Path(__file__).parents[4] / "config"
README, LAUNCHER = (CONFIG / "presets" / f"{name}.yaml" for name in ("cr_muons", "cr_muons-launcher"))


@pytest.mark.parametrize("path", [README, LAUNCHER], ids=lambda path: path.stem)
def test_the_presets_are_valid_over_the_default(path):
    assert load_config([CONFIG / "config.yaml", path]).run == path.stem


def test_the_readme_preset_is_its_fast_recipe():
    options = load_config([README]).options()
    assert options["optimizer"] == "sgd"
    assert options["penalty"] == "none"
    assert options["features"] == "cartesian"


def test_the_launcher_preset_has_its_numbers():
    config = load_config([CONFIG / "config.yaml", LAUNCHER])
    options = config.options()
    rates = {options["generator_learning_rate"], options["critic_learning_rate"]}
    assert (options["optimizer"], rates) == ("adam", {0.5e-4})
    penalty = [options[name] for name in ("penalty", "penalty_weight", "gp_every", "gp_max_pairs")]
    assert penalty == ["gradient", 10, 2, 4096]
    assert (options["critic_steps"], config.train.fresh_batches) == (5, False)
    assert (config.load.batch_size, config.load.max_items) == (128_000, 300_000)
    assert (config.split.outlier_above, config.train.gradient_clip_norm) == (50_000, 0)


def test_the_launcher_preset_trains_and_shows_histograms(tmp_path, monkeypatch):
    monkeypatch.setattr("crpipe.train.loop.HISTOGRAM_LOGS", 1)
    preset = yaml.safe_load(LAUNCHER.read_text())
    preset["train"] |= {"log_steps": 1, "threads": 1}
    keys = [f"{name}={value}" for name in ("train", "model") for name, value in named_keys(name, preset)]
    config = campaign(tmp_path, "split.outlier_above=50000", "load.batch_size=60", *keys)
    multiplicity = np.random.default_rng(1).poisson(2, 200)
    write_parquet(raw_folder(config) / "a.parquet", multiplicity)
    write_staged(config)
    split(config)
    train_range(config, NAME, NullProgress())
    state = load(checkpoint_file(config.paths().receipt(NAME)))
    assert state["counters"]["step"] > 1
    assert state["metrics"]["critic/penalty"] >= 0
    events = EventAccumulator(str(config.paths().tensorboard()), size_guidance={"histograms": 0})
    events.Reload()
    shown = {"log10_multiplicity/generated", "log10_radius_m/real", "condition/depth_m"}
    assert shown <= {*events.Tags()["histograms"]}
    assert config.source.reader == READERS["bundles"]


def named_keys(section, tree):
    return [(f"{section}.{name}", value) for name, value in tree[section].items()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gp_every": 2}, "gp_every need penalty: gradient"),
        ({"penalty": "none", "penalty_weight": 3.0}, "need a penalty"),
        ({"momentum": 0.5}, "momentum needs optimizer: sgd"),
    ],
)
def test_an_option_that_does_not_apply_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        MuonGanOptions(**options)


def test_an_option_that_does_not_apply_is_told_with_its_section():
    with pytest.raises(ConfigError, match=r"model.*gp_every need penalty: gradient"):
        load_config([], ["train.workload=crpipe.workloads.muons:MuonGan", "model.gp_every=2"])
